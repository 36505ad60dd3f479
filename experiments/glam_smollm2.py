"""What pretraining gives an agent: GLAM on SmolLM2-135M, on random weights with its embeddings, and on random weights.

    make smollm2
    python experiments/glam_smollm2.py                                  # all three, one seed
    python experiments/glam_smollm2.py --inits pretrained --seed 1      # a second seed of one of them

Each model is tested as it is, imitates the bot on a few steps and on more (all weights), and is then improved by PPO
through adapters, from the second of these; at the end it is tested with other words. All prompts have the newest
observation and no list of actions, since prompt length decides what a step costs. Runs are written to `<out>`; what is
finished is read, what is not is continued, so that it can be stopped at any time. `<out>/results.json` has the table,
with the minutes that each part took.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from commands import command

from llmrl_jax.core.files import write_whole
from llmrl_jax.run import info
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.flags import parse
from llmrl_jax.systems.glam import cloning, training
from llmrl_jax.systems.glam.cloning_run import clone
from llmrl_jax.systems.glam.config import GlamConfig
from llmrl_jax.systems.glam.posttest_run import give_tests, outcomes
from llmrl_jax.systems.glam.presets import DEMO
from llmrl_jax.systems.glam.settings import CloneRun, TrainConfig


Init = Literal["pretrained", "embeddings", "random"]


@dataclass(frozen=True)
class Experiment:
    """GLAM on a real model, and on random weights of its shape."""

    model: str = "smollm2-135m"
    """The language model, as in `llmrl glam train`."""
    inits: tuple[Init, ...] = ("pretrained", "embeddings", "random")
    """Its weights: its own, random ones but for its embeddings, random ones."""
    env: str = "BabyAI-Text/GoToLocalS6N2-v0"
    """The level."""
    pairs: tuple[int, ...] = (500, 5000)
    """Steps of the bot that a model imitates, once each; PPO starts from the last."""
    clone_rate: float = 3e-4
    """Peak step size of imitation."""
    clone_rows: int = 16
    """Steps in a batch of imitation."""
    steps: int = 6144
    """Environment steps of PPO; 0: none."""
    learning_rate: float = 3e-4
    """Step size of PPO."""
    episodes: int = 128
    """Held-out episodes of each evaluation."""
    tests: tuple[str, ...] = (
        *("no_modification_test", "other_name_same_categories"),
        *("no_meaning_words", "synonym_actions"),
    )
    """Tests after PPO, as in `llmrl glam test`."""
    test_episodes: int = 64
    """Episodes of each test, for sampled and for greedy actions."""
    seed: int = 0
    """Seed of everything."""
    out: str = "runs/glam_smollm2"
    """Folder of the runs and of the results."""


def finished(folder: Path) -> bool:
    """Whether a run has ended as it should."""
    file = folder / "summary.json"
    return file.exists() and not json.loads(file.read_text()).get("stopped")


def settings(x: Experiment, glam: GlamConfig) -> GlamConfig:
    """A preset in the experiment's level."""
    return replace(glam, model=x.model, env=x.env, score_rows=0)


def run_of(x: Experiment, name: str, **more: Any) -> RunConfig:
    """The settings of a run, which is continued if it was begun."""
    begun = (Path(x.out) / name / "config.json").exists()
    return RunConfig(out=x.out, name=name, seed=x.seed, log_every=1, keep=1, resume=begun, **more)


def ended(folder: Path, stopped: str) -> Path:
    if stopped:
        raise SystemExit(f"{folder} was stopped: the same command goes on with it")
    return folder


def imitated(x: Experiment, init: Init, pairs: int) -> Path:
    """The folder of a model that imitates the bot. Its summary has the episodes before and after."""
    folder = Path(x.out) / f"clone-{init}-{pairs}-{x.seed}"
    if not finished(folder):
        glam, how = cloning.PRESETS["bc-demo"]
        sft = replace(how.sft, batch_size=x.clone_rows, learning_rate=x.clone_rate)
        how = replace(how, pairs=pairs, epochs=1.0, pack=False, sft=sft)
        glam = replace(settings(x, glam), init=init)
        run = run_of(x, folder.name, checkpoint_every=50)
        ended(folder, clone(CloneRun(glam=glam, clone=how, eval_episodes=x.episodes, run=run)).stopped)
    return folder


def improved(x: Experiment, init: Init) -> Path:
    """The folder of PPO, from the model that imitated most."""
    folder = Path(x.out) / f"ppo-{init}-{x.seed}"
    if not finished(folder):
        start = str(imitated(x, init, x.pairs[-1]) / "model")
        ppo = replace(DEMO.ppo, num_envs=16, num_steps=16, epochs=1, minibatches=8, microbatches=1)
        ppo = replace(ppo, learning_rate=x.learning_rate)
        glam = replace(settings(x, DEMO), model=start, ppo=ppo)
        run = run_of(x, folder.name, checkpoint_every=5)
        ended(folder, training.train(TrainConfig(glam=glam, steps=x.steps, run=run)).stopped)
    return folder


def judged(folder: Path, x: Experiment) -> dict[str, Any]:
    """Held-out episodes of the end of a run of PPO."""
    written = sorted(folder.glob("eval-*.json"), key=lambda file: int(file.stem.split("-")[1]))
    if not written:
        return dict(training.evaluate(folder, episodes=x.episodes, seed=x.seed))
    found = json.loads(written[-1].read_text())
    return {way: found[way] for way in ("sampled", "greedy")}


def main() -> None:
    x = parse(Experiment, description=__doc__)
    file = Path(x.out) / "results.json"

    def note(name: str, make: Callable[[], Any]) -> None:
        """Add a row to the results, with the time of what was not there yet."""
        started = time.monotonic()
        value = make()
        found = json.loads(file.read_text()) if file.exists() else {"rows": {}, "seconds": {}}
        seconds = time.monotonic() - started
        found["rows"][name] = value
        found["seconds"] |= {name: round(seconds)} if seconds > 2 else {}
        found["commands"] = sorted({*found.get("commands", []), command(Path(__file__).name, x)})
        found["date"] = datetime.date.today().isoformat()
        found |= {"machine": {**info.versions(), "device": info.device()}}
        write_whole(file, json.dumps(found, indent=1, default=str) + "\n")

    for init in x.inits:
        for pairs in x.pairs:

            def both(pairs: int = pairs, init: Init = init) -> dict[str, Any]:
                summary = json.loads((imitated(x, init, pairs) / "summary.json").read_text())
                return {when: summary[when] for when in ("before", "after")}

            note(f"{init}, {pairs} steps of imitation, seed {x.seed}", both)
        if not x.steps:
            continue
        note(f"{init}, PPO, seed {x.seed}", lambda init=init: judged(improved(x, init), x))
        if x.tests:

            def tested(init: Init = init) -> Any:
                folders = [improved(x, init)]
                return [outcomes([one]) for one in give_tests(folders, x.tests, episodes=x.test_episodes, reuse=True)]

            note(f"{init}, tests, seed {x.seed}", tested)
    print(f"Everything is in {x.out}")


if __name__ == "__main__":
    main()
