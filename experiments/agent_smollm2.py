"""A pretrained model that writes: SmolLM2-135M in BALROG's `goto` and `pickup`, as it is, after imitation, after RL.

    make smollm2
    python experiments/agent_smollm2.py
    python experiments/agent_smollm2.py --task pickup
    python experiments/agent_smollm2.py --task none

The world is BALROG's (one object in a room of 8, six actions) with the text of agents that write: one observation in a
prompt, episodes of 24 turns. The model imitates an expert that thinks right and acts at random in most turns, as the
demo's does, and is improved by PPO on tokens through adapters; replies are free. Runs are written to `<out>`; what is
finished is read, what is not is continued, so that it can be stopped at any time. `<out>/TASK.json` has the figures;
`none` is the model as it is, in all tasks.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
from commands import command, summary_of

from llmrl_jax.core.files import write_whole
from llmrl_jax.options.command import parse
from llmrl_jax.run import info
from llmrl_jax.systems.agent.build import build
from llmrl_jax.systems.agent.config import AgentConfig
from llmrl_jax.systems.agent.train import evaluators, summarise


TASKS = {"goto": "go_to", "pickup": "pick_up", "open": "open", "putnext": "put_next", "sequence": "pick_up_seq_go_to"}
"""Our names of BALROG's tasks -> the world's."""
WORLD = "BabyAI-Text/MixedTrainLocal-v0?num_dists=0"
FIGURES = ("success", "success_low", "success_high", "turns", "valid", "reply_length", "episodes")


@dataclass(frozen=True)
class Experiment:
    """SmolLM2-135M as an agent that writes."""

    task: Literal["goto", "pickup", "none"] = "goto"
    """The task that is learned; `none`: the model is evaluated as it is."""
    model: str = "smollm2-135m"
    """The language model, as in `llmrl agent train`."""
    seed: int = 0
    """Seed of imitation and RL."""
    max_turns: int = 24
    """Turns of an episode."""
    demonstrations: int = 100
    """Episodes of the expert."""
    noise: float = 0.75
    """Share of turns in which the expert acts at random."""
    clone_rate: float = 3e-4
    """Peak learning rate of imitation."""
    updates: int = 20
    """Updates of PPO, each of 32 worlds x 256 tokens."""
    learning_rate: float = 5e-4
    """Learning rate of PPO, which falls to zero."""
    episodes: int = 48
    """Held-out episodes of an evaluation."""
    zero_episodes: int = 16
    """Episodes of each task for the model as it is."""
    zero_turns: int = 8
    """Turns of these episodes, in which replies are counted."""
    out: str = "runs/agent_smollm2"
    """Folder of the runs and of the results."""


def world(x: Experiment) -> list[str]:
    """The options that imitation and RL share."""
    options = {
        "env": WORLD,
        "task": TASKS[x.task],
        "num-actions": 6,
        "max-turns": x.max_turns,
        "memory": "reprompt",
        "reply-tokens": 20,
        "eval-episodes": x.episodes,
        "run.seed": x.seed,
    }
    return [part for name, value in options.items() for part in (f"--{name}", str(value))]


def same_options(x: Experiment, path: Path) -> None:
    """Note the options of the runs. **Raises:** `ValueError` if they were begun with others, whose numbers would enter
    the record under these."""
    options = {name: value for name, value in asdict(x).items() if name != "out"}
    if path.exists() and (saved := json.loads(path.read_text())) != options:
        raise ValueError(f"{path} has other options: {saved}; now {options}: put them back, or choose another --out")
    write_whole(path, json.dumps(options, indent=1) + "\n")


def as_it_is(x: Experiment, name: str) -> dict[str, Any]:
    """The model before imitation, asked what to do in its own chat markers, in a task: free replies in the first turns
    of some episodes, of six actions in BabyAI, of all in Crafter."""
    options: dict[str, Any] = {"env": f"CrafterText-v1?length={x.zero_turns}"}
    if name != "crafter":
        options = {"env": WORLD, "task": TASKS[name], "num_actions": 6, "max_turns": x.zero_turns}
    agent = build(AgentConfig(**options, model=x.model, wording="chatml", memory="reprompt", reply_tokens=24))
    params, frozen = agent.policy.init(jax.random.key(x.seed))
    started = time.process_time()
    played = evaluators(agent, 0)(x.zero_episodes)(params, frozen, jax.random.key(x.seed))
    row = {name: round(value, 4) for name, value in summarise(played).items() if name in FIGURES}
    return row | {"replies": int(played.turns.sum()), "cpu_seconds": round(time.process_time() - started)}


def load_or_compute(path: Path, compute: Callable[[], Any]) -> Any:
    """The contents of a JSON file; if there is none, the result of `compute`, which is written to it."""
    if not path.exists():
        write_whole(path, json.dumps(compute(), indent=1) + "\n")
    return json.loads(path.read_text())


def evaluate_as_it_is(x: Experiment, out: Path) -> dict[str, Any]:
    """The model as it is in each task; each result is in a file of its own as soon as it is there."""
    file = f"as-it-is-{x.seed}-{x.zero_episodes}x{x.zero_turns}-{{}}.json"
    names = (*TASKS, "crafter")
    return {"as_it_is": {name: load_or_compute(out / file.format(name), partial(as_it_is, x, name)) for name in names}}


def learn(x: Experiment, out: Path) -> dict[str, Any]:
    """Imitation and RL in one task, and what each reaches."""
    taught, learned = f"{x.task}-{x.seed}-imitation", f"{x.task}-{x.seed}-rl"
    sft = ["--episodes", x.demonstrations, "--noise", x.noise, "--sft.learning-rate", x.clone_rate]
    sft += ["--sft.batch-size", 2, "--sft.warmup", 0.1]
    imitation = summary_of(out, taught, "agent", "clone", "--model", x.model, *world(x), *map(str, sft), resume=True)
    if "greedy" not in imitation:
        raise ValueError(f"{out / taught} was evaluated in other episodes, by an earlier version: delete it")
    ppo: dict[str, Any] = {
        "num-envs": 32,
        "num-steps": 256,
        "epochs": 1,
        "minibatches": 4,
        "learning-rate": x.learning_rate,
    }
    ppo |= {"schedule": "linear", "schedule-updates": x.updates, "gamma": 0.9, "entropy-coef": 0.0, "kl-coef": 0.03}
    options = [str(part) for name, value in ppo.items() for part in (f"--ppo.{name}", value)]
    options += ["--ppo.invalid-reward", "-1", "--algo", "token_ppo", "--steps", str(x.updates * 32 * 256)]
    options += ["--run.checkpoint-every", "1"]
    options = ["--model", str(out / taught / "model"), *world(x), *options]
    rl = summary_of(out, learned, "agent", "train", *options, resume=True)
    log = [json.loads(line) for line in (out / learned / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in log if row.get("kind") == "train"]
    return {
        "after_imitation": imitation,
        "after_rl": rl,
        "training": {name: [row.get(name) for row in rows] for name in ("turns", "success", "episodes", "valid")},
        "rl_seconds": round(rows[-1]["seconds"]),
    }


def main() -> None:
    """Run what is not finished, and write the record."""
    x = parse(Experiment, description=__doc__)
    out = Path(x.out)
    same_options(x, out / f"{x.task}-{x.seed}.options.json")
    results = evaluate_as_it_is(x, out) if x.task == "none" else learn(x, out)
    record: dict[str, Any] = {
        "command": command(Path(__file__).name, x),
        "date": datetime.date.today().isoformat(),
        **info.stamp("experiments"),
        "machine": info.machine(),
        **results,
    }
    write_whole(out / f"{x.task}.json", json.dumps(record, indent=1) + "\n")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
