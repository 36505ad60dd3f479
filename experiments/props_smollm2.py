"""SmolLM2-135M as ProPS's optimizer on three tasks: as it is, taught the form of a reply, and then tuned by GRPO.

    make smollm2
    python experiments/props_smollm2.py                       # everything
    python experiments/props_smollm2.py --updates 0           # without GRPO

1. The scripted adviser answers prompts that show random policies. Its answers fine-tune SmolLM2 with adapters, which
   are merged into the model (`sft`).
2. GRPO improves that model on the returns of its proposals (`llmrl props finetune`): `tuned`.
3. `plain`, `sft`, `tuned` and the scripted adviser look for policies (`llmrl props run`) from the same random ones,
   with one number of proposals; random search draws about as many.

Runs are written to `<out>`; what is finished is read, what is not is continued, so that it can be stopped at any time.
`<out>/results.json` has the table of what is asked for, with the seconds that each part took.
"""

from __future__ import annotations

import datetime
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from commands import command
from finished import complete, continued, finished

from llmrl_jax import lm
from llmrl_jax.chat import Message
from llmrl_jax.core.files import replacing, write_whole
from llmrl_jax.options.command import parse
from llmrl_jax.run import info
from llmrl_jax.run.config import BaseRunConfig, RunConfig
from llmrl_jax.systems.props.config import FinetuneConfig, FinetuneRun, PropsConfig, PropsRun, ReplyConfig
from llmrl_jax.systems.props.finetune import finetune, make_questions, make_settings
from llmrl_jax.systems.props.prompts import HistoryView
from llmrl_jax.systems.props.scripted import PolicyAdviser
from llmrl_jax.systems.props.train import run_searches
from llmrl_jax.tuning import ChatTemplate, GRPOConfig, SFTConfig
from llmrl_jax.workflows.chat_model import ChatConfig
from llmrl_jax.workflows.tuning import TuneConfig, sft


SEARCHERS = ("scripted", "random_search", "plain", "sft", "tuned")
TAUGHT = 0x5F7
"""Folded into the seed for the random policies of the adviser's prompts, which are not those of GRPO."""


@dataclass(frozen=True)
class Experiment:
    """SmolLM2 as the optimizer, before and after fine-tuning."""

    model: str = "smollm2-135m"
    """The language model, as in `llmrl lm`."""
    tasks: tuple[str, ...] = ("nim", "mountain_car_continuous", "cartpole")
    """Tasks, on which it is tuned and tested."""
    searchers: tuple[str, ...] = SEARCHERS
    """Who searches: the scripted adviser, random search, and the model as it is, after imitation, and after GRPO.
    A search stops after eleven replies in a row without a valid policy."""
    shown: int = 2
    """Policies that a prompt shows, in tuning and in searches."""
    replies: int = 80
    """The adviser's replies for each task."""
    learning_rate: float = 1e-3
    """Peak step size of imitation."""
    updates: int = 8
    """Updates of GRPO; 0: none."""
    prompts: int = 2
    """Prompts of an update."""
    group: int = 8
    """Answers to each."""
    grpo_rate: float = 3e-4
    """Step size of GRPO."""
    warmup: int = 20
    """Random policies before the first proposal of a search."""
    iterations: int = 30
    """Proposals of a search; random search draws as many policies as this and the former, in whole rounds of 8."""
    max_tokens: int = 96
    """Tokens of a reply, at most."""
    seeds: int = 1
    """Searches for each task."""
    seed: int = 0
    """Seed of everything."""
    out: str = "runs/props_smollm2"
    """Folder of the runs and of the results."""

    def data(self, policies: int) -> FinetuneConfig:
        """Prompts with random policies, and the rewards of answers."""
        return FinetuneConfig(
            tasks=self.tasks, policies=policies, history=self.shown, eval_prompts=8, explain=False, format_weight=0.1
        )


ADAPTERS = lm.LoRAConfig(rank=16, alpha=32.0, targets=lm.lora.TARGETS)


def run_of(x: Experiment, name: str, **more: Any) -> RunConfig:
    """The settings of a run."""
    return RunConfig(out=x.out, name=name, seed=x.seed, log_every=1, keep=1, **more)


def advised(x: Experiment) -> Path:
    """A file of prompts with the adviser's replies. **Raises:** `ValueError` if it has others."""
    file = Path(x.out) / "replies.jsonl"
    data = x.data(x.replies * x.shown * 5 // 4)  # a fifth is held out, and not used here
    settings = make_settings(data, jax.random.fold_in(jax.random.key(x.seed), TAUGHT))
    adviser, rng, lines = PolicyAdviser(), random.Random(x.seed), []
    for question in make_questions(data, settings)[0]:
        line = adviser.advise([Message("user", question.text)], rng).splitlines()[0]
        said = (("user", question.text), ("assistant", line))
        lines.append(json.dumps({"messages": [{"role": role, "content": text} for role, text in said]}) + "\n")
    text = "".join(lines)
    if file.exists() and file.read_text() != text:
        raise ValueError(f"{file} was made with other settings: put these back, or choose another --out")
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, text)
    return file


def taught(x: Experiment, replies: Path) -> dict[str, Any]:
    """Imitate the adviser, and write the merged model to `<out>/sft/model`. **Returns:** the last loss."""
    how, run = SFTConfig(batch_size=4, learning_rate=x.learning_rate), run_of(x, "sft", checkpoint_every=20)
    config = TuneConfig(model=x.model, data=replies, length=704, lora=ADAPTERS, sft=how, run=run)
    folder = complete(config, sft)
    if not (folder / "model").exists():
        base = lm.locate(x.model)
        template, tokenizer = ChatTemplate.load(base), lm.load_tokenizer(base)
        model, variables = lm.load_adapter(folder / "adapter", *lm.load(x.model))
        assert model.lora is not None and template is not None
        merged = lm.merge(variables["params"], variables["lora"], model.lora)
        with replacing(folder / "model") as draft:
            lm.save_hf(draft, model.config, merged, end_tokens=lm.end_tokens(base, tokenizer))
            tokenizer.save(draft)
            (draft / "chat_template.jinja").write_text(template.source, encoding="utf-8")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    return {"updates": len(losses), "first_loss": losses[0], "last_losses": sum(losses[-10:]) / len(losses[-10:])}


def improved(x: Experiment) -> dict[str, Any]:
    """GRPO from the taught model. **Returns:** its rewards on held-out prompts, before and after."""
    how = GRPOConfig(
        prompts=x.prompts,
        group=x.group,
        max_new_tokens=x.max_tokens,
        microbatches=x.group,
        learning_rate=x.grpo_rate,
    )
    config = FinetuneRun(
        model=str(Path(x.out) / "sft" / "model"),
        data=x.data(600),
        lora=ADAPTERS,
        updates=x.updates,
        grpo=how,
        run=run_of(x, "grpo", checkpoint_every=1),
    )
    summary = json.loads((complete(config, finetune) / "summary.json").read_text())
    return {name: summary[name] for name in ("updates", "scales", "before", "after")}


def searched(x: Experiment, who: str) -> dict[str, Any]:
    """The searches of one searcher: the best policy of each in fresh episodes, and the replies that were valid."""
    search = PropsConfig(
        iterations=x.iterations,
        warmup=x.warmup,
        explain=False,
        history=HistoryView(top=x.shown),
        reply=ReplyConfig(retries=0),
    )
    if who == "random_search":
        search = PropsConfig(method=who, iterations=x.warmup + x.iterations)
    models = {"plain": x.model, "sft": f"{x.out}/sft/model", "tuned": f"{x.out}/sft/model"}
    chat = ChatConfig()
    if who in models:
        adapter = f"{x.out}/grpo/adapter" if who == "tuned" else ""
        chat = ChatConfig(model=f"local:{models[who]}", adapter=adapter, max_tokens=x.max_tokens)
    run = BaseRunConfig(out=x.out, name=f"search-{who}", seed=x.seed)
    config = PropsRun(x.tasks, x.seeds, search, chat, workers=1, print_every=10, run=run)
    summary = run.folder / "summary.json"

    def ended() -> bool:
        """Return whether all searches ended, some perhaps because no reply could be read any more."""
        searches = json.loads(summary.read_text())["searches"] if finished(run.folder, config) else []
        return bool(searches) and all(one["finished"] for one in searches)

    if not ended():
        run_searches(continued(config))
        if not ended():
            raise SystemExit(f"{run.folder} was stopped: the same command goes on with it")
    return {"searches": json.loads(summary.read_text())}


def main() -> None:
    x = parse(Experiment, description=__doc__)
    file = Path(x.out) / "results.json"
    seconds = json.loads(file.read_text())["seconds"] if file.exists() else {}
    rows: dict[str, Any] = {}

    def note(name: str, make: Callable[[], Any]) -> None:
        """Add to the results, with the time of what was not there yet."""
        started = time.monotonic()
        rows[name] = make()
        took = time.monotonic() - started
        seconds.update({name: round(took)} if took > 2 else {})
        results = {
            "rows": rows,
            "seconds": seconds,
            "command": command(Path(__file__).name, x),
            "date": datetime.date.today().isoformat(),
            "machine": info.stamp("experiments"),
        }
        write_whole(file, json.dumps(results, indent=1) + "\n")

    replies = advised(x)
    note("imitation", lambda: taught(x, replies))
    if x.updates:
        note("grpo", lambda: improved(x))
    for who in x.searchers:
        if who != "tuned" or x.updates:
            note(who, lambda who=who: searched(x, who))
    print(f"Everything is in {x.out}")


if __name__ == "__main__":
    main()
