"""Bad input of runs: folders, seeds, files of options, resumes, logs, and what is read from runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.cli.bad_input.row import CARTPOLE, Row


# --- what is prepared -------------------------------------------------------------------------------------------------


def folder(path: str) -> Callable[[Path], None]:
    """A folder at this path, instead of a file that is there."""

    def prepare(tmp: Path) -> None:
        (tmp / path).unlink(missing_ok=True)
        (tmp / path).mkdir(parents=True)

    return prepare


def without(*paths: str) -> Callable[[Path], None]:
    """Files and folders are removed."""

    def prepare(tmp: Path) -> None:
        for path in paths:
            if (tmp / path).is_dir():
                shutil.rmtree(tmp / path)
            else:
                (tmp / path).unlink()

    return prepare


def changed(**values: object) -> Callable[[Path], None]:
    """Values in the config.json of the run `cartpole`."""

    def prepare(tmp: Path) -> None:
        path = tmp / "cartpole" / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return prepare


def lines(edit: Callable[[list[str]], list[str]], run: str = "cartpole") -> Callable[[Path], None]:
    """The lines of a run's log are edited."""

    def prepare(tmp: Path) -> None:
        path = tmp / run / "metrics.jsonl"
        path.write_text("".join(line + "\n" for line in edit(path.read_text().splitlines())))

    return prepare


def emptied(tmp: Path) -> None:
    """The checkpoints are gone, but not their folder."""
    shutil.rmtree(tmp / "cartpole" / "checkpoints")
    (tmp / "cartpole" / "checkpoints").mkdir()


def all_damaged(tmp: Path) -> None:
    for path in (tmp / "cartpole" / "checkpoints").glob("*/meta/metadata"):
        path.write_text("{")


NEW = f"rl train {CARTPOLE}"
TRAIN = f"{NEW} --run.out {{tmp}}/runs"
NAMED = f"{TRAIN} --run.name x"
AGAIN = "rl train --run.resume {cartpole} --run.progress off"
MORE = f"{AGAIN} --steps 64"
FILE = "rl train --config {tmp}/c.yaml"
KEPT = "no run can be kept in .*"
STARTS = (
    r"jit\((?!chunk|evaluate).*\)"  # all but the run itself: single operations compile in the first row that has them
)
"""Programs of a state, which is there before a checkpoint is read."""
N = "n" * 300

FOLDERS = (
    Row("out is a file", f"{NEW} --run.out f", f"{KEPT}f .*--run.out", {"f": ""}),
    Row("out is in a file", f"{NEW} --run.out f/g", f"{KEPT}f/g.*--run.out", {"f": ""}),
    Row("out is in /proc", f"{NEW} --run.out /proc/x", f"{KEPT}/proc/x.*--run.out"),
    Row("out is read-only", f"{NEW} --run.out /sys/x", f"{KEPT}/sys/x.*--run.out"),
    Row("a name too long", f"{TRAIN} --run.name {N}", f"{KEPT}too long.*--run.name"),
    Row("a folder's name too long", f"{TRAIN}/{N}", f"{KEPT}too long.*--run.name or --run.out"),
    Row("a name with a slash", f"{TRAIN} --run.name a/b", "--run.name.*'a/b'.*--run.out"),
    Row("a name of dots", f"{TRAIN} --run.name ..", r"--run.name.*'\.\.'"),
    Row("a run that exists", f"{NEW} --run.out {{tmp}} --run.name cartpole", r"cartpole exists.*--run\.resume",
        {"cartpole/config.json": "{}"}),
    *(
        Row(f"{name} is a folder", NAMED, f"x/{name} .*folder", prepare=folder(
            f"runs/x/{name}"))
        for name in ("metrics.jsonl", "status.json", "summary.json", ".lock")
    ),
    Row("config.json is a folder", NAMED, "runs/x exists", prepare=folder("runs/x/config.json")),
    Row("checkpoints is a file", NAMED, "/checkpoints.*file", {"runs/x/checkpoints": ""}),
    Row("frozen is a file", NAMED, "/frozen.*file", {"runs/x/frozen": ""}),
    Row("a resumed lock is a folder", MORE, "cartpole/.lock", prepare=folder("cartpole/.lock")),
    Row("the cache is a file", f"{NAMED} --run.compilation-cache f", "program.*`off`",
        {"f": "1"}),
)  # fmt: skip

OPTIONS = (
    Row("a negative seed", f"{NAMED} --run.seed=-1", "--run.seed.*-1.*0.*4294967295"),
    Row("a seed of 33 bits", f"{NAMED} --run.seed 4294967296", "--run.seed.*4294967296.*0.*4294967295"),
    Row("a seed of 64 bits", f"{NAMED} --run.seed 9223372036854775808", "--run.seed.*92233720"),
    Row("a seed of 80 bits", f"{NAMED} --run.seed 999999999999999999999999", "--run.seed.*9'"),
    Row("a fractional seed", f"{NAMED} --run.seed 1.5", "--run.seed: '1.5'"),
    Row("a seed of words", f"{NAMED} --run.seed x", "--run.seed: 'x'"),
    Row("an empty seed", f"{NAMED} --run.seed ''", "--run.seed: ''"),
    Row("steps of 100 bits", f"{NAMED} --steps 1e30", "--steps: '1e30'.*9223372036854775807"),
    Row("unknown progress", f"{NAMED} --run.progress x", "'x'.*'--run.progress'.*'auto', 'bar', 'lines'"),
    Row("the best of no metric", f"{NAMED} --run.best los", "--run.best.*los.*'loss'",
        compiles=STARTS),
    Row("the best of no evaluation", f"{NAMED} --run.best eval/x", "--run.best.*eval/x.*--run.eval-every"),
    Row("an earlier checkpoint of a new run", f"{NAMED} --run.resume-from 3", "--run.resume-from.*3.*--run.resume"),
)  # fmt: skip

FILES = (
    Row("no file", FILE, "configuration.*c.yaml"),
    Row("a file near", FILE, "c.yaml.*'cc.yaml'", {"cc.yaml": ""}),
    Row("an empty name of a file", "rl train --config ''", "--config"),
    Row("a folder", "rl train --config {tmp}/data", "configuration .*/data", {"data/x": ""}),
    Row("a model's folder", "rl train --config {model}", "--model"),
    Row("an empty file", FILE, "c.yaml.*NoneType", {"c.yaml": ""}),
    Row("a list", FILE, r"c\.yaml.*list", {"c.yaml": "[1, 2]"}),
    Row("a word", FILE, r"c\.yaml.* str;", {"c.yaml": "abc"}),
    Row("half a list", FILE, "c.yaml.*YAML.*1", {"c.yaml": "a: ["}),
    Row("UTF-16", FILE, "c.yaml.*YAML.*decode", {"c.yaml": "steps: 3".encode("utf-16")}),
    Row("code", FILE, r"c\.yaml.*YAML.*constructor",
        {"c.yaml": "!!python/name:os.system x"}),
    Row("half JSON", "rl train --config c.json", "c.json.*JSON", {"c.json": "{"}),
    Row("JSON nested 100,000 deep", "rl train --config c.json", "c.json.*JSON", {"c.json": "[" * 100_000}),
    Row("JSON in latin-1", "rl train --config c.json", "c.json.*JSON",
        {"c.json": '{"é": 1}'.encode("latin-1")}),
    Row("a number of 5,000 digits", "rl train --config c.json", "c.json.*JSON.*digits",
        {"c.json": '{"steps": ' + "9" * 5000 + "}"}),
    Row("an unknown option", FILE, "c.yaml.*'stepz'.*'steps'", {"c.yaml": "stepz: 3"}),
    Row("words for a number", FILE, "c.yaml: steps.*'many'.*int", {"c.yaml": "steps: many"}),
    Row("a truth for a number", FILE, "c.yaml: steps.*True.*int", {"c.yaml": "steps: true"}),
    Row("a date for a number", FILE, "c.yaml: steps.*2020.*int", {"c.yaml": "steps: 2020-01-01"}),
    Row("a number for a part", FILE, r"c\.yaml: run is 3", {"c.yaml": "run: 3"}),
    Row("nothing for a part", FILE, r"c\.yaml: run is None", {"c.yaml": "run: null"}),
    Row("a number for a name", FILE, "c.yaml: run.name.*5.*str", {"c.yaml": "run: {name: 5}"}),
    Row("a resumed list", FILE, r"c.yaml: run.name.*\['a'\].*str",
        {"c.yaml": "run: {resume: true, name: [a]}"}),
    Row("a resume in a number", FILE, "c.yaml: run.out.*3.*str",
        {"c.yaml": "run: {resume: true, name: x, out: 3}"}),
    Row("a resume of a mapping", FILE, "c.yaml: run.resume.*{'a': 1}", {"c.yaml": "run: {resume: {a: 1}}"}),
    Row("a name with a null character", FILE, r"--run\.name.*folder",
        {"c.yaml": 'run: {name: "a\\0b"}'}),
    Row("a folder with a null character", FILE, r"--run\.out.*null character",
        {"c.yaml": 'run: {out: "a\\0b"}'}),
    Row("a huge seed in a file", FILE, r"--run\.seed.* 1.*4294967295",
        {"c.yaml": "run: {seed: 1e30}"}),
    Row("an algorithm that is none", FILE, "algorithm 'x'", {"c.yaml": "algo: x"}),
    Row("another command's file", FILE, "`llmrl lm sft`.*`llmrl rl train`",
        {"c.yaml": "kind: lm sft\nversion: 1"}),
    Row("a newer version's file", FILE, "version 9,.*llmrl_jax",
        {"c.yaml": "kind: rl train\nversion: 9"}),
    Row("another run's config.json", "rl train --config {props}", "`llmrl props run`"),
)  # fmt: skip

RESUMES = (
    Row("no such run", "rl train --run.resume runs/x", "'x'.*`llmrl runs list runs`"),
    Row("a run near", "rl train --run.resume cartpol", "'cartpol'.*'cartpole'",
        {"runs/cartpole/config.json": "{}"}, folder("runs/x")),
    Row("a run that is a file", "rl train --run.resume runs/f", "run 'f'", {"runs/f": "1"}),
    Row("no run named", "rl train --run.resume", r"--run\.resume.*folder"),
    Row("an empty name of a run", "rl train --run.resume ''", r"--run\.resume.*folder"),
    Row("a second name", f"{AGAIN} --run.name y", "--run.name.*y.*--run.resume.*--run.name"),
    Row("a second folder", f"{AGAIN} --run.out y", "--run.out.*y.*--run.resume.*--run.out"),
    Row("a props run", "rl train --run.resume {props}", "`llmrl props run --run.resume .*`"),
    Row("an rl run by props", "props run --run.resume {cartpole}", "rl train.*props run"),
    Row("an rl run by sft", "lm sft --run.resume {cartpole}", "rl train.*lm sft"),
    Row("an rl run by glam", "glam train --run.resume {cartpole}", "rl train.*glam train"),
    Row("another algorithm", f"{AGAIN} --algo dqn",
        "--algo.*dqn.*--algo"),
    Row("another option", f"{AGAIN} --ppo.gamma 0.5",
        r"--ppo\.gamma: 0\.99 -> 0\.5"),
    Row("another seed", f"{AGAIN} --run.seed 5", r"--run\.seed: 0 -> 5"),
    Row("fewer steps than it has", f"{AGAIN} --steps 16", r"3.*\(48 .*\).*1.*16"),
    Row("a checkpoint that it lacks", f"{MORE} --run.resume-from 9", "--run.resume-from.*9.*1, 2, 3"),
    Row("checkpoints are gone", MORE, "no checkpoint.*update 3",
        prepare=without("cartpole/checkpoints")),
    Row("every checkpoint is gone", MORE, "no checkpoint.*update 3",
        prepare=emptied),
    Row("no log", MORE, "metrics.jsonl.*missing.*--run.accept-gaps",
        prepare=without("cartpole/metrics.jsonl")),
    Row("an empty log", MORE, r"metrics\.jsonl ends.*update 0",
        {"cartpole/metrics.jsonl": ""}),
    Row("a short log", MORE, "metrics.jsonl.*2.*--run.resume-from 2",
        prepare=lines(lambda x: x[:-1])),
    Row("a log that begins late", MORE, "updates 1.*1.*line 1",
        prepare=lines(lambda x: x[1:])),
    Row("a gap in the log", MORE, "2.*2.*2.*--run.resume-from 1",
        prepare=lines(
        lambda x: [x[0], x[2]])),
    Row("a damaged line", MORE, r"metrics.jsonl:2.*\('\{'\).*--run.resume-from 1", prepare=lines(
        lambda x: [x[0], "{", x[2]])),
    Row("a log of lists", MORE, r"metrics.jsonl:1.*\('\[1\]'\)", {"cartpole/metrics.jsonl": "[1]\n"}),
    Row("a log of bytes", MORE, "metrics.jsonl:1.*damaged", {"cartpole/metrics.jsonl": b"\xff\xfe\0\n"}),
    Row("a log without updates", MORE, "metrics.jsonl:1.*damaged", {"cartpole/metrics.jsonl": '{"a": 1}\n'}),
    Row("a line twice", MORE, r"metrics\.jsonl:2.*continue.*update 1", prepare=lines(lambda x: [x[0], *x])),
    Row("a checkpoint without its state", MORE, "checkpoint 3.*--run.resume-from 2",
        prepare=without("cartpole/checkpoints/3/state"), compiles=STARTS),
    Row("descriptions that are damaged", MORE, "checkpoint 3.*older",
        prepare=all_damaged, compiles=STARTS),
    Row("half a config.json", AGAIN, "cartpole/config.json.*JSON",
        {"cartpole/config.json": "{"}),
    Row("an empty config.json", AGAIN, "cartpole/config.json.*JSON", {"cartpole/config.json": ""}),
    Row("a config.json of bytes", AGAIN, "cartpole/config.json.*JSON",
        {"cartpole/config.json": b"\xff\xfe"}),
    Row("a config.json of a list", AGAIN, r"config\.json.*command wrote",
        {"cartpole/config.json": "[1]"}),
    Row("a config.json without options", AGAIN, "checkpoint 3.*4 -> 16",
        {"cartpole/config.json": "{}"}),
    Row("a newer config.json", AGAIN, "99.*llmrl_jax", prepare=changed(version=99)),
    Row("an unknown kind", AGAIN, "zz top.*rl train", prepare=changed(kind="zz top")),
    Row("a misspelt option", AGAIN, r"config\.json.*'stepz'.*'steps'",
        prepare=changed(stepz=3)),
    Row("an option of another type", AGAIN, "steps.*'a'.*int", prepare=changed(steps="a")),
    Row("an option out of range", AGAIN, "config.json.*steps.*-4.*1",
        prepare=changed(steps=-4)),
    Row("a part of another type", AGAIN, r"run is \[1\]", prepare=changed(run=[1])),
    Row("a saved seed beyond 64 bits", AGAIN, "seed.*1180591620717411303424.*0.*4294967295",
        prepare=changed(run={"seed": 2**70})),
    Row("a world that is gone", AGAIN, "environment.*'x'", prepare=changed(env="x")),
    Row("a search with other options", "props run --run.resume {props} --iterations 4",
        "--iterations: .* -> 4"),
    Row("a search with a damaged log", "props run --run.resume {props}",
        r"log\.jsonl.*line 1.*cannot", {"props/nim-0/log.jsonl": "{\n{}\n"},
        compiles=r"jit\((_threefry_split|unstack)\)"),
    *(
        Row(f"a search with a log of {name}", "props run --run.resume {props}",
            r"log\.jsonl: line 1 .*round",
            {"props/nim-0/log.jsonl": line + "\n"}, compiles=r"jit\((_threefry_split|unstack)\)")
        for name, line in {"objects": "{}", "numbers": "5", "rounds alone": '{"round": 0}'}.items()
    ),
    Row("a search with a log of bytes", "props run --run.resume {props}", r"log\.jsonl.*line 1.*cannot",
        {"props/nim-0/log.jsonl": b"\xff\xfe\0\n"}, compiles=r"jit\((_threefry_split|unstack)\)"),
    Row("a search with a lock that is a folder", "props run --run.resume {props}", r"\.lock.*folder",
        prepare=folder("props/.lock")),
)  # fmt: skip

HOMES = (
    *(
        Row(f"{name} in an unknown home", line, "'~nouser-x/.*'.*~nouser-x")
        for name, line in {
            "out": f"{NEW} --run.out ~nouser-x/y", "a resume": "rl train --run.resume ~nouser-x/y",
            "a cache": f"{NAMED} --run.compilation-cache ~nouser-x/y", "a list": "runs list ~nouser-x/y",
            "a file": "rl train --config ~nouser-x/c.yaml", "a run to show": "runs show ~nouser-x/y",
            "a picture": "runs compare {glam} --out ~nouser-x/y.png", "a run to delete": "runs rm ~nouser-x/y",
            "a model": "lm generate x --model ~nouser-x/m", "a model that fits": "lm fit --model ~nouser-x/m",
            "templates": "props run --tasks nim --templates.template-dir ~nouser-x/t",
            "a reward": "lm grpo --model {model} --data {data}/rows.jsonl --reward ~nouser-x/r.py:f",
        }.items()
    ),
    Row("checkpoints of a run that is gone", f"{NEW} --run.out {{tmp}} --run.name cartpole",
        r"config\.json.*1, 2, 3.*metrics\.jsonl.*config\.json.*--run\.name",
        {"cartpole/x": ""}, without("cartpole/config.json")),
    Row("a number of 401 digits", FILE, "c.yaml: ppo.gamma.*9+.*1.8e308",
        {"c.yaml": f"ppo: {{gamma: {'9' * 401}}}"}),
    Row("YAML nested 3,000 deep", FILE, "YAML.*nested",
        {"c.yaml": "a: " + "[" * 3000}),
)  # fmt: skip
"""Paths with `~`, and what is left of runs."""

G = "glam/metrics.jsonl"
LOGS = {
    "lists": "[1]\n",
    "bytes": b"\xff\xfe\0\n",
    "numbers": "3\n",
    "no updates": '{"kind": "train", "success": 0.5}\n',
    "no kinds": '{"update": 1, "steps": 2}\n',
    "updates of words": '{"kind": "train", "update": "a", "steps": 2}\n',
    "no steps": '{"kind": "train", "update": 1, "updates": 1, "success": 0.5, "seconds": 1, "episodes": 3}\n',
}
"""What a log may be instead of lines of metrics."""


def is_a_file(tmp: Path) -> None:
    shutil.rmtree(tmp / "glam")
    (tmp / "glam").write_text("")


def link(tmp: Path) -> None:
    (tmp / "link").symlink_to(tmp / "glam")


READS = (
    *(
        Row(f"{command} of a log of {name}", f"{command} {{glam}}",
        r"metrics\.jsonl(:1 is |, .* update 1: )", {G: content})
        for command in ("runs compare", "glam export")
        for name, content in LOGS.items()
    ),
    *(
        Row(f"{command} of a log that is a folder", f"{command} {{glam}}", r"metrics\.jsonl.*cannot", prepare=folder(G))
        for command in ("runs compare", "glam export")
    ),
    Row("export of an empty log", "glam export {glam}", r"metrics\.jsonl.*training", {G: ""}),
    Row("export of no log", "glam export {glam}", r"no metrics.*glam.*metrics\.jsonl", prepare=without(G)),
    Row("export of no run", "glam export x", "x/config.json"),
    Row("comparison of an empty log", "runs compare {glam}", "--metric", {G: ""}),
    Row("comparison of nothing", "runs compare", "nothing.*compare"),
    Row("comparison of no run", "runs compare x", "in x"),
    Row("comparison of a run near", "runs compare glim", "'glam'",
        prepare=lambda tmp: shutil.copy(
        tmp / "glam" / "config.json", tmp), files={"glam/x": ""}),
    Row("comparison of one run twice", "runs compare {glam} {glam}", "glam.*twice"),
    Row("comparison by no metric", "runs compare {glam} --metric nope", "glam.*training.*nope"),
    Row("a bar of nan", "runs compare {glam} --bar nan", "bar.*nan.*0.*1"),
    Row("a bar of 2", "runs compare {glam} --bar 2", "bar.*2.0.*0.*1"),
    Row("an unknown format", "runs compare {glam} --out a.xyz",
        "--out.*a.xyz.*.xyz"),
    Row("a picture that exists", "runs compare {glam} --out a.png", "a.png.*--out",
        {"a.png": ""}),
    Row("a picture in a file", "runs compare {glam} --out f/a.png", "--out.*f/a.png",
        {"f": ""}),
    Row("a picture in /proc", "runs compare {glam} --out /proc/a.png",
        "--out.*/proc/a.png"),
    Row("a picture without a name", "runs compare {glam} --out .",
        r"--out.*\..*folder"),
    Row("a list of no folder", "runs list x", "folder x"),
    Row("a list of a file", "runs list f", "folder f", {"f": ""}),
    Row("no run to show", "runs show x", "in x"),
    Row("a file to show", "runs show f", "in f", {"f": ""}),
    Row("a model to show", "runs show {model}", "run in .*model"),
    Row("nothing to delete", "runs rm", "nothing.*delete"),
    Row("no run to delete", "runs rm x --yes", "run in .*x"),
    Row("a model to delete", "runs rm {model} --yes", "run in .*model"),
    Row("a link to delete", "runs rm link --yes", "link.*/glam", {"glam/x": ""},
        link),
    Row("another program's to delete", "runs rm p --yes",
        r"config\.json.*no command",
        {"p/config.json": '{"compilerOptions": {}}'}),
    Row("deletion without a terminal", "runs rm {glam}", "--yes"),
    Row("evaluation of another kind", "glam eval {cartpole}", "rl train.*glam train"),
    Row("evaluation without checkpoints", "glam eval {glam}", "no checkpoints? in ", compiles=".*"),
    Row("a cache that is another file", "props run --tasks nim --run.out runs --chat.model m --chat.base-url "
        "http://127.0.0.1:9/v1 --chat.cache f", "^error: f .*another file", {"f": "x"}),
    Row("a cache in a file",
        "props run --tasks nim --run.out runs --chat.model m --chat.base-url http://127.0.0.1:9/v1 "
        "--chat.cache f/c", "cache.*f/c", {"f": ""}),
)  # fmt: skip

ROWS = (*FOLDERS, *OPTIONS, *FILES, *RESUMES, *HOMES, *READS)
