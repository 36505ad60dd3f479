"""Commands whose options are a dataclass: where settings come from, what wins, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
import tyro

from llmrl_jax.core import config as configs
from llmrl_jax.core.checks import at_least
from llmrl_jax.core.config import FREE
from llmrl_jax.options.command import command, parse, whole_number
from llmrl_jax.options.settings import blank, checked, overlaid, read_values, to_yaml
from llmrl_jax.run.config import BaseRunConfig, RunConfig, flag, resumed
from llmrl_jax.run.folder import begin, check_folder, open_folder


@dataclass(frozen=True)
class Learner:
    rate: float = 0.1
    """Step size."""
    batch: int = 8
    """Rows in a step."""
    targets: tuple[str, ...] = ("q", "v")
    """What is trained."""

    def __post_init__(self):
        at_least("batch", self.batch, 1)


@dataclass(frozen=True)
class World:
    env: str = "Catch"
    """World."""
    limit: int | None = None
    """Steps of an episode."""


@dataclass(frozen=True)
class Config:
    KIND: ClassVar[str] = "toy train"

    model: str
    """A folder."""
    world: Annotated[World, tyro.conf.arg(name="")] = field(default_factory=World)
    learner: Learner = field(default_factory=Learner)
    source: Annotated[str, tyro.conf.arg(name="from")] = ""
    """Where from."""
    steps: int = field(default=100, metadata=FREE)
    """Steps."""
    run: RunConfig = field(default_factory=RunConfig)

    @staticmethod
    def upgraded(values: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"steps" if name == "num_steps" else name: value for name, value in values.items() if name != "preset"}


@dataclass(frozen=True)
class Other:
    KIND: ClassVar[str] = "lm other"

    run: BaseRunConfig = field(default_factory=BaseRunConfig)


PRESETS = {"small": Learner(batch=2), "big": Learner(batch=64, rate=0.5)}


def start(get) -> Config:
    return replace(Config("m"), learner=PRESETS[get("preset") or ("big" if get("env") == "Maze" else "small")])


@command(Config, start=start, preset="small", preset_help="Where to begin.")
def train(config: Config) -> int:
    """Train."""
    if config.run.name:
        begin(open_folder(config.run), config)
    done.append(config)
    return 0


@command(Config)
def plain(config: Config) -> int:
    """Train."""
    done.append(config)
    return 0


@command(Other)
def other(config: Other) -> int:
    """Do something else."""
    begin(open_folder(config.run), config)
    return 0


done: list[Config] = []


def call(*args: str, of: Any = train) -> Config:
    assert parse(of.prepare(args), "toy", args) == 0
    return done[-1]


def test_whole_numbers_as_users_write_them():
    for text, value in {"12": 12, "-3": -3, "1e6": 10**6, "1.5e6": 1_500_000, "2_000_000": 2_000_000, "5.0": 5}.items():
        assert whole_number(text) == value
    assert whole_number(str(2**63 - 1)) == 2**63 - 1
    for text in ("1.5", "1e-3", "x", "", "nan", "inf"):
        with pytest.raises(ValueError, match="whole number"):
            whole_number(text)
    for text in ("1e99", "99999999999999999999", str(2**63), "-1e30"):
        with pytest.raises(ValueError, match=f"'{text}'.*9223372036854775807"):
            whole_number(text)


def test_every_integer_option_takes_them(capsys):
    found = call("--steps", "1.5e6", "--learner.batch", "1e3", "--limit", "2_0", "--run.keep", "3e0")
    assert (found.steps, found.learner.batch, found.world.limit, found.run.keep) == (1_500_000, 1000, 20, 3)
    with pytest.raises(SystemExit):
        call("--steps", "1.5")
    assert "--steps: '1.5'" in capsys.readouterr().err


def test_the_value_of_a_flag():
    args = ["--a", "1", "--b=2", "--run.resume", "--c_d", "3", "--a=4"]
    assert [flag(args, name) for name in ("--a", "--b", "--run.resume", "--c-d", "--x")] == ["4", "2", "", "3", None]


def test_defaults_preset_file_and_flags_in_this_order(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("learner:\n  rate: 1e-3\nlimit: 010\nsteps: 2e3\nenv: Maze\nfrom: x\nrun: {progress: off}\n")
    assert call() == Config("m", learner=Learner(batch=2))
    assert call("--preset", "big").learner == PRESETS["big"]
    found = call("--config", str(file))
    assert found.learner == Learner(rate=0.001, batch=64), "the preset of the world that the file names"
    assert (found.steps, found.world.env, found.source, found.run.progress) == (2000, "Maze", "x", "off")
    assert found.world.limit == 10, "no octal number"
    found = call(f"--config={file}", "--preset", "small", "--learner.rate", "3", "--from", "y")
    assert found.learner == Learner(rate=3.0, batch=2) and found.source == "y"
    file.write_text("preset: big\n")
    assert call("--config", str(file)).learner.batch == 64
    assert call("--config", str(file), "--preset", "small").learner.batch == 2


def test_what_is_printed_is_read_back(tmp_path, capsys):
    before = len(done)
    args = ["--steps", "7", "--learner.rate", "1e-5", "--learner.targets", "off", "1e3", "--run.progress", "off"]
    assert parse(train.prepare([*args, "--print-config"]), "toy", [*args, "--print-config"]) == 0
    assert len(done) == before, "nothing is run"
    text = capsys.readouterr().out
    assert text.startswith("kind: toy train\nversion: 1\nmodel: m\n")
    for name in ("a.yaml", "a.json"):
        values = read_yaml(text, tmp_path) if name.endswith("json") else text
        (tmp_path / name).write_text(json.dumps(values) if name.endswith("json") else values)
        assert call("--config", str(tmp_path / name)) == call(*args)


def test_a_file_of_toml(tmp_path):
    (tmp_path / "a.toml").write_text('env = "Maze"\nsteps = 7\n\n[learner]\nrate = 1e-5\ntargets = ["off", "1e3"]\n')
    config = call("--config", str(tmp_path / "a.toml"))
    assert config.learner == Learner(rate=1e-5, batch=config.learner.batch, targets=("off", "1e3"))
    assert (config.steps, config.world.env) == (7, "Maze")
    with pytest.raises(FileNotFoundError, match=r"'a\.toml'"):
        call("--config", str(tmp_path / "b.toml"))


def read_yaml(text: str, folder) -> dict[str, Any]:
    (folder / "read.yaml").write_text(text)
    return read_values(folder / "read.yaml")[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stepz: 3", "a.yaml.*'stepz'.*'steps'"),
        ("learner: {bach: 3}", "a.yaml.*'learner.bach'.*'batch'"),
        ("enw: x", "a.yaml.*'enw'.*'env'"),
        ("steps: 1.5", "a.yaml: steps.*1.5.*int"),
        ("learner: {rate: fast}", "a.yaml: learner.rate.*'fast'.*float"),
        ("- steps", r"a\.yaml.*list"),
        ("steps: [", "not YAML"),
        ("kind: lm other\nversion: 1", "a.yaml.*`llmrl lm other`.*`llmrl toy train`"),
        ("kind: toy train\nversion: 9", "llmrl_jax"),
        (f"learner: {{rate: {'9' * 401}}}", "a.yaml: learner.rate.*9+.*1.8e308"),
        (f"steps: {'9' * 5000}", "a.yaml.*YAML: Exceeds"),
        ("steps: " + "[" * 3000, "YAML.*nested"),
        ("steps: 2026-13-23", "a.yaml: steps.*'2026-13-23'.*int"),
        ("steps: !!timestamp 2026-13-23", "a.yaml.*YAML.*1..12"),
        ("steps: !!timestamp x", r"a\.yaml.*YAML: "),
        ("steps: !!bool x", r"a\.yaml.*YAML: "),
        ("steps: !!int x", r"a\.yaml.*YAML: invalid"),
    ],
)
def test_a_file_that_cannot_be_is_named(tmp_path, text, message):
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        train.prepare(["--config", str(tmp_path / "a.yaml")])


@pytest.mark.parametrize("date", ["2026-11-23", "2026-13-23", "2001-12-14t21:59:43.10-05:00", "="])
def test_a_date_is_a_string(tmp_path, date):
    """YAML 1.2 has no dates."""
    (tmp_path / "a.yaml").write_text(f"from: {date}")
    found = call("--config", str(tmp_path / "a.yaml"))
    assert found.source == date
    (tmp_path / "b.yaml").write_text(to_yaml(found))
    assert call("--config", str(tmp_path / "b.yaml")) == found


def test_a_file_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    def refused(self, **how):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "a.yaml").write_text("steps: 3")
    monkeypatch.setattr(Path, "read_text", refused)
    with pytest.raises(PermissionError, match="a.yaml.*Permission denied.*YAML"):
        train.prepare(["--config", str(tmp_path / "a.yaml")])


def test_a_file_that_is_missing_is_named(tmp_path):
    (tmp_path / "sft.yaml").write_text("{}")
    with pytest.raises(FileNotFoundError, match="sft.yml.*'sft.yaml'"):
        train.prepare(["--config", str(tmp_path / "sft.yml")])


def test_flags_may_repair_what_a_file_says(tmp_path):
    (tmp_path / "a.yaml").write_text("learner: {batch: 0}")
    assert call("--config", str(tmp_path / "a.yaml"), "--learner.batch", "4").learner.batch == 4
    with pytest.raises(ValueError, match=r"^--learner\.batch.*0.*1"):
        call("--config", str(tmp_path / "a.yaml"))


def test_an_option_without_a_default_may_come_from_a_file(tmp_path, capsys):
    (tmp_path / "a.yaml").write_text("model: here")
    assert call("--config", str(tmp_path / "a.yaml"), of=plain) == Config("here")
    with pytest.raises(SystemExit):
        call(of=plain)
    assert "--model" in capsys.readouterr().err


def test_a_run_is_resumed_by_its_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    begun = call("--run.name", "a", "--env", "Maze", "--learner.batch", "3", "--run.max-seconds", "5")
    saved = json.loads((tmp_path / "runs" / "a" / "config.json").read_text())
    assert list(saved)[:2] == ["kind", "version"] and (saved["kind"], saved["version"]) == ("toy train", 1)
    same = replace(begun, run=replace(begun.run, resume=True, max_seconds=0.0))
    for args in (["runs/a"], ["runs/a/"], ["a"], ["--run.name", "a"], ["--run.name=a", "--run.out", "runs"]):
        assert call("--run.resume", *args) == same, args
    assert call("--run.resume=runs/a", "--steps", "1e3") == replace(same, steps=1000), "FREE: the flag wins"
    assert call("--run.resume", "runs/a", "--preset", "small") == same, "the run's own settings stand"
    assert capsys.readouterr().err == "note: the preset has no effect: the run runs/a keeps its own settings\n"
    found = call("--run.resume", str(tmp_path / "runs" / "a"))
    assert found == replace(same, run=replace(same.run, out=str(tmp_path / "runs")))
    with pytest.raises(ValueError, match="runs/a.*--learner.batch: 3 -> 4"):
        call("--run.resume", "runs/a", "--learner.batch", "4")
    with pytest.raises(FileNotFoundError, match="'b'.*runs"):
        call("--run.resume", "runs/b")
    with pytest.raises(FileExistsError, match="runs/a.*--run.resume runs/a"):
        call("--run.name", "a")
    assert resumed(Config, "runs/a", steps=9) == replace(same, steps=9), "from Python"
    with pytest.raises(ValueError, match="model: "):
        resumed(Config, "runs/a", model="another")


def test_a_file_may_name_the_run_to_resume(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    begun = call("--run.name", "a", "--env", "Maze")
    for text in ("run: {resume: runs/a}", "run: {name: a, resume: true}\nsteps: 5"):
        (tmp_path / "a.yaml").write_text(text)
        found = call("--config", "a.yaml")
        assert found == replace(begun, steps=found.steps, run=replace(begun.run, resume=True))
    assert found.steps == 5
    assert call("--config", "a.yaml", "--run.resume").run.resume, "a flag without a value keeps the file's folder"
    (tmp_path / "b.yaml").write_text("run: {resume: runs/a}")
    assert call("--config", "b.yaml", "--run.resume").run.name == "a"
    with pytest.raises(ValueError, match="--config"):
        call("--config", "")
    (tmp_path / "a.yaml").write_text("run: {name: a, resume: true, resume_from: 24}")
    with pytest.raises(FileNotFoundError, match="--run.resume-from.*24"):
        call("--config", "a.yaml")
    assert call("--config", "a.yaml", "--run.resume-from=-1").run.resume_from == -1, "as a requeued job has it"
    new = call("--config", "b.yaml", "--run.resume", "False", "--run.name", "c")
    assert (new.run.resume, new.run.name) == (False, "c"), "a flag may take it back"
    for text, wrong in (
        ("{resume: true, name: [a]}", r"run.name.*\['a'\].*str"),
        ("{resume: true, name: a, out: 3}", "run.out.*3.*str"),
        ("{resume: 3}", "run.resume.*3.*bool.*str"),
        ("{resume: {a: 1}}", "run.resume.*{'a': 1}.*bool.*str"),
    ):
        (tmp_path / "b.yaml").write_text(f"run: {text}")
        with pytest.raises(ValueError, match=f"b.yaml: {wrong}"):
            call("--config", "b.yaml")


def test_another_runs_settings_make_a_new_run(tmp_path):
    call("--run.name", "a", "--run.out", str(tmp_path), "--steps", "3", "--run.keep", "9")
    for path in (tmp_path / "a", tmp_path / "a" / "config.json"):
        found = call("--config", str(path))
        assert (found.steps, found.run.keep, found.run.name, found.run.resume) == (3, 9, "", False)
    found = configs.to_json(Config("m", learner=PRESETS["big"], run=RunConfig("a", keep=9)))
    (tmp_path / "a" / "config.json").write_text(
        json.dumps({"preset": "gone", "num_steps": found.pop("steps"), **found})
    )
    assert call("--config", str(tmp_path / "a")) == Config("m", learner=PRESETS["big"], run=RunConfig(keep=9))


def test_a_copy_of_a_runs_settings_makes_a_new_run(tmp_path, monkeypatch):
    """Wherever it is, and also of a run that was resumed."""
    monkeypatch.chdir(tmp_path)
    call("--run.name", "a", "--steps", "7")
    saved = replace(done[-1], run=replace(done[-1].run, resume=True))
    (tmp_path / "copy").mkdir()
    configs.save_config(saved, tmp_path / "copy" / "config.json")
    found = call("--config", "copy/config.json", "--run.name", "b")
    assert (found.steps, found.run.name, found.run.resume) == (7, "b", False)
    assert call("--config", "copy/config.json").run.name == ""


def test_a_file_of_that_name_that_a_user_wrote_keeps_its_name_and_preset(tmp_path, monkeypatch):
    """It is not a run's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"preset": "big", "run": {"name": "mine", "seed": 3}}))
    read = call("--config", str(tmp_path / "config.json"))
    assert (read.learner, read.run.name, read.run.seed) == (PRESETS["big"], "mine", 3)
    moved = {**configs.stamped(Config("m", run=RunConfig("a"))), "preset": "gone"}
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "config.json").write_text(json.dumps(moved))
    (tmp_path / "b" / "metrics.jsonl").write_text("")
    assert call("--config", str(tmp_path / "b")).run.name == "", "of a run that was renamed"


def test_the_wrong_command_names_the_right_one(tmp_path):
    call("--run.name", "a", "--run.out", str(tmp_path))
    parse(other.prepare(args := ["--run.name", "b", "--run.out", str(tmp_path)]), "toy", args)
    right = f"{tmp_path}/b.*`llmrl lm other --run.resume {tmp_path}/b`"
    with pytest.raises(ValueError, match=right):
        train.prepare(["--run.resume", f"{tmp_path}/b"])
    with pytest.raises(ValueError, match="toy train.*`llmrl toy train"):
        configs.load_config(Other, tmp_path / "a" / "config.json")


def test_runs_from_before_kinds_are_read(tmp_path):
    (tmp_path / "old").mkdir()
    values = configs.to_json(Config("m", run=RunConfig(name="old", resume=True)))
    del values["steps"], values["source"]
    (tmp_path / "old" / "config.json").write_text(json.dumps({"preset": "big", "num_steps": 5, **values}))
    found = call("--run.resume", str(tmp_path / "old"))
    assert found == Config("m", steps=5, run=RunConfig("old", str(tmp_path), resume=True))
    (tmp_path / "old" / "config.json").write_text(json.dumps({"learning_rate": 5}))
    with pytest.raises(ValueError, match="Config.*'learning_rate'"):
        train.prepare(["--run.resume", str(tmp_path / "old")])


def test_where_no_run_can_be_kept(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"file/a \(.*/file .*--run.out"):
        call("--run.name", "a", "--run.out", str(tmp_path / "file"))
    with pytest.raises(OSError, match=r"/proc/runs \(.*\).*--run.out"):
        check_folder(RunConfig(out="/proc/runs"))
    check_folder(RunConfig(out=str(tmp_path / "new" / "runs"), name="a"))
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "nothing is made"


def test_the_folder_of_a_run_in_python():
    assert RunConfig(resume="runs/a") == RunConfig("a", "runs", resume=True)
    assert RunConfig(resume="/x/y/a/") == RunConfig("a", "/x/y", resume=True)
    assert RunConfig(resume="a", out="/x") == RunConfig("a", "/x", resume=True)
    assert not RunConfig(resume="").resume
    with pytest.raises(ValueError, match="--run.name.*b.*--run.resume.*runs/a.*--run.name"):
        RunConfig("b", resume="runs/a")
    with pytest.raises(ValueError, match="--run.out.*x.*--run.resume.*runs/a.*--run.out"):
        RunConfig(out="x", resume="runs/a")


def test_a_draft_is_checked_at_the_end_alone():
    draft = overlaid(blank(Config), {"learner": {"batch": 0}, "limit": 3})
    assert draft.learner.batch == 0 and draft.learner.rate == 0.1 and draft.world.limit == 3
    with pytest.raises(ValueError, match="batch.*0"):
        checked(draft)
    assert "batch: 8" in to_yaml(Config("m"))


def test_a_field_that_the_file_needs_for_itself_is_refused():
    @dataclass(frozen=True)
    class Taken:
        KIND: ClassVar[str] = "toy"
        version: int = 1

    with pytest.raises(TypeError, match="Taken.*'version'"):
        configs.stamped(Taken())
