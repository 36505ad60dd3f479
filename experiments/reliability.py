"""How runs and the server survive what happens to them: kills, damaged files, malformed requests.

Each part draws its trials from a seed, carries them out, and writes their counts to
`experiments/results/reliability/<part>.json`; `docs/reliability.md` says what they mean. A trial that violates the
promise of its part is printed with what reproduces it, and the exit code is 1.

    python -m experiments.reliability kills --trials 60
    python -m experiments.reliability damage --trials 200
    python -m experiments.reliability requests --trials 2000
"""

from __future__ import annotations

import collections
import contextlib
import http.client
import io
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from llmrl_jax.cli import main as cli
from llmrl_jax.core import config as configs
from llmrl_jax.run import info, metrics
from tests.resume import tiny


ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "experiments" / "results" / "reliability"
UPDATES = 40
TIMING = ("seconds", "steps_per_second", "exchange_seconds")


@dataclass
class Trials:
    """The outcomes of a part."""

    outcomes: collections.Counter
    """How many trials ended in which way."""
    violations: list[str]
    """What broke the promise, with what reproduces it."""
    facts: dict[str, Any]


def options(out: Path, name: str, *more: str) -> list[str]:
    """The command line of `tests/resume/tiny.py` for a run of `UPDATES` updates that is saved every 4."""
    common = ["--run.out", str(out), "--run.name", name, "--run.log-every", "3", "--run.checkpoint-every", "4"]
    return [*common, "--run.progress", "off", "--num-updates", str(UPDATES), *more]


def here(arguments: list[str]) -> None:
    """Run in this process."""
    tyro.cli(tiny.main, args=arguments)


def result(folder: Path) -> tuple[dict[str, np.ndarray], list[dict[str, str]]]:
    """Result of a run: every leaf of its last state, and its metrics without the times."""
    with np.load(folder / "final.npz") as arrays:
        state = dict(arrays)
    lines = metrics.read(folder / "metrics.jsonl")
    return state, [{n: repr(v) for n, v in line.items() if n not in TIMING} for line in lines]


def same(a: tuple[Any, Any], b: tuple[Any, Any]) -> bool:
    """Return whether two runs left the same bits."""
    state = a[0].keys() == b[0].keys() and all(np.array_equal(a[0][n], b[0][n], equal_nan=True) for n in a[0])
    return state and a[1] == b[1]


def kills(trials: int, seed: int, work: Path) -> Trials:
    """SIGKILL at random times; the run is resumed in a new process until it ends, and compared with one that was never
    stopped: every leaf of the state and every line of metrics."""
    rng = random.Random(seed)
    here(options(work, "whole", "--run.eval-every", "5"))
    whole = result(work / "whole")
    done: collections.Counter[str] = collections.Counter()
    violations, runs, lives = [], 0, 0
    while done["kills"] < trials:
        runs += 1
        name, begun = f"run-{runs}", False
        while True:
            lives += 1
            resume = ["--run.resume"] if begun else []
            command = options(work, name, "--run.eval-every", "5", "--pause", "0.3", *resume)
            child = subprocess.Popen(
                [sys.executable, str(ROOT / "tests" / "resume" / "tiny.py"), *command],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            if rng.random() < 0.75:  # in the middle of updates, evaluations and checkpoints; else in its start
                _wait_for_lines(work / name / "metrics.jsonl", child)
            try:
                child.wait(rng.uniform(0, 2))
            except subprocess.TimeoutExpired:
                child.kill()
            error = child.communicate()[1].decode()
            begun = (work / name / "config.json").exists()
            if child.returncode == -signal.SIGKILL:
                done["kills"] += 1
                continue
            if child.returncode:
                violations.append(f"{name}, life {lives}: exit code {child.returncode}: {error[-500:]}")
            break
        if not violations and same(result(work / name), whole):
            done["runs that ended with the bits of the one without a stop"] += 1
        else:
            violations.append(f"seed {seed}, {name}: other bits")
            break
        shutil.rmtree(work / name)
    return Trials(done, violations, {"runs": runs, "starts": lives})


def _wait_for_lines(log: Path, child: subprocess.Popen) -> None:
    """Until a process has added a line to its log, which it first cuts at its checkpoint, or has ended."""
    least = size = log.stat().st_size if log.exists() else 0
    while size <= least and child.poll() is None:
        time.sleep(0.01)
        size = log.stat().st_size if log.exists() else 0
        least = min(least, size)


def damage(trials: int, seed: int, work: Path) -> Trials:
    """One file of a run is cut, deleted, or has one byte changed; then the run is resumed. It must end with the bits of
    an undamaged one, or be refused by an error of one line; never with other bits, or a traceback."""
    rng = random.Random(seed)
    here(options(work, "whole"))
    whole = result(work / "whole")
    half = work / "half"
    shutil.copytree(work / "whole", half)
    last = max(int(p.name) for p in (half / "checkpoints").iterdir() if p.name.isdigit())
    shutil.rmtree(half / "checkpoints" / str(last))  # as if killed before the last checkpoint
    (half / "final.npz").unlink()
    files = sorted(p.relative_to(half) for p in half.rglob("*") if p.is_file() and p.name != ".lock")
    done: collections.Counter[str] = collections.Counter()
    violations = []
    for trial in range(trials):
        copy = work / "run"
        shutil.copytree(half, copy)
        file, kind = rng.choice(files), rng.choice(("cut", "deleted", "a byte changed"))
        content = bytearray((copy / file).read_bytes())
        if kind == "deleted":
            (copy / file).unlink()
        elif kind == "cut":
            (copy / file).write_bytes(content[: rng.randrange(len(content) + 1)])
        elif content:
            at = rng.randrange(len(content))
            content[at] ^= 1 << rng.randrange(8)
            (copy / file).write_bytes(content)
        outcome, text = _resumed(copy, whole)
        done[f"{kind}: {outcome}"] += 1
        if outcome in ("other bits", "a traceback"):
            violations.append(f"seed {seed}, trial {trial}: {file} {kind}: {outcome} {text[-600:]}")
        shutil.rmtree(copy)
    return Trials(done, violations, {"files": len(files)})


def _resumed(folder: Path, whole: tuple[Any, Any]) -> tuple[str, str]:
    """Outcome of the resume of a damaged run, and its output."""
    said = io.StringIO()
    arguments = options(folder.parent, folder.name, "--run.resume")
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        code = cli.guard(lambda: tyro.cli(tiny.main, args=arguments))
    text = said.getvalue()
    if "Traceback" in text:
        return "a traceback", text
    if code:
        return "refused by name", text
    state, lines = result(folder)
    if same((state, lines), whole):
        return "the same bits", text
    if same((state, []), (whole[0], [])):
        return "the same state, and lines of metrics are missing", text
    return "other bits", text


def requests(trials: int, seed: int, work: Path) -> Trials:
    """Requests with random fields, values, bodies and heads. Every answer is 200, or 4xx with JSON that has a message;
    the server answers a sound request after them as before them."""
    from llmrl_jax.serve import Engine, background, make_app
    from tests import serving

    rng = random.Random(seed)
    done: collections.Counter[str] = collections.Counter()
    violations = []
    with Engine(_served(), max_batch=4, max_queue=4) as engine:
        with background(make_app(engine, key=serving.KEY, limits=serving.LIMITS)) as url:
            sound = {**serving.TEXT, "temperature": 0, "max_tokens": 4}
            before = _post(url, "/v1/completions", sound)[1]["choices"]
            for trial in range(trials):
                path, body = _request(rng)
                try:
                    status, answer = _post(url, path, body)
                except (ValueError, OSError) as error:
                    violations.append(f"seed {seed}, request {trial}: {type(error).__name__}: {error}; {body!r:.300}")
                    continue
                done[str(status)] += 1
                message = answer.get("error", {}).get("message") if isinstance(answer, dict) else None
                if status != 200 and not (400 <= status < 500 and isinstance(message, str) and message):
                    violations.append(f"seed {seed}, request {trial}: {status} {answer!r:.200}; {path} {body!r:.300}")
            after = _post(url, "/v1/completions", sound)[1]["choices"]
            if before != after:
                violations.append(f"seed {seed}: the sound request is answered differently afterwards")
    return Trials(done, violations, {})


def _post(url: str, path: str, body: Any) -> tuple[int, Any]:
    """The status and the content of an answer; a first one waits for the compilation of its shape."""
    from tests import serving

    place = urllib.parse.urlsplit(url)
    with contextlib.closing(http.client.HTTPConnection(str(place.hostname), place.port, timeout=120)) as connection:
        head = {"Content-Type": "application/json", "Authorization": f"Bearer {serving.KEY}"}
        connection.request("POST", path, body if isinstance(body, bytes) else json.dumps(body).encode(), head)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def _served() -> Any:
    """A tiny random model, as the server's tests have it."""
    from llmrl_jax import lm
    from llmrl_jax.serve import Served
    from llmrl_jax.tuning import ChatTemplate
    from tests import serving
    from tests.lm_random import random_variables

    tokenizer = lm.WordTokenizer.from_texts(["colors red green blue go left right forward : a b c"])
    config = lm.LlamaConfig(
        tokenizer.vocab_size, 16, 24, 2, 2, 1, max_position_embeddings=256, eos_token_id=tokenizer.eos_id
    )
    model = lm.Llama(config, unroll=1)
    variables = {"params": random_variables(model)["params"]}
    return Served("our/tiny", model, variables, tokenizer, ChatTemplate(serving.TEMPLATE, {}))


FIELDS = (
    *("model", "prompt", "messages", "candidates", "max_tokens", "max_completion_tokens", "n", "seed", "stop"),
    *("stream", "stream_options", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "logprobs"),
    *("top_logprobs", "best_of", "echo", "suffix", "user", "tools", "tool_choice", "priority", "response_format"),
    *("logit_bias", "frequency_penalty", "presence_penalty", "unknown"),
)
SOUND: dict[str, tuple[Any, ...]] = {
    "max_tokens": (1, 2, 5),
    "n": (1, 2, 3),
    "seed": (0, 7, -1),
    "stop": ("a", ["b", " c"], []),
    "temperature": (0, 0.5, 1.0, 2),
    "top_p": (0.1, 0.9, 1),
    "top_k": (0, 1, 5),
    "min_p": (0, 0.1),
    "repetition_penalty": (1, 1.3),
    "echo": (False,),
    "user": ("someone",),
    "tools": ([],),
    "tool_choice": ("none",),
    "priority": (0,),
    "frequency_penalty": (0,),
    "presence_penalty": (0.0,),
}
VALUES: tuple[Callable[[random.Random], Any], ...] = (
    lambda rng: None,
    lambda rng: rng.choice((True, False)),
    lambda rng: rng.choice((0, 1, -1, 2, 7, 10**6, 2**31, 2**63, 2**64, -(2**63))),
    lambda rng: rng.choice((0.0, 0.5, 1.0, -1.0, 1e-46, 1e-300, 1e300, 2.5)),
    lambda rng: rng.choice(("", "a", "go", " ", "\x00", "\ud800", "é" * 50, "a " * 400, "our/tiny", "none", "auto")),
    lambda rng: [_value(rng) for _ in range(rng.randrange(4))],
    lambda rng: {rng.choice(("role", "content", "type", "text", "a")): _value(rng) for _ in range(rng.randrange(3))},
    lambda rng: [{"role": rng.choice(("user", "system", "tool", "")), "content": _value(rng)}],
)


def _value(rng: random.Random) -> Any:
    return rng.choice(VALUES)(rng)


def _request(rng: random.Random) -> tuple[str, Any]:
    """A path and a body: a sound request with some fields changed, or bytes that are no JSON object."""
    from tests import serving

    path, base = rng.choice(
        (
            ("/v1/completions", serving.TEXT),
            ("/v1/chat/completions", serving.CHAT),
            ("/v1/score", serving.SCORE),
        )
    )
    body: dict[str, Any] = {**base, "max_tokens": 3} if path != "/v1/score" else dict(base)
    if rng.random() < 0.1:
        text = json.dumps(body).encode()
        cut = text[: rng.randrange(len(text))]
        return path, rng.choice((b"", b"[]", b"null", b"\xff\xfe", cut, b"[" * 3000, b'{"a": ' + b"9" * 4300 + b"}"))
    for _ in range(rng.randrange(1, 4)):
        field = rng.choice(FIELDS)
        if rng.random() < 0.1:
            body.pop(field, None)
        elif field != "stream":  # an answer of events is no JSON; the tests read those
            body[field] = rng.choice(SOUND[field]) if field in SOUND and rng.random() < 0.8 else _value(rng)
    return path, body


def main(
    part: Annotated[Literal["kills", "damage", "requests"], tyro.conf.Positional],
    trials: int = 100,
    seed: int = 0,
    out: Path = RESULTS,
) -> int:
    """Try what happens to runs and to the server.

    Args:
        part: What to try.
        trials: Kills, damaged runs, or requests.
        seed: Of the trials.
        out: Folder of the counts.
    """
    parts = {"kills": kills, "damage": damage, "requests": requests}
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        tried = parts[part](trials, seed, Path(work))
    values = {
        "command": f"python -m experiments.reliability {part} --trials {trials} --seed {seed}",
        "outcomes": dict(sorted(tried.outcomes.items())),
        "violations": tried.violations,
        **tried.facts,
        "seconds": round(time.monotonic() - started, 1),
        "date": time.strftime("%Y-%m-%d"),
        "machine": info.stamp("experiments"),
    }
    out.mkdir(parents=True, exist_ok=True)
    configs.save_config(values, out / f"{part}.json")
    for outcome, count in values["outcomes"].items():
        print(f"{count:6d}  {outcome}")
    for text in tried.violations:
        print(f"violated: {text}", file=sys.stderr)
    return int(bool(tried.violations))


if __name__ == "__main__":
    sys.exit(cli.guard(lambda: tyro.cli(main, prog="python -m experiments.reliability")))
