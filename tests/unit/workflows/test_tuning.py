"""Settings of fine-tuning runs: the date that chat templates write, and options that nothing would read."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from llmrl_jax.lm import LoRAConfig
from llmrl_jax.run.config import RunConfig
from llmrl_jax.workflows.tuning import GrpoRun, TuneConfig, with_template


CONFIG = GrpoRun(model="here", data="rows.jsonl", reward="exact")


def test_a_resumed_run_reads_the_date_of_its_start(tmp_path):
    (tmp_path / "chat_template.jinja").write_text("{{ strftime_now('%d.%m.%Y') }}")
    started, template = with_template(CONFIG, tmp_path)
    today = date.today()
    assert abs((date.fromisoformat(started.date) - today).days) <= 1
    resumed = replace(started, date="2024-07-26", run=RunConfig(name="x", resume=True))
    config, template = with_template(resumed, tmp_path)
    assert config == resumed and template.render([]) == "26.07.2024"
    old = replace(resumed, date="")  # of a version without dates: its settings must stay the same
    assert with_template(old, tmp_path)[0] == old


def test_other_templates_need_no_date(tmp_path):
    assert with_template(CONFIG, tmp_path) == (CONFIG, None)
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    config, template = with_template(CONFIG, tmp_path)
    assert config is CONFIG and template.source == "{{ messages }}"


def test_dates_are_checked():
    with pytest.raises(ValueError, match="date.*'26 Jul 2024'.*2026-11-23"):
        replace(CONFIG, date="26 Jul 2024")


@pytest.mark.parametrize(
    ("changes", "option"),
    [({"run": RunConfig(eval_every=5)}, "eval.every"), ({"tune": "full", "lora": LoRAConfig(rank=4)}, "lora.rank")],
)
def test_options_that_nothing_reads_are_refused(changes, option):
    with pytest.raises(ValueError, match=option):
        replace(CONFIG, **changes)
    with pytest.raises(ValueError, match=option):
        TuneConfig(model="here", data="rows.jsonl", **changes)
    assert replace(CONFIG, eval_data="held_out.jsonl", run=RunConfig(eval_every=5)).run.eval_every == 5
