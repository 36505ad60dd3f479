"""Potentials from their folders on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from envs_jax.env import Environment
from llmrl_jax.advice.sandbox import Program
from llmrl_jax.core.config import from_json
from llmrl_jax.systems.bkrl import manifest as manifests
from llmrl_jax.systems.bkrl.goals import load_goals
from llmrl_jax.systems.bkrl.potentials import ProgramPotential, Scaled
from llmrl_jax.systems.bkrl.preference_model import PreferenceModelConfig
from llmrl_jax.systems.bkrl.preferences import WEIGHTS, load_model


PROGRAM = "program.json"


def load_potential(folder: Path, env: Environment, kind: str) -> Scaled:
    """The potential in a folder, in units of its standard deviation, for a world.

    **Raises:** `FileNotFoundError`; `ArtifactError` for another kind, another world, or files that were cut or edited.
    """
    manifest = manifests.load(folder, kind)
    manifests.check_fits(manifest, env, folder)
    inner: Any
    if kind == "bk-code":
        inner = ProgramPotential(Program.load(folder / PROGRAM))
        reads = {part.name: list(part.shape) for part in inner.program.spec.parts}
        if inner.window != manifest.window or reads != {name: x[0] for name, x in manifest.observation.items()}:
            raise manifests.ArtifactError(
                f"{folder / PROGRAM} sees {reads} and {inner.window} actions, which is not what its "
                f"{manifests.NAME} says: make it again"
            )
    elif kind == "bk-pref":
        config = from_json(PreferenceModelConfig, manifest.options)
        inner = load_model(env, manifest.family, config, folder / WEIGHTS, manifest.window)
    else:
        inner = load_goals(folder, manifest, env)
    return Scaled(inner, manifest.scale)
