"""The values that every `import_state` function reads from a live Gymnasium environment."""

from __future__ import annotations

from typing import Any


def elapsed_steps(gymnasium_env: Any) -> int:
    """The steps since the reset that the `TimeLimit` around an environment has counted, 0 without one."""
    layer = gymnasium_env
    while layer is not gymnasium_env.unwrapped:
        if type(layer).__name__ == "TimeLimit":
            return layer._elapsed_steps or 0
        layer = layer.env
    return 0
