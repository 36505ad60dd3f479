from __future__ import annotations

import errno
import io
import json
import math
import os
import sys
import types

import numpy as np
import pytest
from PIL import Image

from llmrl_jax.cli.main import guard
from llmrl_jax.report import video as media
from llmrl_jax.run import curves as plots, metrics, metrics as sinks, progress
from llmrl_jax.run.config import RunConfig


def test_window_weighs_episodes():
    rows = {
        "episodes": np.array([1.0, 3.0, 0.0]),
        "success": np.array([1.0, 0.0, np.nan]),
        "episodes/a": np.array([1.0, 0.0, 0.0]),
        "success/a": np.array([1.0, np.nan, np.nan]),
        "episode_return": np.array([np.nan, np.nan, np.nan]),
        "loss": np.array([1.0, 2.0, 6.0]),
    }
    line = metrics.window(rows)
    assert line["episodes"] == 4 and line["success"] == 0.25 and line["success/a"] == 1.0
    assert line["loss"] == 3.0 and math.isnan(line["episode_return"])


def test_json_lines_are_json_and_read_back(tmp_path):
    sink = metrics.JsonLines(tmp_path / "m.jsonl")
    sink.write({"kind": "train", "update": 1, "loss": math.nan, "list": [1.0, 2.0]})
    text = (tmp_path / "m.jsonl").read_text()  # before closing: a killed run keeps its lines
    sink.close()
    assert json.loads(text)["loss"] is None
    assert math.isnan(metrics.read(tmp_path / "m.jsonl")[0]["loss"])


def test_truncate_cuts_past_the_checkpoint_and_a_torn_line(tmp_path):
    path = tmp_path / "m.jsonl"
    lines = [{"kind": "train", "update": u, "seconds": u / 2} for u in (1, 2, 3)]
    path.write_text("".join(json.dumps(x) + "\n" for x in lines) + '{"kind": "tra')
    assert metrics.last(path, 2) == {"train": lines[1]}
    metrics.truncate(path, 2)
    assert [x["update"] for x in metrics.read(path)] == [1, 2]
    metrics.truncate(tmp_path / "absent.jsonl", 2)
    assert metrics.last(tmp_path / "absent.jsonl", 2) == {}
    metrics.truncate(path, -1)
    assert path.read_text() == ""


def test_the_last_line_of_each_kind(tmp_path):
    path = tmp_path / "m.jsonl"
    lines = [("eval", 0, 0.5), ("train", 2, None), ("eval", 2, 0.7), ("train", 4, 3.0), ("eval", 6, 0.9)]
    path.write_text("".join(json.dumps({"kind": k, "update": u, "x": x}) + "\n" for k, u, x in lines))
    found = metrics.last(path, 3)
    assert found["eval"] == {"kind": "eval", "update": 2, "x": 0.7}
    assert found["train"]["update"] == 2 and math.isnan(found["train"]["x"])


def test_every_sink_is_closed_once():
    """Also where another cannot be; what that raised is raised then."""
    closed = []

    class Fake:
        def __init__(self, name, error=None):
            self.name, self.error = name, error

        def close(self):
            closed.append(self.name)
            if self.error is not None:
                raise self.error

    several = sinks.Sinks([Fake("a"), Fake("b", OSError("b is full")), Fake("c", OSError("c is full")), Fake("d")])
    with pytest.raises(OSError, match="b.*full"):
        several.close()
    several.close()
    assert closed == ["a", "b", "c", "d"]


def test_tensorboard_records_scalars(tmp_path):
    sink = sinks.TensorBoard(tmp_path)
    sink.write({"kind": "train", "update": 3, "loss": 0.5, "success": math.nan})
    sink.close()
    event = next(tmp_path.glob("events*")).read_bytes()
    assert b"train/loss" in event and b"train/success" not in event


def test_missing_extras_name_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.setitem(sys.modules, "wandb", None)
    for config, named in ((RunConfig(tensorboard=True), "--run.tensorboard"), (RunConfig(wandb="p"), "--run.wandb")):
        with pytest.raises(ModuleNotFoundError, match=rf"{named} .*`track`"):
            sinks.open_trackers(tmp_path, config, None, 0)
    assert not list(tmp_path.iterdir())


def test_wandb_continues_by_id(tmp_path, monkeypatch):
    calls = []

    class Run:
        def log(self, numbers, step):
            calls.append((numbers, step))

        def finish(self):
            calls.append("finished")

    fake = types.ModuleType("wandb")
    fake.init = lambda **options: calls.append(options) or Run()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for update in (1, 2):
        sink = sinks.WeightsAndBiases("project", tmp_path, {"a": 1})
        sink.write({"kind": "train", "update": update, "loss": 1.0})
        sink.close()
    assert calls[0]["id"] == calls[3]["id"] and calls[0]["resume"] == "allow" and calls[0]["config"] == {"a": 1}
    assert calls[1] == ({"train/loss": 1.0}, 1) and calls[2] == "finished"
    assert calls[0]["reinit"] == "create_new", "several runs of one process stay apart"

    def refuse(**options):
        raise RuntimeError("No API key\nconfigured")

    fake.init = refuse
    with pytest.raises(ValueError, match="--run.wandb.*'project'.*RuntimeError"):
        sinks.WeightsAndBiases("project", tmp_path)


def test_learning_curve(tmp_path):
    sink = metrics.JsonLines(tmp_path / "metrics.jsonl")
    for u in range(1, 30):
        success = math.nan if u % 7 == 0 else 1 - math.exp(-u / 8)
        sink.write(
            {"kind": "train", "update": u, "steps": 100 * u, "episodes": 8.0, "success": success, "loss": 1.0 / u}
        )
    sink.write({"kind": "eval", "update": 20, "steps": 2000, "success": 0.9, "success_low": 0.8, "success_high": 0.95})
    sink.close()
    path = plots.learning_curve(tmp_path)
    picture = np.asarray(Image.open(path))
    assert picture.shape[0] > 300 and len(np.unique(picture.reshape(-1, picture.shape[-1]), axis=0)) > 50
    # a run without episodes shows its losses; one without numbers nothing
    (tmp_path / "metrics.jsonl").write_text('{"kind": "train", "update": 1, "steps": 5, "loss": 0.5}\n')
    before = path.read_bytes()
    assert plots.learning_curve(tmp_path) == path
    losses = path.read_bytes()
    plots.learning_curve(tmp_path, unit="tokens")  # the axis says what is counted
    assert before != losses != path.read_bytes()
    (tmp_path / "metrics.jsonl").write_text("")
    assert plots.learning_curve(tmp_path) is None


def test_a_picture_is_replaced_whole_or_not_at_all(tmp_path):
    class Broken:
        def savefig(self, path, **options):
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")

    figure, _ = plots.new_axes(1.0, 1.0)
    path = plots.save(figure, tmp_path / "new" / "picture")
    before = path.read_bytes()
    with pytest.raises(OSError, match=r"picture\.png"):
        plots.save(Broken(), path)
    assert path.read_bytes() == before and os.listdir(path.parent) == ["picture.png"]


def test_band_is_wilsons_over_the_pooled_neighbours():
    from llmrl_jax.core import statistics as stats

    values, counts = np.array([0.5, 1.0, 0.0]), np.array([2.0, 2.0, 4.0])
    first, middle, last = plots.line_intervals(values, counts, True, half=1)
    assert (first, middle, last) == (stats.wilson(3, 4), stats.wilson(3, 8), stats.wilson(2, 6))
    middle = plots.line_intervals(values, counts, False, half=1)[1]
    assert middle == stats.mean_interval(values), "other metrics: over the lines"


def curve_of(tmp_path, lines, monkeypatch):
    """The line and the band that `learning_curve` draws of a run with these metrics of training."""
    from matplotlib.axes import Axes

    drawn = {}

    def plot(self, x, y, *args, **options):
        if "label" in options:
            drawn["mean"], drawn["label"] = y, options["label"]
        return []

    monkeypatch.setattr(Axes, "plot", plot)
    monkeypatch.setattr(Axes, "fill_between", lambda self, x, low, high, **options: drawn.update(low=low, high=high))
    lines = [{"kind": "train", "update": i, "steps": i, **line} for i, line in enumerate(lines, 1)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert plots.learning_curve(tmp_path)
    return drawn


@pytest.mark.filterwarnings("ignore:No artists with labels")
def test_a_curve_of_few_points_is_not_smoothed_and_a_loss_has_no_band_below_0(tmp_path, monkeypatch):
    drawn = curve_of(tmp_path, [{"loss": 3.0}, {"loss": 1.0}, {"loss": 0.2}], monkeypatch)
    assert drawn["mean"].tolist() == [3.0, 1.0, 0.2] and drawn["label"] == "training"
    assert np.isnan(drawn["low"]).all(), "one point has no interval"
    many = [3.0 / i**2 for i in range(1, 31)]
    drawn = curve_of(tmp_path, [{"loss": x} for x in many], monkeypatch)
    assert drawn["mean"][2] == pytest.approx(np.mean(many[:5]))
    assert "mean of 5 points" in drawn["label"] and np.nanmin(drawn["low"]) == 0.0
    drawn = curve_of(tmp_path, [{"loss": x - 1.0} for x in many], monkeypatch)
    assert np.nanmin(drawn["low"]) < -1.0, "a loss with negative values may have any band"


@pytest.mark.filterwarnings("ignore:No artists with labels")
@pytest.mark.parametrize("name", ["success", "loss"])
@pytest.mark.parametrize("count", [1, 30])
def test_the_band_of_several_seeds_is_over_the_seeds(tmp_path, monkeypatch, name, count):
    rows = {"0/episodes": [100], f"0/{name}": [0.2], "1/episodes": [300], f"1/{name}": [0.8], "2/episodes": [0]}
    line = metrics.window({key: np.array(x, float) for key, x in rows.items()} | {f"2/{name}": np.array([np.nan])})
    drawn = curve_of(tmp_path, [line] * count, monkeypatch)
    for key, column in (("mean", name), ("low", f"{name}_low"), ("high", f"{name}_high")):
        expected = max(line[column], 0.0) if key == "low" else line[column]  # no loss is below 0
        np.testing.assert_allclose(drawn[key], [expected] * count)
    assert "3 seeds" in drawn["label"]


def test_gif(tmp_path):
    frames = [np.full((8, 12, 3), 40 * i, np.uint8) for i in range(4)]
    path = media.write_gif(tmp_path / "e.gif", frames, fps=5, hold=2.0)
    with Image.open(path) as image:
        assert image.n_frames == 4 and image.size == (12, 8)
        durations = []
        for i in range(4):
            image.seek(i)
            durations.append(image.info["duration"])
    assert durations == [200, 200, 200, 2000]
    with pytest.raises(ValueError, match="GIF"):
        media.write_gif(path, [])
    with pytest.raises(ValueError, match="1.*uint8"):
        media.write_gif(path, [frames[0], frames[0][:4]])


def test_a_gif_is_whole_or_not_written(tmp_path, monkeypatch):
    path = media.write_gif(tmp_path / "new" / "e.gif", [np.zeros((8, 12, 3), np.uint8)])
    before = path.read_bytes()

    def dies(self, file, **how):
        with open(file, "wb") as half:
            half.write(b"GIF89a")
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(Image.Image, "save", dies)
    with pytest.raises(OSError) as error:
        media.write_gif(path, [np.ones((8, 12, 3), np.uint8)])
    assert error.value.filename == str(path)
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]


def test_progress_lines(capsys):
    bar = progress.Progress("lines", "run", 10)
    bar.report({"kind": "train", "update": 5, "success": 0.5, "episode_return": math.nan}, 12_345.0)
    bar.report({"kind": "train", "update": 6, "success": math.nan}, 2e6)
    bar.close()
    out = capsys.readouterr().out
    assert "5/10  12.3k steps/s  success 0.500  left 0:00:00" in out
    assert "6/10  2M steps/s  success 0.500" in out  # the last known value stays
    progress.Progress("lines", "run", 10, unit="tokens").report({"kind": "train", "update": 5}, 10.0)
    assert "5/10  10 tokens/s" in capsys.readouterr().out
    assert progress.duration(3661) == "1:01:01" and progress.duration(math.inf) == "-:--:--"


def test_progress_bar(capsys):
    bar = progress.Progress("bar", "run", 10)
    bar.report({"kind": "train", "update": 5, "success": 0.5}, 10.0)
    bar.say("a sentence with [brackets]")
    bar.close()
    out = capsys.readouterr().out
    assert "success 0.500" in out and "a sentence with [brackets]" in out


class Gone:
    """A stdout whose reader has gone."""

    encoding = "utf-8"

    def __init__(self, error):
        self.error, self.tried = error, 0

    def write(self, text):
        self.tried += 1
        raise self.error

    def fileno(self):
        raise io.UnsupportedOperation("it is no file")

    flush = isatty = lambda self: False


@pytest.mark.parametrize("mode", ["lines", "bar"])
@pytest.mark.parametrize(
    "error",
    [BrokenPipeError(32, "Broken pipe"), OSError(5, "Input/output error"), ValueError("I/O operation on closed file.")],
    ids=["pipe", "terminal", "closed"],
)
def test_a_display_that_nobody_sees_is_switched_off(mode, error, monkeypatch, capsys):
    for begun in (False, True):
        stdout = Gone(error)
        with monkeypatch.context() as patched:
            if not begun:
                patched.setattr(sys, "stdout", stdout)
            bar = progress.Progress(mode, "run", 10)
            patched.setattr(sys, "stdout", stdout)
            bar.restart_clock(0)
            for update in (1, 2):
                bar.advance(update, 10.0)
                bar.report({"kind": "train", "update": update, "success": 0.5}, 10.0)
                bar.say("a sentence")
            bar.close()
            assert bar.mode == "off" and stdout.tried >= 1
            tried = stdout.tried
            bar.say("no more")
            assert stdout.tried == tried
        assert capsys.readouterr().err.count("continues without") == 1


@pytest.mark.parametrize("stdout", [None, io.StringIO()], ids=["none", "closed"])
def test_without_a_stdout_there_is_no_terminal(stdout, monkeypatch):
    """As in `llmrl ... >&-`."""
    if stdout is not None:
        stdout.close()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", stdout)
        bar = progress.Progress("auto", "run", 10)
        bar.say("a sentence")
        bar.close()
    assert bar.mode in ("lines", "off")


def test_a_fault_of_the_display_is_not_hidden(monkeypatch):
    bar = progress.Progress("off", "run", 10)
    bar.mode = "lines"
    monkeypatch.setattr(sys, "stdout", Gone(ValueError("unknown format code")))
    with pytest.raises(ValueError, match="format code"):
        bar.say("a sentence")


@pytest.mark.parametrize(("stream", "code"), [("stdout", 0), ("stderr", 1)])
def test_only_stdout_without_a_reader_ends_a_command_well(stream, code, monkeypatch):
    """As in `llmrl ... | head`; an error that cannot be printed to stderr is an error."""

    def write() -> int:
        print("a line", file=getattr(sys, stream), flush=True)
        return 0

    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr(sys, stream, pipe)
        assert not progress.stdout_has_no_reader() and guard(write) == 0
        os.close(reader)
        assert progress.stdout_has_no_reader() == (stream == "stdout")
        assert guard(write) == code
        assert os.readlink(f"/proc/self/fd/{writer}") == os.devnull
