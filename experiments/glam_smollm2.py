"""What pretraining gives an agent: GLAM on SmolLM2-135M, on random weights with its embeddings, and on random weights.

    make smollm2
    python experiments/glam_smollm2.py                                  # all three, one seed
    python experiments/glam_smollm2.py --inits pretrained --seed 1      # a second seed of one of them
    python experiments/glam_smollm2.py --pairs 125 500 --episodes 0 --steps 0     # imitation alone, an hour of a core

Each model is tested as it is, imitates the bot on a few steps and on more (all weights), and is then improved by PPO
through adapters, from the last of these (or `--start`); at the end it is tested with other words. Before PPO all are
asked what to do in steps of the bot that none was taught, and those that were taught most also in other words. All
prompts have the newest observation and no list of actions, since prompt length decides what a step costs. Runs are
written to `<out>`; what is finished is read, what is not is continued, so that it can be stopped at any time.
`<out>/results.json` has the table, with the seconds that each part took.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import jax
import numpy as np
from commands import command
from finished import complete

from llmrl_jax.agents.agent import untrained
from llmrl_jax.agents.babyai import read_demos
from llmrl_jax.core.files import write_whole
from llmrl_jax.core.statistics import wilson
from llmrl_jax.lm.config import ComputeDtype
from llmrl_jax.options.command import parse
from llmrl_jax.run import info
from llmrl_jax.run.config import RunConfig
from llmrl_jax.systems.glam import eval as evaluations, train as training
from llmrl_jax.systems.glam.build import make_agent
from llmrl_jax.systems.glam.clone import clone, demonstrated_steps, demonstrations
from llmrl_jax.systems.glam.config import CLONE_PRESETS, DEMO, CloneRun, GlamConfig, PostTestConfig, TrainConfig
from llmrl_jax.systems.glam.eval import evaluation
from llmrl_jax.systems.glam.posttest import parse_test, prepare
from llmrl_jax.systems.glam.results import outcomes, post_test
from llmrl_jax.workflows.experiment import HELD_OUT


Init = Literal["pretrained", "embeddings", "random"]
ASKED = 0xA5C
"""The seed of the steps that models are asked about, which are of other episodes than those that they imitate."""
ROWS = 16
"""Prompts of a pass."""


@dataclass(frozen=True)
class Experiment:
    """GLAM on a real model, and on random weights of its shape."""

    model: str = "smollm2-135m"
    """The language model, as in `llmrl glam train`."""
    inits: tuple[Init, ...] = ("pretrained", "embeddings", "random")
    """Its weights: its own, random ones but for its embeddings, random ones."""
    env: str = "BabyAI-Text/GoToLocalS6N2-v0"
    """The level."""
    dtype: ComputeDtype = "mixed"
    """Compute dtype of the model. With matrix units for bfloat16 (AMX), `mixed` is about twice as fast on a CPU as
    float32."""
    pairs: tuple[int, ...] = (500, 5000)
    """Steps of the bot that a model imitates, once each."""
    clone_rate: float = 3e-4
    """Peak step size of imitation."""
    clone_rows: int = 16
    """Steps in a batch of imitation."""
    start: int = 0
    """Steps of imitation that PPO starts from, one of `pairs`; 0: the last of them."""
    steps: int = 6144
    """Environment steps of PPO; 0: none."""
    num_envs: int = 16
    """Parallel environments of PPO."""
    num_steps: int = 16
    """Steps of an environment in an update of PPO."""
    ppo_epochs: int = 1
    """Passes of PPO over what an update has played."""
    minibatches: int = 8
    """Gradient steps of a pass."""
    learning_rate: float = 1e-4
    """Step size of PPO. With 3e-4 more than half of the first updates' ratios were clipped (a KL divergence of 0.2)."""
    episodes: int = 128
    """Held-out episodes of each evaluation, for sampled and for greedy actions; 0: none."""
    episodes_untrained: int = 32
    """The same of a model as it is, whose episodes are long; 0: none."""
    tests: tuple[str, ...] = (
        *("no_modification_test", "other_name_same_categories"),
        *("no_meaning_words", "synonym_actions"),
    )
    """Tests, as in `llmrl glam test`: steps in their words after most imitation, episodes after PPO; the first is that
    without other words."""
    asked: int = 256
    """Steps of the bot that every model is asked about; 0: none."""
    test_episodes: int = 64
    """Episodes of each test, for sampled and for greedy actions."""
    seed: int = 0
    """Seed of everything."""
    out: str = "runs/glam_smollm2"
    """Folder of the runs and of the results."""


def settings(x: Experiment, glam: GlamConfig) -> GlamConfig:
    """A preset in the experiment's level."""
    return replace(glam, model=x.model, env=x.env, dtype=x.dtype, score_rows=0)


def run_of(x: Experiment, name: str, **more: Any) -> RunConfig:
    """The settings of a run."""
    return RunConfig(out=x.out, name=name, seed=x.seed, log_every=1, keep=1, **more)


def bot_steps(x: Experiment, name: str, steps: int, seed: int) -> Path:
    """A file with at least `steps` steps of the bot's episodes."""
    folder = Path(x.out) / f"{name}-{steps}-{seed}"
    file = folder / "demos.parquet"
    if not file.exists():
        glam, how = CLONE_PRESETS["bc-demo"]
        folder.mkdir(parents=True, exist_ok=True)
        run = RunConfig(out=x.out, name=folder.name, seed=seed)
        config = CloneRun(glam=settings(x, glam), clone=replace(how, pairs=steps, held_out=0.0), run=run)
        return demonstrations(config, folder)
    return file


def agreement(x: Experiment, model: str, init: Init, tests: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Rate at which a model's most likely action is the bot's, with its 95% Wilson interval, and the mean
    log-probability of the bot's action and its standard error, in nats: in `asked` steps that no model was taught, in
    the words of each test. The interval takes steps as independent, though some are of one episode."""
    file = bot_steps(x, "asked", x.asked, ASKED + x.seed)
    agent = make_agent(replace(settings(x, CLONE_PRESETS["bc-demo"][0]), model=model, init=init))
    obs, done = (
        jax.tree.map(lambda a: a[: x.asked], part) for part in demonstrated_steps(agent, [*read_demos(file)[1]], file)
    )
    params, frozen = untrained(agent, jax.random.key(x.seed))
    found: dict[str, dict[str, Any]] = {}
    for test in tests:
        policy = prepare(agent, parse_test(test)).policy
        logits = jax.jit(lambda p, f, o, policy=policy: policy.distribution_and_hidden(p, f, o)[0].logits)
        parts = ({name: a[i : i + ROWS] for name, a in obs.items()} for i in range(0, len(done), ROWS))
        rows = [np.asarray(logits(params, frozen, part)) for part in parts]
        log_probs = np.asarray(jax.nn.log_softmax(np.concatenate(rows), axis=-1))
        rate = wilson(int((log_probs.argmax(-1) == done).sum()), len(done))
        nats = log_probs[np.arange(len(done)), done]
        found[test] = {
            "agrees": [round(float(v), 3) for v in (rate.mean, rate.low, rate.high)],
            "nats": [round(float(v), 3) for v in (nats.mean(), nats.std(ddof=1) / len(done) ** 0.5)],
        }
    found["most frequent action"] = {"agrees": round(float(np.bincount(done).max() / len(done)), 3)}
    return found


def success(x: Experiment, model: str, init: Init, episodes: int) -> dict[str, dict[str, float]]:
    """Success in held-out episodes, for sampled and for greedy actions."""
    agent = make_agent(replace(settings(x, CLONE_PRESETS["bc-demo"][0]), model=model, init=init))
    params, frozen = untrained(agent, jax.random.key(x.seed))
    play, key = evaluation(agent, episodes), jax.random.fold_in(jax.random.key(x.seed), HELD_OUT)
    state = SimpleNamespace(params=params, frozen=frozen)
    return {way: play(state, key, way == "greedy") for way in ("sampled", "greedy")}


def imitated(x: Experiment, init: Init, pairs: int) -> Path:
    """The folder of a model that imitates the bot."""
    glam, how = CLONE_PRESETS["bc-demo"]
    sft = replace(how.sft, batch_size=x.clone_rows, learning_rate=x.clone_rate)
    how = replace(how, pairs=pairs, epochs=1.0, pack=False, held_out=0.0, sft=sft)
    glam = replace(settings(x, glam), init=init)
    run = run_of(x, f"clone-{init}-{pairs}-{x.seed}", checkpoint_every=50)
    demos = str(bot_steps(x, "taught", max(x.pairs), x.seed))
    config = CloneRun(glam=glam, demos=demos, clone=how, eval_episodes=0, run=run)
    return complete(config, clone)


def improved(x: Experiment, init: Init) -> Path:
    """The folder of PPO, from a model that imitated."""
    name = f"ppo-{init}-from-{x.start}-{x.seed}" if x.start else f"ppo-{init}-{x.seed}"
    start = str(imitated(x, init, x.start or x.pairs[-1]) / "model")
    sizes = {"num_envs": x.num_envs, "num_steps": x.num_steps, "epochs": x.ppo_epochs, "minibatches": x.minibatches}
    ppo = replace(DEMO.ppo, **sizes, microbatches=1)
    ppo = replace(ppo, learning_rate=x.learning_rate)
    glam = replace(settings(x, DEMO), model=start, ppo=ppo)
    return complete(TrainConfig(glam=glam, steps=x.steps, run=run_of(x, name, checkpoint_every=5)), training.train)


def judged(folder: Path, x: Experiment) -> dict[str, Any]:
    """Held-out episodes of the end of a run of PPO."""
    written = sorted(folder.glob("eval-*.json"), key=lambda file: int(file.stem.split("-")[1]))
    found = json.loads(written[-1].read_text()) if written else {}
    if not found or found["sampled"]["episodes"] != x.episodes:
        evaluations.evaluate(folder, episodes=x.episodes, seed=x.seed)
        found = json.loads(max(folder.glob("eval-*.json"), key=lambda file: file.stat().st_mtime).read_text())
    return {way: found[way] for way in ("sampled", "greedy")}


def main() -> None:
    x = parse(Experiment, description=__doc__)
    if x.start and x.start not in x.pairs:
        raise ValueError(f"start is {x.start}, which is none of pairs ({', '.join(map(str, x.pairs))})")
    ppo = f"PPO from {x.start} steps" if x.start else "PPO"
    file = Path(x.out) / "results.json"

    def note(name: str, make: Callable[[], Any]) -> None:
        """Add a row to the results, with the time of what was not there yet."""
        started = time.monotonic()
        before = json.loads(file.read_text())["rows"] if file.exists() else {}
        value = before[name] if name in before and (" steps asked" in name or " episodes" in name) else make()
        found = json.loads(file.read_text()) if file.exists() else {"rows": {}, "seconds": {}}
        seconds = time.monotonic() - started
        found["rows"][name] = value
        found["seconds"] |= {name: round(seconds)} if seconds > 2 else {}
        found["commands"] = sorted({*found.get("commands", []), command(Path(__file__).name, x)})
        found["date"] = datetime.date.today().isoformat()
        found |= {"machine": info.stamp("experiments")}
        write_whole(file, json.dumps(found, indent=1, default=str) + "\n")

    models: list[tuple[str, str, Init, int]] = []
    for init in x.inits:
        models.append((f"{init}, not trained", x.model, init, x.episodes_untrained))
        if x.asked:
            note(
                f"{init}, {x.asked} steps asked, seed {x.seed}",
                lambda init=init: agreement(x, x.model, init, x.tests[:1]),
            )
        for pairs in x.pairs:
            folder, name = imitated(x, init, pairs), f"{init}, {pairs} steps of imitation"
            models.append((name, str(folder / "model"), "pretrained", x.episodes))
            learnt = json.loads((folder / "summary.json").read_text())
            took = {fact: learnt[fact] for fact in ("pairs", "updates", "train_seconds")}
            note(f"{name}, seed {x.seed}", lambda took=took: took)
            if x.asked:
                tests = x.tests if pairs == x.pairs[-1] else x.tests[:1]
                note(
                    f"{name}, {x.asked} steps asked, seed {x.seed}",
                    lambda folder=folder, tests=tests: agreement(x, str(folder / "model"), "pretrained", tests),
                )
        if not x.steps:
            continue
        if x.episodes:
            note(f"{init}, {ppo}, seed {x.seed}", lambda init=init: judged(improved(x, init), x))
        else:
            improved(x, init)
        if x.tests:

            def tested(init: Init = init) -> Any:
                asked = PostTestConfig((improved(x, init),), tests=x.tests, episodes=x.test_episodes, reuse=True)
                return [outcomes([one]) for one in post_test(asked)]

            note(f"{init}, {ppo}, tests, seed {x.seed}" if x.start else f"{init}, tests, seed {x.seed}", tested)
    # the models as they are come last: they do not end their episodes, which takes the longest
    for name, model, init, episodes in sorted(models, key=lambda one: "not trained" in one[0]):
        if episodes:
            note(
                f"{name}, {episodes} episodes, seed {x.seed}",
                lambda model=model, init=init, episodes=episodes: success(x, model, init, episodes),
            )
    print(f"Everything is in {x.out}")


if __name__ == "__main__":
    main()
