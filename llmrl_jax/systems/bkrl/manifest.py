"""Artifacts: potentials on disk, with what they were made from; they are refused where they do not fit."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from envs_jax.env import Environment
from llmrl_jax.core.checks import nearest
from llmrl_jax.core.config import from_json, read_json
from llmrl_jax.core.files import digest_of, write_whole
from llmrl_jax.systems.bkrl.worlds import world_of


FORMAT = 1
NAME, KEPT = "potential.json", "potential.sha256"
Kind = Literal["bk-code", "bk-pref", "bk-goal"]


class ArtifactError(ValueError):
    """An artifact that cannot be used; the message names the file, the fault and the remedy."""


@dataclass(frozen=True)
class Manifest:
    """What a potential is, and what it was made from."""

    kind: Kind
    family: str
    """The family of worlds, `babyai` or `crafter`."""
    observation: dict[str, list[Any]]
    """The parts of an observation that the potential reads: name -> shape and dtype; of a text, the hash of its
    phrases, since its length depends on the size of a room."""
    actions: tuple[str, ...]
    """The names of the world's actions, in order."""
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
    """What was measured: correlations, accuracies, costs."""
    format: int = FORMAT


def observed(env: Environment, parts: tuple[str, ...]) -> dict[str, list[Any]]:
    """What a manifest says about parts of a world's observation."""
    space: Any = env.observation_space(env.default_params)

    def about(name: str) -> list[Any]:
        if name in env.captions:
            return ["phrases", digest(*env.captions[name].phrases)]
        return [list(space.spaces[name].shape), np.dtype(space.spaces[name].dtype).name]

    return {name: about(name) for name in sorted(parts)}


def digest(*texts: str) -> str:
    """SHA-256 of texts."""
    whole = hashlib.sha256()
    for text in texts:
        whole.update(hashlib.sha256(text.encode()).digest())
    return whole.hexdigest()


def save(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of files that are in a folder already, with their hashes."""
    files = {name: digest_of(folder / name) for name in manifest.files}
    values = dataclasses.asdict(dataclasses.replace(manifest, files=files))
    body = json.dumps(values, indent=1, sort_keys=True)
    write_whole(folder / NAME, json.dumps({"sha256": digest(body), "manifest": values}, indent=1) + "\n")


def load(folder: str | Path, kind: str = "") -> Manifest:
    """Read a manifest, and verify it and the files beside it.

    **Arguments:** `kind`, the kind that is needed (empty: any).
    **Raises:** `FileNotFoundError`; `ArtifactError` for another kind or format, and for a file that was cut or edited.
    """
    folder = Path(folder)
    path = folder / NAME
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no potential in {folder}: `llmrl bkrl code`, `prefer` and `goals` write them, with a {NAME}"
        )
    try:
        body = read_json(path)
        values, said = dict(body["manifest"]), body["sha256"]
        version = values["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{path} is cut or was edited ({error}): make the potential again") from None
    if version != FORMAT:
        raise ArtifactError(f"{path} has format {version}; this version of llmrl_jax reads {FORMAT}: make it again")
    if said != digest(json.dumps(values, indent=1, sort_keys=True)):
        raise ArtifactError(f"{path} was edited: its checksum does not fit; make the potential again")
    manifest = from_json(Manifest, values)
    if kind and manifest.kind != kind:
        raise ArtifactError(f"{folder} has a potential of {manifest.kind}, not of {kind}: choose --alg {manifest.kind}")
    for name, wanted in manifest.files.items():
        if not (folder / name).is_file():
            raise ArtifactError(f"{folder} lacks {name}, which its potential needs: make it again")
        if digest_of(folder / name) != wanted:
            raise ArtifactError(f"{folder / name} is cut or was edited: its checksum does not fit; make it again")
    return manifest


def check_fits(manifest: Manifest, env: Environment, folder: str | Path) -> None:
    """**Raises** `ArtifactError` if a potential was made for another world than `env`."""
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
    for name, wanted in manifest.observation.items():
        if name not in space.spaces:
            said = nearest(name, list(space.spaces))
            raise ArtifactError(
                f"{folder} reads {name!r}, which observations of {env.id} lack{said}: choose another --env"
            )
        here = observed(env, (name,))[name]
        if here == list(wanted):
            continue
        if name in env.captions:
            raise ArtifactError(f"{folder} reads {name!r} in other words than those of {env.id}: choose another --env")
        raise ArtifactError(
            f"{folder} reads {name!r} as {wanted[1]}{wanted[0]}, which is {here[1]}{here[0]} in {env.id}: choose "
            "another --env"
        )


def keep(run: Path, folder: str | Path) -> Manifest:
    """Note in a run's folder which potential it began with.

    **Returns:** the potential's manifest.
    **Raises:** `ArtifactError` if it began with another one: a run that goes on with it would be no continuation.
    """
    manifest, note = load(folder), run / KEPT
    now = digest(json.dumps([manifest.files, manifest.scale, manifest.window], sort_keys=True))
    if not note.exists():
        write_whole(note, now + "\n")
    elif note.read_text().strip() != now:
        raise ArtifactError(
            f"{folder} has another potential than the one with which {run} began: put that one back, or begin another "
            "run"
        )
    return manifest
