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
    Row("steps of words", f"{RL} --steps many", "--steps: 'many'"),
    Row("a discount above 1", f"{RL} --ppo.gamma 1.5", "--ppo.gamma.*1.5.*0.*1"),
    Row("minibatches that do not divide", f"{RL} --ppo.minibatches 3",
        "--ppo.num-envs 4 x --ppo.num-steps 4 = 16.*--ppo.minibatches: 16 / 3 = 5.33"),
    Row("a schedule without an end", f"{RL} --ppo.schedule linear", "--ppo.schedule-updates"),
    Row("a wrong schedule", f"{RL} --ppo.schedule cubic", "'cubic'.*'--ppo.schedule'"),
    Row("no width", f"{RL} --network.hidden 0", "--network.hidden.*0.*1"),
    Row("no layers", f"{RL} --network.hidden", "--network.hidden.*empty"),
    Row("a misspelt algorithm", f"{RL} --algo pppo", "'pppo'.*'ppo'"),
    Row("a misspelt world", f"{RL} --env CartPole-v2", "'CartPole-v2'.*'CartPole-v1'"),
    Row("no world", f"{RL} --env ''", "environment.*''"),
    Row("an unknown option of a world", f"{RL} --env CartPole-v1?foo=1", "'CartPole-v1'.*'foo'"),
    Row("half an option of a world", f"{RL} --env 'CartPole-v1?foo'", "NAME=VALUE"),
    Row("a mesh of words", f"{RL} --mesh data=many", "'data=many'.*NAME=NUMBER"),
    Row("a misspelt axis", f"{RL} --mesh date=2", "'date'.*'data'"),
    Row("an unknown flag", f"{RL} --stepz 3", "Unrecognized"),
    Row("a stray word", f"{RL} fast", "Unrecognized.*fast"),
    Row("a misspelt command", "rl trian", "'trian'.*'train'"),
    Row("a batch larger than the memory", f"{DQN} --dqn.replay-size 1",
        "--dqn.num-envs 16 x --dqn.num-steps 4 = 64.*--dqn.replay-size.*1"),
    Row("episodes of no environment", "rl train --algo bc --data x.npz --eval-episodes 3 --run.out {tmp}/runs",
        "--eval-episodes.*3.*--env"),
    Row("DQN in a world of forces", f"{DQN} --env Pendulum-v1", "dqn.*Pendulum-v1.*Box"),
)  # fmt: skip

GLAMS = (
    Row("a misspelt preset", "glam train --preset dmo", "'dmo'.*'demo'"),
    Row("too many actions", f"{GLAM} --num-actions 12", "--num-actions.*12.*7"),
    Row("heads that do not divide", f"{GLAM} --embedded.hidden-size 12",
        r"--embedded\.hidden-size.*12.*embedded\.heads"),
    Row("an unread option", f"{GLAM} --policy heads --scoring mean",
        "--scoring.*--policy heads"),
    Row("adapters that are not trained", f"{GLAM} --tune full --lora.rank 3", "--lora.rank.*3.*--tune full"),
    Row("sizes of a model of files", f"{GLAM} --model x --embedded.layers 5", "--embedded.layers.*5.*--model x"),
    Row("adapters of an imitation", f"{CLONE} --lora.rank 3", "--lora.rank.*3.*--tune full"),
    Row("sizes of another writer", "agent train --model x --embedded.layers 5 --run.out {tmp}/runs",
        "--embedded.layers.*5.*--model x"),
    Row("the length of an episode that is not in the prompt",
        "agent train --memory reprompt --ppo.episode-tokens 900 --run.out {tmp}/runs",
        "--ppo.episode-tokens.*900.*--memory reprompt"),
    Row("adapters of an imitated writer", "agent clone --lora.rank 3 --run.out {tmp}/runs",
        "--lora.rank.*3.*--tune full"),
    Row("embeddings of nothing", f"{GLAM} --init embeddings", "--model.*--init random"),
    Row("an agent that does not learn", f"{GLAM} --agent bot", "agent bot"),
    Row("a language that is not there", f"{GLAM} --env BabyAI-Text/GoToLocal-v0?language=latin",
        "'latin'.*english, french"),
    Row("an option that levels lack", f"{GLAM} --env BabyAI-Text/GoToLocal-v0?action=all",
        "'action'.*'actions'.*room_size, num_dists, describe, language, done_actions, actions, max_steps, compat"),
    Row("a room without a floor", f"{GLAM} --env BabyAI-Text/GoToLocal-v0?room_size=2", "room_size.*2.*4.*31"),
    Row("no episodes of a run", "glam eval {cartpole} --episodes 0", "--episodes.*0.*1"),
    Row("episodes without an end", "rl train --algo ppo --env CliffWalking-v1 --run.out {tmp}/runs",
        "CliffWalking-v1.*time limit.*CliffWalking-v1[?]max_steps=200"),
    Row("the run of another command", "glam eval {cartpole}", "rl train.*glam train"),
    Row("the test of another run", "glam test {cartpole} --tests no_modification_test",
        "rl train.*glam train", compiles=KEYS),
    Row("no run", "glam eval {tmp}", r"no run.*config\.json"),
    Row("a seed of 40 bits", "glam eval {tmp} --seed 1e12", f"--seed.* 1000000000000; {SEEDS}"),
    Row("a checkpoint below -1", "glam eval {tmp} --checkpoint=-3", "--checkpoint.*-3.*-1"),
    Row("a misspelt test", "glam test --random --tests go_two", "'go_two'.*'go_to'"),
    Row("two worlds in one test", "glam test --random --tests go_to+go_to", r"'go_to\+go_to'.*GoToLocal-v0"),
    Row("nothing to test", "glam test", "--model, --random.*--bot"),
    Row("results of something else", "glam test --random --out out",
        r"tests.json.*\[\]",
        {"out/random/test/tests.json": "[]"}),
    Row("results in a file", "glam test --random --out f/g", "--out.*f/g",
        files={"f": ""}),
    Row("no steps of RL", "glam demo --steps 0 --run.out {tmp}/runs", "--steps.*0.*1"),
    Row("no episodes of the demo", "glam demo --episodes 0 --run.out {tmp}/runs",
        "--episodes.*0.*1"),
    Row("the export of no metrics", "glam export {tmp}",
        r"metrics\.jsonl.*training",
        files={"metrics.jsonl": '{"kind": "eval", "update": 0, "steps": 0}\n'}, prepare=glam_run),
    Row("the export of no log", "glam export {tmp}", r"no metrics.*metrics\.jsonl",
        prepare=glam_run),
    Row("a run without checkpoints", "glam eval {tmp}", "/checkpoints.*saved none",
        prepare=glam_run),
    Row("the export of no run", "glam export {tmp}", r"/config\.json"),
    Row("two sources", f"{CLONE} --demos a --from b", "--demos.*--from.*b"),
    Row("demonstrations of text", f"{CLONE} --demos f.parquet", r"f\.parquet.*not parquet", files={"f.parquet": "a"}),
    Row("a checkpoint of nothing", f"{CLONE} --checkpoint 3",
        "--checkpoint.*3.*--from"),
    Row("PPO for cloning", f"{CLONE} --ppo.num-envs 3", r"--ppo\.num-envs.*3.*cloning"),
)  # fmt: skip

SEARCHING = (
    Row("a misspelt task", "props run --tasks cart_pole", "'cart_pole'.*'cartpole'"),
    Row("no tasks", "props run --tasks", "--tasks.*empty"),
    Row("a task twice", f"{PROPS} --tasks nim nim", "--tasks.*'nim'"),
    Row("a task twice, also by its environment", f"{PROPS} --tasks nim Nim-v0", "--tasks.*'nim'"),
    Row("seeds beyond the last", f"{PROPS} --seeds 2 --run.seed 4294967295", "--seeds.*2.*1.*1"),
    Row("an optimum of words", f"{PROPS} --optimum best", "--optimum.*'best'.*'true', 'hidden'"),
    Row("hints that nothing reads", f"{PROPS} --hints 2", "--hints.*2.*--method props"),
    Row("a step in a table", f"{PROPS} --tasks nim --step-size 2", "--step-size.*2.*table"),
    Row("no random policies", f"{PROPS} --method evollm --warmup 0", "--warmup.*0.*1"),
    Row("a box without an inside", f"{PROPS} --policy.low 1 --policy.high 1",
        "--policy.low.*1.0.*--policy.high 1.0"),
    Row("templates of nowhere", f"{PROPS} --templates.template-dir nowhere",
        "--templates.template-dir.*nowhere"),
    Row("a template without a folder", f"{PROPS} --templates.llm-si-template-name x",
        "'x'.*--templates.template-dir"),
    Row("a history of nothing", f"{PROPS} --history.top 0",
        r"--history\.last.*None.*top.*0"),
    Row("a model without a server", f"{PROPS} --chat.model gpt-4o",
        "'gpt-4o'.*--chat.base-url"),
    Row("no methods", f"{TABLE} --methods", "--methods.*empty"),
    Row("a misspelt method", f"{TABLE} --methods cma", "'cma'.*'cma_es'"),
    Row("half a record of a table", TABLE, "props-table.json.*JSON",
        {"page/props-table.json": "{"}),
    Row("a record of a table without rows", TABLE, r"props-table\.json.*list",
        {"page/props-table.json": "{}"}),
    Row("a page in a file", f"{TABLE} --page f", "--page.*f", files={"f": ""}),
    Row("the model is missing", "props finetune --model ''", "missing.*--model"),
    Row("too few prompts", f"{TUNE} --policies 10", "--policies.*--history"),
    Row("a task without an optimum", f"{TUNE} --tasks pendulum", "'pendulum'",
        compiles=KEYS),
)  # fmt: skip

WORLDS = (
    Row("no such worlds", "envs list zebra", "'zebra'"),
    Row("a world to show", "envs show CartPool-v1", "mean 'CartPole-v1'"),
    Row("a negative seed to show", "envs show CartPole-v1 --seed=-1", f"--seed.* -1; {SEEDS}"),
    Row("a language to show", "envs show BabyAI-GoToLocal-v0?describe=brief",
        "'brief'.*glam, faithful"),
    Row("a word for a number", "envs show Reacher-v5?frame_skip=x", "frame_skip.*'x'"),
    Row("negative steps of a world", "envs show FrozenLake-v1?max_steps=-1", "max_steps.*-1"),
    Row("a world of forces to play", "envs play Pendulum-v1 --actions 0", "Pendulum-v1.*played"),
    Row("an action that is not there", "envs play CartPole-v1 --actions 9", "action '9'"),
    Row("a digit that is no number", "envs play CartPole-v1 --actions ²", "action '²'", compiles=KEYS),
    Row("no action", "envs play CartPole-v1 --actions 0,,1", "action ''"),
    Row("negative steps to play", f"{PLAY} --max-steps=-3", "--max-steps.*-3.*0"),
    Row("a negative seed to play", f"{PLAY} --seed=-1", f"--seed.* -1; {SEEDS}"),
    Row("a picture of another kind", "envs play Nim-v0 --actions 0 --gif x.png", "name.*.gif"),
    Row("a picture in a file", "envs play Nim-v0 --actions 0 --gif f/x.gif", "--gif.*f/x.gif",
        files={"f": ""}),
    Row("a picture in /proc", "envs play Nim-v0 --actions 0 --gif /proc/x.gif", "/proc"),
    Row("demonstrations of nothing", "envs demos CartPole-v1 --out x.parquet", "'CartPole-v1'.*none"),
    Row("demonstrations as CSV", "envs demos BabyAI-GoToLocal-v0 --out x.csv", "x.csv.*.parquet"),
    Row("demonstrations in /proc", "envs demos BabyAI-GoToLocal-v0 --out /proc/x.parquet",
        "--out.*/proc/x.parquet"),
    Row("demonstrations in a folder", "envs demos BabyAI-GoToLocal-v0 --out d.parquet",
        r"--out.*d\.parquet.*folder",
        prepare=lambda tmp: (tmp / "d.parquet").mkdir()),
    Row("no demonstrations", f"{DEMOS} --episodes 0", "--episodes.*0.*1"),
    Row("no batch of demonstrations", f"{DEMOS} --batch 0", "--batch.*0.*1"),
    Row("a negative seed of demonstrations", f"{DEMOS} --seed=-1", f"--seed.* -1; {SEEDS}"),
    Row("an infinite weight behind the chat", f"{PROPS} --chat.model local:{{model}} --chat.template plain",
        "model.norm.weight.*NaN", prepare=poisoned(float("inf")),
        compiles=r"jit\(<lambda>\)|broadcast_in_dim"),
)  # fmt: skip

SERVING = (
    Row("a port beyond the last", "serve --model {model} --port 99999", "--port.*99999"),
    Row("an open host", f"{SERVE} --host 0.0.0.0", "--key-variable.*--allow-anyone"),
    Row("no batch to serve", f"{SERVE} --max-batch 0", "--max-batch.*0.*1"),
    Row("no queue", f"{SERVE} --max-queue 0", "--max-queue.*0.*1"),
    Row("a context beyond the model", f"{SERVE} --context 99", "--context.*99.*24",
        compiles=r"jit\(<lambda>\)|broadcast_in_dim"),
    Row("a key that is not there", f"{SERVE} --key-variable NOT_SET_ANYWHERE", "NOT_SET_ANYWHERE.*empty"),
    Row("a template that is not there", f"{SERVE} --chat-template nowhere", "'nowhere'"),
)  # fmt: skip

ROWS = (*LEARNING, *GLAMS, *SEARCHING, *WORLDS, *SERVING)
