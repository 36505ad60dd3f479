"""Run: the outer loop over jitted updates, its folder, checkpoints, metrics, curves, signals and SLURM."""

from typing import TYPE_CHECKING

from envs_jax.lazy import attach


if TYPE_CHECKING:
    from llmrl_jax.run.checkpoint import CheckpointError, Checkpoints, restore_state
    from llmrl_jax.run.config import BaseRunConfig, RunConfig, resumed, use_compilation_cache
    from llmrl_jax.run.curves import learning_curve
    from llmrl_jax.run.exchange import NoAnswer
    from llmrl_jax.run.folder import Status, opened, read_status, saved_updates, write_summary
    from llmrl_jax.run.info import machine, stamp, versions
    from llmrl_jax.run.loop import RunResult, RunStopped, train
    from llmrl_jax.run.slurm import SlurmConfig, submit


__all__ = [
    "BaseRunConfig",
    "CheckpointError",
    "Checkpoints",
    "NoAnswer",
    "RunConfig",
    "RunResult",
    "RunStopped",
    "SlurmConfig",
    "Status",
    "learning_curve",
    "machine",
    "opened",
    "read_status",
    "restore_state",
    "resumed",
    "saved_updates",
    "stamp",
    "submit",
    "train",
    "use_compilation_cache",
    "versions",
    "write_summary",
]

__getattr__ = attach(
    __name__,
    {
        "checkpoint": ["CheckpointError", "Checkpoints", "restore_state"],
        "config": ["BaseRunConfig", "RunConfig", "resumed", "use_compilation_cache"],
        "curves": ["learning_curve"],
        "exchange": ["NoAnswer"],
        "folder": ["Status", "opened", "read_status", "saved_updates", "write_summary"],
        "info": ["machine", "stamp", "versions"],
        "loop": ["RunResult", "RunStopped", "train"],
        "slurm": ["SlurmConfig", "submit"],
    },
)


def __dir__() -> list[str]:
    return __all__
