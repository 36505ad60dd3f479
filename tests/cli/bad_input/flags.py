"""Bad values of the flags of `llmrl rl`, `glam`, `props`, `envs` and `serve`."""

from __future__ import annotations

from pathlib import Path

from llmrl_jax.core.config import save_config
from llmrl_jax.systems.glam.config import TrainConfig
from tests.cli.bad_input.models import KEYS, poisoned
from tests.cli.bad_input.row import CARTPOLE, Row


RL = f"rl train {CARTPOLE} --run.out {{tmp}}/runs"
DQN = "rl train --algo dqn --env CartPole-v1 --run.out {tmp}/runs"
GLAM = "glam train --preset demo --run.out {tmp}/runs"
CLONE = "glam clone --preset bc-demo --run.out {tmp}/runs"
PROPS = "props run --tasks cartpole --run.out {tmp}/runs"
TABLE = "props table --page {tmp}/page --run.out {tmp}/runs"
TUNE = "props finetune --model {model} --run.out {tmp}/runs"
DEMOS = "envs demos BabyAI-GoToLocal-v0 --out x.parquet"
PLAY = "envs play CartPole-v1 --actions 0"
SERVE = "serve --model {model} --port 0"
SEEDS = "from 0 to 4294967295 is needed"


def glam_run(tmp: Path) -> None:
    """The config.json of a run of `llmrl glam train` that has not begun."""
    save_config(TrainConfig(), tmp / "config.json")


LEARNING = (
    Row("steps of words", f"{RL} --steps many", "--steps: 'many' is not a whole number"),
    Row("a discount above 1", f"{RL} --ppo.gamma 1.5", "--ppo.gamma is 1.5; from 0 to 1 is needed"),
    Row("minibatches that do not divide", f"{RL} --ppo.minibatches 3",
        "--ppo.num-envs 4 x --ppo.num-steps 4 = 16 is not divided by --ppo.minibatches: 16 / 3 = 5.33"),
    Row("a schedule without an end", f"{RL} --ppo.schedule linear", "it needs --ppo.schedule-updates"),
    Row("a wrong schedule", f"{RL} --ppo.schedule cubic", "invalid choice 'cubic' for argument '--ppo.schedule'"),
    Row("no width", f"{RL} --network.hidden 0", "--network.hidden is 0; at least 1 is needed"),
    Row("no layers", f"{RL} --network.hidden", "--network.hidden is empty; "),
    Row("a misspelt algorithm", f"{RL} --algo pppo", "no algorithm 'pppo'; did you mean 'ppo'"),
    Row("a misspelt world", f"{RL} --env CartPole-v2", "'CartPole-v2'; did you mean 'CartPole-v1'"),
    Row("no world", f"{RL} --env ''", "no environment is registered as ''"),
    Row("an unknown option of a world", f"{RL} --env CartPole-v1?foo=1", "'CartPole-v1' has no option 'foo' .it takes"),
    Row("half an option of a world", f"{RL} --env 'CartPole-v1?foo'", "are not NAME=VALUE pairs"),
    Row("a mesh of words", f"{RL} --mesh data=many", "'data=many' is not NAME=NUMBER"),
    Row("a misspelt axis", f"{RL} --mesh date=2", "no mesh axis 'date'; did you mean 'data'"),
    Row("an unknown flag", f"{RL} --stepz 3", "Unrecognized options"),
    Row("a stray word", f"{RL} fast", "Unrecognized options: fast"),
    Row("a misspelt command", "rl trian", "unknown command 'trian'; did you mean 'train'"),
    Row("a batch larger than the memory", f"{DQN} --dqn.replay-size 1",
        "--dqn.num-envs 16 x --dqn.num-steps 4 = 64 steps in an update, but --dqn.replay-size is 1: raise it"),
    Row("DQN in a world of forces", f"{DQN} --env Pendulum-v1", "dqn needs a finite number of actions"),
)  # fmt: skip

GLAMS = (
    Row("a misspelt preset", "glam train --preset dmo", "no preset 'dmo'; did you mean 'demo'"),
    Row("too many actions", f"{GLAM} --num-actions 12", "--num-actions is 12, but .* has 7 actions: turn left"),
    Row("heads that do not divide", f"{GLAM} --embedded.hidden-size 12", "--embedded.hidden-size is 12; a multiple of "
        r"twice --embedded.heads \(4\) is needed"),
    Row("an unread option", f"{GLAM} --policy heads --scoring mean",
        "--scoring is mean, but --policy heads does not read"),
    Row("embeddings of nothing", f"{GLAM} --init embeddings", "give --model, or --init random"),
    Row("an agent that does not learn", f"{GLAM} --agent bot", "the agent bot does not learn"),
    Row("a language that is not there", f"{GLAM} --env BabyAI-Text/GoToLocal-v0?language=latin",
        "no language is called 'latin' .there are english, french"),
    Row("an option that levels lack", f"{GLAM} --env BabyAI-Text/GoToLocal-v0?action=all",
        "no option 'action'; did you mean 'actions'.*it takes room_size, num_dists, describe, language, done_actions, "
        "actions, compat"),
    Row("a room without a floor", f"{GLAM} --env BabyAI-Text/GoToLocal-v0?room_size=2", "room_size is 2; from 4 to 31"),
    Row("no episodes of a run", "glam eval {cartpole} --episodes 0", "--episodes is 0; at least 1 is needed"),
    Row("the run of another command", "glam eval {cartpole}", "cartpole is an rl train run, not a glam train run"),
    Row("the test of another run", "glam test {cartpole} --tests no_modification_test",
        "cartpole is an rl train run, not a glam train run", compiles=KEYS),
    Row("no run", "glam eval {tmp}", "there is no run in .*: it has no config.json"),
    Row("a seed of 40 bits", "glam eval {tmp} --seed 1e12", f"--seed is 1000000000000; {SEEDS}"),
    Row("a checkpoint below -1", "glam eval {tmp} --checkpoint=-3", "--checkpoint is -3; at least -1 is needed"),
    Row("a misspelt test", "glam test --random --tests go_two", "no test 'go_two'; did you mean 'go_to'"),
    Row("two worlds in one test", "glam test --random --tests go_to+go_to", "only one env can be"),
    Row("nothing to test", "glam test", "no agent to test: name a run's folder, --model, --random or --bot"),
    Row("results of something else", "glam test --random --out out",
        r"tests.json is \[\]; an object with a record for each test is needed: delete the file",
        {"out/random/test/tests.json": "[]"}),
    Row("results in a file", "glam test --random --out f/g", "--out is f/g, but f is a file; choose another path",
        files={"f": ""}),
    Row("no steps of RL", "glam demo --steps 0 --run.out {tmp}/runs", "--steps is 0; at least 1 is needed"),
    Row("no episodes of the demo", "glam demo --episodes 0 --run.out {tmp}/runs",
        "--episodes is 0; at least 1 is needed"),
    Row("the export of no metrics", "glam export {tmp}",
        "metrics.jsonl has no line of training yet, so there is nothing",
        files={"metrics.jsonl": '{"kind": "eval", "update": 0, "steps": 0}\n'}, prepare=glam_run),
    Row("the export of no log", "glam export {tmp}", "there are no metrics in .*: it has no metrics.jsonl",
        prepare=glam_run),
    Row("a run without checkpoints", "glam eval {tmp}", "there is no checkpoint in .*; the run saved none",
        prepare=glam_run),
    Row("the export of no run", "glam export {tmp}", "there is no configuration at"),
    Row("two sources", f"{CLONE} --demos a --from b", "--demos is a and --from is b: give one of them"),
    Row("demonstrations of text", f"{CLONE} --demos f.parquet", "f.parquet is not parquet", files={"f.parquet": "a"}),
    Row("a checkpoint of nothing", f"{CLONE} --checkpoint 3",
        "--checkpoint is 3, but a run without --from does not read"),
    Row("PPO for cloning", f"{CLONE} --ppo.num-envs 3", "--ppo.num-envs is 3, but cloning does not read it"),
)  # fmt: skip

SEARCHING = (
    Row("a misspelt task", "props run --tasks cart_pole", "no task 'cart_pole'; did you mean 'cartpole'"),
    Row("no tasks", "props run --tasks", "--tasks is empty; name at least one, or all"),
    Row("a task twice", f"{PROPS} --tasks nim nim", "tasks has 'nim' twice; name it once"),
    Row("seeds beyond the last", f"{PROPS} --seeds 2 --run.seed 4294967295", "--seeds is 2; from 1 to 1 is needed"),
    Row("an optimum of words", f"{PROPS} --optimum best", "--optimum is 'best'; it is 'true', 'hidden' or a number"),
    Row("hints that nothing reads", f"{PROPS} --hints 2", "--hints is 2, but --method props does not read it"),
    Row("a box without an inside", f"{PROPS} --policy.low 1 --policy.high 1",
        "--policy.low is 1.0 and --policy.high 1.0"),
    Row("templates of nowhere", f"{PROPS} --templates.template-dir nowhere",
        "--templates.template-dir is nowhere, which "),
    Row("a template without a folder", f"{PROPS} --templates.llm-si-template-name x",
        "'x' is named, but no --templates.template-dir to find it in"),
    Row("a history of nothing", f"{PROPS} --history.top 0",
        "--history.|last is None and top is 0, which shows nothing"),
    Row("a model without a server", f"{PROPS} --chat.model gpt-4o",
        "'gpt-4o' needs a server: name one with --chat.base-url"),
    Row("no methods", f"{TABLE} --methods", "--methods is empty; name at least one"),
    Row("a misspelt method", f"{TABLE} --methods cma", "no method 'cma'; did you mean 'cma_es'"),
    Row("half a record of a table", TABLE, "props-table.json is not valid JSON .*: correct it, or put",
        {"page/props-table.json": "{"}),
    Row("a record of a table without rows", TABLE, "props-table.json has no list of rows.*: put the file back",
        {"page/props-table.json": "{}"}),
    Row("a page in a file", f"{TABLE} --page f", "--page is f, but f is a file; choose another path", files={"f": ""}),
    Row("the model is missing", "props finetune --model ''", "the model is missing: give --model"),
    Row("too few prompts", f"{TUNE} --policies 10", "raise --policies, or lower --history"),
    Row("a task without an optimum", f"{TUNE} --tasks pendulum", "'pendulum' has no known optimum",
        compiles=KEYS),
)  # fmt: skip

WORLDS = (
    Row("no such worlds", "envs list zebra", "no id contains 'zebra'"),
    Row("a world to show", "envs show CartPool-v1", "did you mean 'CartPole-v1'"),
    Row("a negative seed to show", "envs show CartPole-v1 --seed=-1", f"--seed is -1; {SEEDS}"),
    Row("a language to show", "envs show BabyAI-GoToLocal-v0?describe=brief",
        "is called 'brief' .there are glam, faithful"),
    Row("a word for a number", "envs show Reacher-v5?frame_skip=x", "frame_skip is 'x'; a number is needed"),
    Row("negative steps of a world", "envs show FrozenLake-v1?max_steps=-1", "max_steps is -1; "),
    Row("a world of forces to play", "envs play Pendulum-v1 --actions 0", "Pendulum-v1 cannot be played by keys"),
    Row("an action that is not there", "envs play CartPole-v1 --actions 9", "no action '9'"),
    Row("no action", "envs play CartPole-v1 --actions 0,,1", "no action ''"),
    Row("negative steps to play", f"{PLAY} --max-steps=-3", "--max-steps is -3; at least 0 is needed"),
    Row("a negative seed to play", f"{PLAY} --seed=-1", f"--seed is -1; {SEEDS}"),
    Row("a picture of another kind", "envs play Nim-v0 --actions 0 --gif x.png", "a name that ends in .gif is needed"),
    Row("a picture in a file", "envs play Nim-v0 --actions 0 --gif f/x.gif", "--gif is f/x.gif, but f is a file",
        files={"f": ""}),
    Row("a picture in /proc", "envs play Nim-v0 --actions 0 --gif /proc/x.gif", "nothing can be written in /proc"),
    Row("demonstrations of nothing", "envs demos CartPole-v1 --out x.parquet", "'CartPole-v1' is none"),
    Row("demonstrations as CSV", "envs demos BabyAI-GoToLocal-v0 --out x.csv", "x.csv does not end in .parquet"),
    Row("demonstrations in /proc", "envs demos BabyAI-GoToLocal-v0 --out /proc/x.parquet",
        "--out is /proc/x.parquet, but"),
    Row("demonstrations in a folder", "envs demos BabyAI-GoToLocal-v0 --out d.parquet",
        "which is a folder; the path of",
        prepare=lambda tmp: (tmp / "d.parquet").mkdir()),
    Row("no demonstrations", f"{DEMOS} --episodes 0", "--episodes is 0; at least 1 is needed"),
    Row("no batch of demonstrations", f"{DEMOS} --batch 0", "--batch is 0; at least 1 is needed"),
    Row("a negative seed of demonstrations", f"{DEMOS} --seed=-1", f"--seed is -1; {SEEDS}"),
    Row("an infinite weight behind the chat", f"{PROPS} --chat.model local:{{model}} --chat.template plain",
        "the tensor model.norm.weight has values that are NaN or infinite", prepare=poisoned(float("inf")),
        compiles=r"jit\(<lambda>\)|broadcast_in_dim"),
)  # fmt: skip

SERVING = (
    Row("a port beyond the last", "serve --model {model} --port 99999", "--port is 99999; "),
    Row("an open host", f"{SERVE} --host 0.0.0.0", "there is no key: .*--key-variable.*--allow-anyone"),
    Row("no batch to serve", f"{SERVE} --max-batch 0", "--max-batch is 0; at least 1"),
    Row("no queue", f"{SERVE} --max-queue 0", "--max-queue is 0; at least 1"),
    Row("a context beyond the model", f"{SERVE} --context 99", "--context is 99; the model has 24 positions",
        compiles=r"jit\(<lambda>\)|broadcast_in_dim"),
    Row("a key that is not there", f"{SERVE} --key-variable NOT_SET_ANYWHERE", "NOT_SET_ANYWHERE is empty"),
    Row("a template that is not there", f"{SERVE} --chat-template nowhere", "'nowhere' is neither plain nor a file"),
)  # fmt: skip

ROWS = (*LEARNING, *GLAMS, *SEARCHING, *WORLDS, *SERVING)
