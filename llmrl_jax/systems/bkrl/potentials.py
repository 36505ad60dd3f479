"""Potentials over windows of history: from programs, and a random one; their scale; on disk, with a manifest.

On the device they are those that `llmrl_jax.rl.shaping.Shaping` takes. The manifest of an artifact has its origin, and
refuses environments that it does not fit.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from envs_jax.env import Environment
from llmrl_jax.advice.sandbox import Program
from llmrl_jax.core.checks import nearest
from llmrl_jax.core.config import from_json, read_json
from llmrl_jax.core.files import digest_of, write_whole
from llmrl_jax.rl.shaping import Window
from llmrl_jax.systems.bkrl.build import observed_parts
from llmrl_jax.systems.bkrl.collect import Windows
from llmrl_jax.systems.bkrl.prompts import world_of


MIN_STD = 1e-6
"""A potential is constant if its standard deviation on collected windows does not exceed this."""


class Scaled:
    """A potential in units of its standard deviation on the collected data."""

    def __init__(self, inner: Any, scale: float):
        """**Arguments:** `inner`, a `llmrl_jax.rl.shaping.Potential`; `scale`, which multiplies it."""
        self.inner, self.window = inner, inner.window
        self.reads: tuple[str, ...] = tuple(inner.reads)
        self.params = {"inner": inner.params, "scale": np.float32(scale)}

    def encode(self, params: Any, obs: Any) -> Any:
        return self.inner.encode(params["inner"], obs)

    def value(self, params: Any, window: Window) -> Float[Array, " B"]:
        return params["scale"] * self.inner.value(params["inner"], window)


class ProgramPotential:
    """The potential that an admitted program computes from the numbers of an observation."""

    params: Any = ()

    def __init__(self, program: Program):
        """**Arguments:** `program`, of `llmrl_jax.advice.sandbox.admit`."""
        self.program, self.window = program, program.window
        self.reads = tuple(part.name for part in program.spec.parts)

    def encode(self, params: Any, obs: Any) -> Any:
        return {name: obs[name] for name in self.reads}

    def value(self, params: Any, window: Window) -> Float[Array, " B"]:
        now = jax.tree.map(lambda x: x[:, -1], window.features)
        past = jax.tree.map(lambda x: x[:, :-1], window.features)
        return jax.vmap(lambda *x: self.program(*x)[0])(now, past, window.action)


class RandomPotential:
    """A control: the output of an untrained random network at the newest observation."""

    window = 0
    HIDDEN = 64

    def __init__(self, env: Environment, seed: int):
        """**Arguments:** `env`, of whose observations it reads what the agent sees; `seed`, of its weights."""
        space: Any = env.observation_space(env.default_params)
        self.reads = observed_parts(env, world_of(env).family)
        size = sum(int(np.prod(space.spaces[name].shape, dtype=int)) for name in self.reads)
        rng = np.random.default_rng(seed)
        first = rng.normal(size=(size, self.HIDDEN)) / np.sqrt(size)
        high = np.concatenate(
            [
                np.broadcast_to(np.asarray(space.spaces[name].high, float), space.spaces[name].shape).reshape(-1)
                for name in self.reads
            ]
        )
        self.params = {
            "hidden": (4 * first / np.maximum(high, 1)[:, None]).astype(np.float32),
            "shift": rng.normal(size=self.HIDDEN).astype(np.float32),
            "out": (rng.normal(size=self.HIDDEN) / np.sqrt(self.HIDDEN)).astype(np.float32),
        }

    def encode(self, params: Any, obs: Any) -> Float[Array, " B"]:
        flat = [obs[name].reshape(obs[name].shape[0], -1).astype(jnp.float32) for name in self.reads]
        # the reward is a difference of two values: highest precision, so that both are the same on every device
        hidden = jnp.matmul(jnp.concatenate(flat, axis=1), params["hidden"], precision=jax.lax.Precision.HIGHEST)
        return jnp.matmul(jnp.tanh(hidden + params["shift"]), params["out"], precision=jax.lax.Precision.HIGHEST)

    def value(self, params: Any, window: Window) -> Float[Array, " B"]:
        return window.features[:, -1]


def on_windows(potential: Any, windows: Windows, batch: int = 1024) -> Float[np.ndarray, " B"]:
    """The values of a potential on collected windows, whose number of actions is the potential's `window`."""

    @jax.jit
    def value(params: Any, obs: Any, action: Any, time: Any) -> Float[Array, " b"]:
        rows, length = jax.tree.leaves(obs)[0].shape[:2]
        flat = jax.tree.map(lambda x: x.reshape(rows * length, *x.shape[2:]), obs)
        features = potential.encode(params, flat)
        features = jax.tree.map(lambda x: x.reshape(rows, length, *x.shape[1:]), features)
        return potential.value(params, Window(features, action, time))

    parts = []
    time = windows.time + windows.action.shape[1]
    for i in range(0, len(windows), batch):
        index = np.arange(i, i + batch) % len(windows)  # the last batch is filled up, so that one program serves all
        obs = jax.tree.map(lambda x, index=index: jnp.asarray(x[index]), windows.obs)
        values = value(potential.params, obs, jnp.asarray(windows.action[index]), jnp.asarray(time[index], jnp.int32))
        parts.append(np.asarray(values)[: len(windows) - i])
    return np.concatenate(parts)


def fixed_scale(potential: Any, windows: Windows) -> tuple[float, dict[str, float]]:
    """The factor that gives a potential a standard deviation of 1 on windows, and its statistics there.

    **Raises:** `ValueError` for a potential that is the same on all of them."""
    values = on_windows(potential, windows)
    std = float(np.std(values))
    if not std > MIN_STD:
        raise ValueError(f"the potential is {values[0]:g} on all of {len(values)} collected windows: it is constant")
    summary = {"mean": float(values.mean()), "std": std, "low": float(values.min()), "high": float(values.max())}
    return 1 / std, summary


# --- on disk ----------------------------------------------------------------------------------------------------------

FORMAT = 1
MANIFEST, PINNED = "potential.json", "potential.sha256"
_PUBLISHED = {
    "code-final.py": "`llmrl bkrl code --program FILE` reads it",
    "goal_index.json": "`llmrl bkrl goals --library FOLDER` reads it",
    "best_model.pt": "its weights are not read; `llmrl bkrl prefer --labels FILE` fits a model to answers",
}
"""Files that the published programs write, which `--pretrain_path` names -> the way to a potential."""
Kind = Literal["bk-code", "bk-pref", "bk-goal"]


class ArtifactError(ValueError):
    """A potential on disk that cannot be used; the message names the file, the fault and the remedy."""


@dataclass(frozen=True)
class Manifest:
    """A potential's kind, the environments that it fits, and its origin."""

    kind: Kind
    family: str
    """The family of environments, `babyai` or `crafter`."""
    observation: dict[str, list[Any]]
    """The parts of an observation that the potential reads: name -> shape and dtype; of a text, the hash of its
    phrases, since its length depends on the size of a room."""
    actions: tuple[str, ...]
    """The names of the environment's actions, in order."""
    window: int
    """Past observations and actions that it sees."""
    scale: float
    """By which it is multiplied: 1 / its standard deviation on the collected data."""
    model: str
    """The name of the chat model, which `llmrl bkrl train` shows."""
    prompt: str
    """SHA-256 of the prompts."""
    data: str
    """SHA-256 of the collected data."""
    files: dict[str, str]
    """The files beside this one: name -> SHA-256."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of the kind: sizes of a network, thresholds."""
    report: dict[str, Any] = field(default_factory=dict)
    """Measurements: correlations, accuracies, costs."""
    format: int = FORMAT


def observation_spec(env: Environment, parts: tuple[str, ...]) -> dict[str, list[Any]]:
    """Parts of an environment's observation, as a manifest has them."""
    space: Any = env.observation_space(env.default_params)

    def part_spec(name: str) -> list[Any]:
        if name in env.captions:
            return ["phrases", digest(*env.captions[name].phrases)]
        return [list(space.spaces[name].shape), np.dtype(space.spaces[name].dtype).name]

    return {name: part_spec(name) for name in sorted(parts)}


def digest(*texts: str) -> str:
    """SHA-256 of texts."""
    joined = b"".join(hashlib.sha256(text.encode()).digest() for text in texts)
    return hashlib.sha256(joined).hexdigest()


def save_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of files that are in a folder already, with their hashes."""
    files = {name: digest_of(folder / name) for name in manifest.files}
    values = dataclasses.asdict(dataclasses.replace(manifest, files=files))
    body = json.dumps(values, indent=1, sort_keys=True)
    write_whole(folder / MANIFEST, json.dumps({"sha256": digest(body), "manifest": values}, indent=1) + "\n")


def load_manifest(folder: str | Path, kind: str = "") -> Manifest:
    """Read a manifest, and verify it and the files beside it.

    **Arguments:** `kind`, the kind that is needed (empty: any).
    **Raises:** `FileNotFoundError`; `ArtifactError` for another kind or format, and for a file that was cut or edited.
    """
    folder = Path(folder)
    path = folder / MANIFEST
    if not path.is_file():
        published = [name for name in _PUBLISHED if (folder / name).is_file() or folder.name == name]
        remedy = f"; {published[0]} is the published program's: {_PUBLISHED[published[0]]}" if published else ""
        if not published and folder.suffix == ".py":
            remedy = f"; {folder.name} is a program: {_PUBLISHED['code-final.py']}"
        raise FileNotFoundError(
            f"there is no potential in {folder}: `llmrl bkrl code`, `prefer` and `goals` write them, with a {MANIFEST}"
            + remedy
        )
    try:
        body = read_json(path)
        values, checksum = dict(body["manifest"]), body["sha256"]
        version = values["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{path} is cut or was edited ({error}): make the potential again") from None
    if version != FORMAT:
        raise ArtifactError(f"{path} has format {version}; this version of llmrl_jax reads {FORMAT}: make it again")
    if checksum != digest(json.dumps(values, indent=1, sort_keys=True)):
        raise ArtifactError(f"{path} was edited: its checksum does not fit; make the potential again")
    manifest = from_json(Manifest, values)
    if kind and manifest.kind != kind:
        raise ArtifactError(f"{folder} has a potential of {manifest.kind}, not of {kind}: choose --alg {manifest.kind}")
    for name, checksum in manifest.files.items():
        if not (folder / name).is_file():
            raise ArtifactError(f"{folder} lacks {name}, which its potential needs: make it again")
        if digest_of(folder / name) != checksum:
            raise ArtifactError(f"{folder / name} is cut or was edited: its checksum does not fit; make it again")
    return manifest


def check_fits(manifest: Manifest, env: Environment, folder: str | Path) -> None:
    """**Raises** `ArtifactError` if a potential was made for another environment than `env`."""
    family = world_of(env).family
    if family != manifest.family:
        raise ArtifactError(
            f"{folder} was made for worlds of {manifest.family}, and {env.id} is one of {family}: choose another --env "
            "or --potential"
        )
    if tuple(env.action_names) != manifest.actions:
        counts = len(manifest.actions), len(env.action_names)
        raise ArtifactError(
            f"{folder} was made for a world of {counts[0]} actions, and {env.id} has {counts[1]}, or others: choose "
            "another --env or --potential"
        )
    space: Any = env.observation_space(env.default_params)
    for name, needed in manifest.observation.items():
        if name not in space.spaces:
            hint = nearest(name, list(space.spaces))
            raise ArtifactError(
                f"{folder} reads {name!r}, which observations of {env.id} lack{hint}: choose another --env"
            )
        spec = observation_spec(env, (name,))[name]
        if spec == list(needed):
            continue
        if name in env.captions:
            raise ArtifactError(f"{folder} reads {name!r} in other words than those of {env.id}: choose another --env")
        raise ArtifactError(
            f"{folder} reads {name!r} as {needed[1]}{needed[0]}, which is {spec[1]}{spec[0]} in {env.id}: choose "
            "another --env"
        )


def pin(run: Path, folder: str | Path) -> Manifest:
    """Note in a run's folder which potential it began with.

    **Returns:** the potential's manifest.
    **Raises:** `ArtifactError` if it began with another one: a run that goes on with it would be no continuation.
    """
    manifest, note = load_manifest(folder), run / PINNED
    now = digest(json.dumps([manifest.files, manifest.scale, manifest.window], sort_keys=True))
    if not note.exists():
        write_whole(note, now + "\n")
    elif note.read_text().strip() != now:
        raise ArtifactError(
            f"{folder} has another potential than the one with which {run} began: put that one back, or begin another "
            "run"
        )
    return manifest
