"""`llmrl report`: one page that needs no other file, whatever the files of the runs hold."""

from __future__ import annotations

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from llmrl_jax.cli import main as cli
from llmrl_jax.cli.parsing import command_of
from llmrl_jax.core.config import save_config
from llmrl_jax.core.statistics import mean_interval
from llmrl_jax.report import results
from llmrl_jax.report.video import write_gif
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.folder import Status, write_status
from llmrl_jax.workflows.rl_training import settings_class
from tests import browser


VOID = {"meta", "img", "br", "link", "hr", "input"}
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>$x^{$&amp;\x00\u202e"


class Strict(HTMLParser):
    """A page whose elements are all closed in order; its text, links, pictures, and the names of its elements."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.sources, self.text, self.ids = [], set(), [], [], []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        assert not any(name.startswith("on") for name, _ in attrs), attrs
        values = dict(attrs)
        assert len(values) == len(attrs) and not {"href", "srcset", "data", "action"} & set(values)
        self.sources += [values["src"]] if "src" in values else []
        self.ids += [values["id"]] if "id" in values else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.text.append(data)

    @property
    def cells(self) -> str:
        return "\n".join(part for part in self.text if part.strip())


def write_run(out: Path, name: str, returns, seed=0, seeds=1, rate=2.5e-4, **extra) -> Path:
    """A run of `rl train` as the loop leaves it."""
    kind = settings_class("ppo")
    default = kind()
    hyper = type(default.hyper)(learning_rate=rate)
    run = RunConfig(name=name, out=str(out), seed=seed)
    folder = out / name
    folder.mkdir(parents=True)
    save_config(kind(env="CartPole-v1", steps=300, seeds=seeds, ppo=hyper, run=run), folder / "config.json")
    lines = []
    for i, value in enumerate(returns, 1):
        line = {"kind": "train", "update": i, "updates": 1, "steps": 100 * i, "seconds": 2.0 * i, "episodes": 10.0}
        lines.append({**line, "steps_per_second": 50.0, "episode_return": value, "loss": 1 / i, **extra})
        evaluated = {"greedy/episode_return": 2 * value, "greedy/episode_return_low": value}
        lines.append({"kind": "eval", "update": i, "steps": 100 * i, **evaluated, "greedy/episode_return_high": 9.0})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    final = {"greedy/episode_return": 2 * returns[-1], "random/episode_return": 1.0}
    (folder / "eval-3.json").write_text(json.dumps({"update": 3, "seed": seed, "episodes": 7, **final}))
    summary = {"steps": 300, "commit": "0123456789ab", "versions": {"jax": "9.8.7"}, "machine": {"cpu": "Z80"}}
    (folder / "summary.json").write_text(json.dumps(summary | final))
    write_status(folder, Status(3, 3, "finished", saved=3))
    return folder


@pytest.fixture
def two_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for seed, last in enumerate((3.0, 5.0, 10.0)):
        write_run(Path("runs"), f"a{seed}", [1.0, 2.0, last], seed)
    write_run(Path("runs"), "b", [1.0, 2.0, 4.0], rate=0.5)
    return tmp_path


def written(*args: str) -> str:
    assert cli.main(["report", *args]) == 0
    return Path("report.html").read_text(encoding="utf-8")


def test_numbers_settings_and_origin_of_two_settings(two_settings):
    write_gif("runs/b/episode.gif", [np.zeros((4, 4, 3), np.uint8)] * 2)
    page = Strict(written("runs"))
    for needed in (
        results.estimate_text(mean_interval([3.0, 5.0, 10.0])),  # the last line of training
        results.estimate_text(mean_interval([6.0, 10.0, 20.0])),  # the evaluation
        "a0 and 2 more seeds", "0, 1, 2", "ppo.learning_rate", "0.5", "0123456789ab", "Z80", "jax 9.8.7",
        "llmrl rl train --steps=300 ", "--ppo.learning-rate=0.5", "b/episode.gif", "greedy/episode_return",
    ):  # fmt: skip
        assert needed in page.cells, needed
    pictures = [source.partition(",") for source in page.sources]
    assert [head for head, _, _ in pictures] == ["data:image/svg+xml;base64"] * 3 + ["data:image/gif;base64"]
    assert base64.b64decode(pictures[-1][2]) == Path("runs/b/episode.gif").read_bytes()
    assert len(page.ids) == len(set(page.ids)) and "script" not in page.tags
    # only what is asked, with the suffix and the folder
    assert cli.main(["report", "runs/b", "--metrics", "loss", "--out", "new/page", "--title", "T"]) == 0
    page = Strict(Path("new/page.html").read_text())
    assert "<h1>T</h1>" in Path("new/page.html").read_text() and len(page.sources) == 2


def test_seeds_of_one_program_are_seeds(two_settings):
    """Three runs, and one program with the same three seeds, have the same numbers."""
    folder = write_run(Path("one"), "three", [1.0, 2.0, 6.0], seeds=3)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line, values in zip(lines[0::2], ([1, 1, 1], [2, 2, 2], [3.0, 5.0, 10.0])):
        line |= {f"{i}/episode_return": value for i, value in enumerate(values)}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[0::2]))
    values = json.loads((folder / "eval-3.json").read_text()) | {"greedy/episode_return_runs": [6.0, 10.0, 20.0]}
    (folder / "eval-3.json").write_text(json.dumps(values))
    cells = Strict(written("one/three")).cells
    assert results.estimate_text(mean_interval([3.0, 5.0, 10.0])) in cells
    assert results.estimate_text(mean_interval([6.0, 10.0, 20.0])) in cells and "--seeds=3" in cells


def hostile_run(tmp_path: Path) -> Path:
    """A run whose names and values are markup wherever a file can hold any."""
    folder = write_run(tmp_path, "x", [1.0, 2.0, 3.0], **{HOSTILE + "loss": 1.0})
    for name in ("config.json", "summary.json", "eval-3.json"):
        values = json.loads((folder / name).read_text())
        values |= {"env": HOSTILE, "commit": HOSTILE, "versions": {HOSTILE: HOSTILE}, "machine": {"cpu": HOSTILE}}
        values |= {HOSTILE: 3.0} if name != "config.json" else {}
        (folder / name).write_text(json.dumps(values if name != "config.json" else values | {"kind": HOSTILE}))
    write_status(folder, Status(1, 3, "failed", HOSTILE))
    (folder / "episode.gif").write_bytes(b"<script>alert(3)</script>")
    renamed = tmp_path / HOSTILE.replace("\x00", "").replace("/", "")
    folder.rename(renamed)
    return renamed


def test_what_files_hold_is_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = written(str(hostile_run(tmp_path)))
    page = Strict(text)
    assert "script" not in page.tags and "alert(1)" in page.cells and "onerror" in page.cells
    assert all(source.startswith("data:image/svg+xml;base64,") for source in page.sources)
    assert "default-src 'none'" in text and "\x00" not in text
    assert not re.search(r"https?://|//[a-z]", re.sub(r"base64,[^\"]+", "", text))


@pytest.mark.skipif(browser.PROGRAM is None, reason="no browser is installed: Chromium or Chrome, on the path")
def test_a_browser_shows_it(tmp_path, two_settings):
    write_gif("runs/b/episode.gif", [np.zeros((4, 4, 3), np.uint8)] * 2)
    written("runs", str(hostile_run(tmp_path)))
    address = (tmp_path / "report.html").as_uri()
    with browser.opened(tmp_path / "browser") as tab:
        assert tab.open(address) == [] and tab.broken_pictures() == []
        assert {x for x in tab.requests() if not x.startswith("data:")} == {address}
        assert tab.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        page = Strict(tab.run("document.documentElement.outerHTML"))  # as the browser read it
        assert tab.run("Array.from(document.images).every(image => image.getBoundingClientRect().width > 1)")
    assert "script" not in page.tags and "Final numbers" in page.cells and "alert(1)" in page.cells
    assert sum(source.startswith("data:image/svg+xml") for source in page.sources) >= 4


def test_runs_without_metrics_are_listed(two_settings):
    folder = write_run(Path("runs"), "c", [1.0, 2.0, 3.0], rate=0.75)
    for name in ("metrics.jsonl", "eval-3.json", "summary.json"):
        (folder / name).unlink()
    (folder / "config.json").write_text(json.dumps({"kind": "old train", "version": 1, "env": "E", "run": {"seed": 1}}))
    cells = Strict(written("runs")).cells
    assert "llmrl old train" in cells and "unknown" in cells


def test_bad_input(two_settings, capsys):
    for args, message in (
        ([], "of runs"),
        (["runs/q"], "runs/q"),
        (["runs", "runs/b"], "run once"),
        (["runs/b", "--metrics", "nope"], "'nope'"),
        (["runs/b", "--out", "a.png"], ".png"),
        (["runs/b", "--out", "runs/b/config.json"], "exists already"),
    ):
        assert cli.main(["report", *args]) == 2, args
        assert message in capsys.readouterr().err
    assert not Path("report.html").exists()


def test_the_command_of_a_run_makes_its_settings(tmp_path):
    folder = write_run(tmp_path, "s", [1.0, 2.0, 3.0], seed=4)
    values = json.loads((folder / "config.json").read_text())
    config = settings_class("dqn")(env="CartPole-v1", steps=7, run=RunConfig(seed=4, tensorboard=True))
    values = {"kind": "rl train", **values}
    line = command_of({**values, "algo": "dqn"}, config, folder).split()
    flags = "--algo=dqn --steps=7 --run.seed=4 --run.log-every=1 --run.checkpoint-every=50 --run.tensorboard"
    assert line[:3] == ["llmrl", "rl", "train"] and sorted(line[3:]) == sorted(flags.split())
    assert command_of({"kind": "old train"}, {}, folder) == ""
