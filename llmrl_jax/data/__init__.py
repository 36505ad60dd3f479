"""Recorded steps on the device and in files, for offline learners and models learned from trajectories."""

from typing import TYPE_CHECKING

from envs_jax.lazy import attach


if TYPE_CHECKING:
    from llmrl_jax.data.columns import D4RL_NAMES, from_columns, to_columns
    from llmrl_jax.data.masked import read_masked, write_masked
    from llmrl_jax.data.parquet import read_parquet, write_parquet
    from llmrl_jax.data.reading import read_arrays, read_data, read_hdf5, write_arrays
    from llmrl_jax.data.transitions import (
        DataError,
        Trajectories,
        Transitions,
        check_episodes,
        episode_lengths,
        to_trajectories,
        to_transitions,
    )


__all__ = [
    "D4RL_NAMES",
    "DataError",
    "Trajectories",
    "Transitions",
    "check_episodes",
    "episode_lengths",
    "from_columns",
    "read_arrays",
    "read_data",
    "read_hdf5",
    "read_masked",
    "read_parquet",
    "to_columns",
    "to_trajectories",
    "to_transitions",
    "write_arrays",
    "write_masked",
    "write_parquet",
]

__getattr__ = attach(
    __name__,
    {
        "columns": ["D4RL_NAMES", "from_columns", "to_columns"],
        "masked": ["read_masked", "write_masked"],
        "parquet": ["read_parquet", "write_parquet"],
        "reading": ["read_arrays", "read_data", "read_hdf5", "write_arrays"],
        "transitions": [
            "DataError",
            "Trajectories",
            "Transitions",
            "check_episodes",
            "episode_lengths",
            "to_trajectories",
            "to_transitions",
        ],
    },
)


def __dir__() -> list[str]:
    return __all__
