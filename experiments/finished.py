"""Whether a run of an experiment is there already, with the settings that are asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llmrl_jax.core import config as configs


def finished(folder: Path, config: Any) -> bool:
    """Return whether a run has ended as it should.

    **Raises:** `ValueError` if it was begun with other settings, whose numbers would enter the table under these.
    """
    if (folder / "config.json").exists():
        saved, now = (
            {name: value for name, value in configs.to_json(one).items() if name != "run"}
            for one in (configs.load_config(type(config), folder / "config.json"), config)
        )
        if changed := configs.differences(saved, now):
            raise ValueError(
                f"{folder} was made with other settings: {'; '.join(changed)} (there -> now); put these back, or "
                "choose another --out"
            )
    file = folder / "summary.json"
    return file.exists() and not json.loads(file.read_text()).get("stopped")
