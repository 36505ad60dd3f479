"""A real language model as ELLM's suggester: SmolLM2 plain, with more examples, and fine-tuned, beside rules.

    make smollm2                                                        # the model, once
    python experiments/ellm_suggesters.py                               # everything
    python experiments/ellm_suggesters.py --table plain --learn         # one row of the table, no learning

1. An agent learns from the oracle's goals; the states of its held-out episodes are divided into two halves by a hash.
2. The oracle's answers for the training half (`llmrl ellm answers`) fine-tune SmolLM2 with adapters (`llmrl lm sft`).
3. Every suggester is asked about the same states of the other half (`llmrl ellm accuracy`): the four-way table.
4. Agents learn from the suggesters' goals (`llmrl ellm pretrain --suggester chat`).

Runs are written to `<out>/NAME`; what is finished is read, what is not is continued, so it can be stopped at any time.
`<out>/results.json` has the table and the held-out episodes of the agents that are asked for, and the time that each
part took.
"""

from __future__ import annotations

import datetime
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from commands import command
from ellm_runs import evaluated
from finished import complete, continued, same_settings

from llmrl_jax.core.config import save_config
from llmrl_jax.core.files import write_whole
from llmrl_jax.options.command import parse
from llmrl_jax.run import info
from llmrl_jax.run.config import BaseRunConfig, RunConfig
from llmrl_jax.systems.ellm.accuracy import accuracy, visited_states, write_answers
from llmrl_jax.systems.ellm.config import CHAT, AccuracyRun, AnswersRun, EllmConfig, PretrainRun, preset
from llmrl_jax.tuning import SFTConfig
from llmrl_jax.workflows.chat_model import ChatConfig
from llmrl_jax.workflows.tuning import TuneConfig, sft


SUGGESTERS = ("scripted", "plain", "fewshot", "tuned")


@dataclass(frozen=True)
class Experiment:
    """Suggesters of ELLM, and the agents that learn from them."""

    table: tuple[str, ...] = SUGGESTERS
    """Suggesters that are asked about held-out states: `scripted` reads the prompt by rules; `plain` is the model with
    the published prompt; `fewshot` has `shots` of the oracle's answers in it; `tuned` is fine-tuned, with none."""
    learn: tuple[str, ...] = ("tuned",)
    """Suggesters that an agent learns from, beside the oracle."""
    model: str = "smollm2-135m"
    """The language model, as in `llmrl lm`."""
    states: int = 64
    """Held-out states that every suggester is asked about."""
    rows: int = 400
    """States whose answers the model is tuned on, at most."""
    episodes: int = 300
    """Episodes in which states are met."""
    shots: int = 8
    """Examples in the prompt of `fewshot`."""
    epochs: float = 0.6
    """Passes of fine-tuning."""
    steps: int = 100_000
    """Environment steps of every agent."""
    seed: int = 0
    """Seed of the agents and of the episodes."""
    out: str = "runs/ellm_suggesters"
    """Folder of the runs and of the results."""

    @property
    def ellm(self) -> EllmConfig:
        """The preset of all agents."""
        return replace(preset("embedded"), encoder="hashed")


def learned(x: Experiment, name: str, **changes: Any) -> dict[str, Any]:
    """An agent that learns from a suggester, and its held-out episodes."""
    run = RunConfig(out=x.out, name=name, seed=x.seed, log_every=50, checkpoint_every=50, keep=1)
    return evaluated(PretrainRun(**{"ellm": x.ellm, "steps": x.steps, "run": run, **changes}))


def answered(x: Experiment, met: dict[str, Any]) -> Path:
    """The file of the oracle's answers, which is written if it is not there. **Arguments:** `met`, where states are."""
    file, settings = (Path(x.out) / f"answers.{kind}" for kind in ("jsonl", "json"))
    none = replace(x.ellm, suggester="chat", goals=replace(x.ellm.goals, shots=0))
    config = AnswersRun(file=file, ellm=none, states=x.rows, seed=x.seed, **met)
    if not (same_settings(settings, config) and file.exists()):
        write_answers(config)
        save_config(config, settings)
    return file


def tuned(x: Experiment, answers: Path) -> Path:
    """The folder of the adapters that are tuned on the oracle's answers."""
    run = RunConfig(out=x.out, name="tuned", log_every=2, checkpoint_every=10)
    how = SFTConfig(batch_size=2, learning_rate=1e-3)
    config = TuneConfig(model=x.model, data=answers, length=512, epochs=x.epochs, sft=how, run=run)
    return complete(config, sft) / "adapter"


def asked(x: Experiment, name: str, answers: Path) -> dict[str, Any]:
    """The changes of settings that make a suggester: its model, and the examples of its prompt."""
    goals, chat = x.ellm.goals, CHAT
    if name != "scripted":
        chat = replace(CHAT, model=f"local:{x.model}")
    if name == "fewshot":
        goals = replace(goals, shots=x.shots, examples=str(answers))
    if name == "tuned":
        goals, chat = replace(goals, shots=0), replace(chat, adapter=str(tuned(x, answers)))
    return {"ellm": replace(x.ellm, suggester="chat", goals=goals), "chat": _cached(x, name, chat)}


def _cached(x: Experiment, name: str, chat: ChatConfig) -> ChatConfig:
    """One cache of replies per suggester: an agent meets many states that the table has."""
    return chat if name == "scripted" else replace(chat, cache=str(Path(x.out) / f"{name}.sqlite"))


def main() -> None:
    x = parse(Experiment, description=__doc__)
    out = Path(x.out)
    results = out / "results.json"
    seconds = json.loads(results.read_text())["seconds"] if results.exists() else {}
    found: dict[str, Any] = {"table": {}, "agents": {}, "seconds": seconds}

    def note(part: str, name: str, value: dict[str, Any], took: float) -> None:
        """Add to the results; the time only of what was not read from a finished run."""
        found[part][name] = value
        seconds.update({f"{part}/{name}": round(took)} if took > 1 else {})
        rest = {"command": command(Path(__file__).name, x), "date": datetime.date.today().isoformat()}
        rest |= {"machine": info.stamp("experiments")}
        write_whole(results, json.dumps({**found, **rest}, indent=1) + "\n")

    started = time.monotonic()
    oracle = learned(x, "oracle")
    note("agents", "oracle", oracle, time.monotonic() - started)
    met: dict[str, Any] = {"from_run": f"{x.out}/oracle", "episodes": x.episodes}
    answers = answered(x, met)
    met |= {"states": x.states, "half": "held-out"}
    states = None
    for name in x.table:
        run = BaseRunConfig(out=x.out, name=f"table-{name}", seed=x.seed)
        config, file = AccuracyRun(**asked(x, name, answers), **met, run=run), run.folder / "accuracy.json"
        started = time.monotonic()
        if not (same_settings(run.folder / "config.json", config) and file.exists()):
            states = visited_states(config, x.seed) if states is None else states
            started = time.monotonic()
            accuracy(continued(config), states)
        note("table", name, json.loads(file.read_text()), time.monotonic() - started)
    for name in x.learn:
        started = time.monotonic()
        agent = learned(x, f"learned-{name}", **asked(x, name, answers))
        note("agents", name, agent, time.monotonic() - started)
    print(f"Everything is in {out}")


if __name__ == "__main__":
    main()
