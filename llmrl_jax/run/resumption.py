"""What a resumed run needs in its folder: the checkpoint that it continues from, and its metrics up to there. Reads
names and text only, and starts no device."""

from __future__ import annotations

from pathlib import Path

from llmrl_jax.run import metrics
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.status import read_status


def saved_updates(folder: str | Path) -> list[int]:
    """The updates of a run's complete checkpoints, ascending, from the names of their folders."""
    root = Path(folder) / "checkpoints"
    return sorted(int(path.name) for path in root.iterdir() if path.name.isdigit()) if root.is_dir() else []


def start_of(folder: str | Path, config: RunConfig) -> tuple[int, str]:
    """The update from which a run continues; 0 for a new run, or one that was never saved.

    **Arguments:** `folder`, the run's; `config`, with `resume`, `resume_from` and `accept_gaps`.
    **Returns:** the update, and what the user should know (empty: nothing).
    **Raises:** `FileNotFoundError` if the checkpoint to continue from is missing, or all are although the run was
    saved; `ValueError` if `metrics.jsonl` does not have every update up to there, unless `accept_gaps`.
    """
    folder = Path(folder)
    if not config.resume:
        return 0, ""
    saved = saved_updates(folder)
    if config.resume_from >= 0 and config.resume_from not in saved:
        has = f"it has {', '.join(map(str, saved))}" if saved else "it has none"
        raise FileNotFoundError(
            f"--run.resume-from is {config.resume_from}, but there is no checkpoint of that update in "
            f"{folder / 'checkpoints'}: {has}"
        )
    if not saved:
        _refuse_lost_checkpoints(folder)
        return 0, f"{folder} was never saved: it begins again at update 0"
    start = config.resume_from if config.resume_from >= 0 else saved[-1]
    wrong, whole = metrics.fault(folder / "metrics.jsonl", start) if start else ("", 0)
    if wrong and not config.accept_gaps:
        earlier = max((update for update in saved if update <= whole), default=None)
        back = "" if earlier is None else f", continue from an earlier checkpoint with --run.resume-from {earlier}"
        raise ValueError(
            f"{wrong}, but the run continues from update {start}: put the lines back{back}, or give them up with "
            "--run.accept-gaps"
        )
    return start, f"{wrong}; this gap was accepted" if wrong else ""


def _refuse_lost_checkpoints(folder: Path) -> None:
    """**Raises** `FileNotFoundError` if a run without checkpoints had some: it would begin at 0 and lose its log."""
    status = read_status(folder)
    reached = max((line["update"] for line in metrics.newest(folder / "metrics.jsonl").values()), default=0)
    reached = max(reached, status.update if status is not None else 0)
    had = status is not None and status.saved >= 0
    if had or (reached and not (folder / "checkpoints").is_dir()):
        raise FileNotFoundError(
            f"there is no checkpoint in {folder / 'checkpoints'}, although the run reached update {reached}: put them "
            "back, or start a run of another --run.name"
        )
