"""Checkpoints of the whole training state with orbax: asynchronous, atomic, pruned, verified on reading.

A checkpoint holds every leaf of the learner's state except `frozen`, which is written once, beside them. Its part
`given` (the data of an offline learner) is not written: checkpoints have its checksums, and a run that continues with
other data is refused. Leaves are stored by name; typed PRNG keys as their raw words. Each checkpoint has a description
in JSON: the configuration's identity, versions, mesh, and the shape, dtype and checksum of every leaf, which verify a
restored state.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import sys
import traceback
import zlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import jax
import orbax.checkpoint as ocp
from jax.sharding import SingleDeviceSharding
from orbax.checkpoint import checkpoint_managers

from llmrl_jax.core import config as configs
from llmrl_jax.run import frozen as frozen_part, info, pytrees as trees


FORMAT = trees.CHECKSUMS
"""Format of the descriptions, by the version of their checksums. Checkpoints of format 1 are read too."""


def _mesh(tree: Any) -> dict[str, int]:
    mesh = trees.mesh_of(tree)
    return {} if mesh is None else {str(name): size for name, size in mesh.shape.items()}


def _sum(meta: Mapping[str, Any]) -> int:
    """The CRC-32 of a description, however its JSON is written."""
    return zlib.crc32(json.dumps(json.loads(json.dumps(meta)), sort_keys=True).encode())


class Checkpoints:
    """Checkpoints of one run: `<folder>/checkpoints/<update>` and `<folder>/frozen`."""

    def __init__(
        self, folder: str | Path, *, keep: int = 2, best: str = "", config: Any = None, read_only: bool = False
    ):
        """**Arguments:** `folder`, the run's; `keep`, the number of newest checkpoints to keep; `best`, a metric whose
        highest checkpoint is kept too (empty: none); `config`, the dataclass whose identity a checkpoint must have
        (None: not compared); `read_only`, never write or delete anything in the folder."""
        self.folder = Path(folder).absolute()
        self.root, self.frozen_root = self.folder / "checkpoints", self.folder / "frozen"
        self.best, self.identity, self.read_only = best, configs.identity(config), read_only
        self.config = config
        self.notes: list[str] = []
        """What `restore` found that the user should know: other versions or devices, a frozen part that was damaged."""
        if read_only and not self.root.is_dir():
            raise FileNotFoundError(f"there are no checkpoints in {folder}")
        policies = [checkpoint_managers.LatestN(keep)]
        if best:
            policies.append(
                checkpoint_managers.BestN(  # type: ignore[arg-type]
                    get_metric_fn=self._score, n=1, keep_checkpoints_without_metrics=False
                )
            )
        options = ocp.CheckpointManagerOptions(
            save_interval_steps=0 if read_only else 1,
            preservation_policy=checkpoint_managers.AnyPreservationPolicy(policies),
            best_fn=self._score if best else None,  # without it metrics are not written, and a resumed run lacks them
            create=not read_only,
            read_only=read_only,
            cleanup_tmp_directories=not read_only,
        )
        _silence_orbax()
        mute_late_errors()
        with _quiet():
            self._manager = ocp.CheckpointManager(self.root, options=options)

    def _score(self, metrics: Mapping[str, float]) -> float:
        value = metrics.get(self.best, math.nan) if metrics else math.nan
        return -math.inf if value is None or math.isnan(value) else value

    def updates(self) -> list[int]:
        """Updates of the complete checkpoints, ascending."""
        return sorted(self._manager.all_steps())

    def latest(self) -> int | None:
        """Update of the newest complete checkpoint."""
        return max(self.updates(), default=None)

    # --- writing ------------------------------------------------------------------------------------------------------

    def save(self, update: int, state: Any, metrics: Mapping[str, float] | None = None) -> None:
        """Write the state after `update` updates. Returns once the arrays are copied; the files are written
        in the background.

        **Arguments:** `metrics`, those by which the best is kept; a checkpoint without that metric is the worst.
        **Raises:** `OSError` or `ValueError` if this or an earlier save failed; complete checkpoints stay intact.
        """
        frozen = self._save_frozen(state.frozen)
        leaves = trees.named_leaves(state.replace(frozen=()))
        raw = {name: _raw(x) for name, x in leaves.items()}
        described, sums = describe(leaves), trees.checksums(raw)
        meta = {
            "format": FORMAT,
            "update": update,
            "identity": self.identity,
            "versions": info.versions(),
            "device": info.device(),
            "devices": jax.device_count(),
            "mesh": _mesh(state),
            "frozen": frozen,
            "leaves": {name: {**described[name], "checksum": sums[name]} for name in leaves},
        }
        meta["sum"] = _sum(meta)
        self._manager.save(
            update,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave({name: x for name, x in raw.items() if x.size}),
                meta=ocp.args.JsonSave(meta),
            ),
            metrics={name: float(value) for name, value in (metrics or {}).items()} if self.best else None,
            force=True,
        )

    def _save_frozen(self, frozen: Any) -> dict[str, int]:
        """Write the frozen part unless it is written already. **Returns:** the checksums of its leaves.

        A frozen part without a checkpoint comes from a run that ended before its first one, and is replaced."""
        if not jax.tree.leaves(frozen):
            return {}
        if not hasattr(self, "_frozen_sums"):
            if not self.updates() or not self.frozen_root.exists():
                self._write_frozen(frozen)
            self._frozen_sums = trees.checksums({name: _raw(x) for name, x in trees.named_leaves(frozen).items()})
        return self._frozen_sums

    def _write_frozen(self, frozen: Any) -> None:
        leaves = {name: _raw(x) for name, x in frozen_part.written(trees.named_leaves(frozen)).items()}
        if leaves:
            frozen_part.write(self.frozen_root, {name: x for name, x in leaves.items() if x.size})

    def wait(self) -> None:
        """Wait until everything saved is on disk. **Raises:** the error of a failed write."""
        self._manager.wait_until_finished()

    def reload(self) -> None:
        """Read the list of checkpoints from disk. After a failed save the manager lacks those that it was about to
        prune, although they still exist."""
        self._manager.reload()

    def discard_after(self, update: int) -> None:
        """Delete the checkpoints of later updates."""
        for later in [u for u in self.updates() if u > update]:
            self._manager.delete(later)

    def close(self) -> None:
        """Wait for pending writes, and end the threads."""
        self._manager.close()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    # --- reading ------------------------------------------------------------------------------------------------------

    def describe(self, update: int) -> dict[str, Any]:
        """Description saved with a checkpoint. Those of earlier versions have no sum of their own."""
        try:
            meta = self._manager.restore(update, args=ocp.args.Composite(meta=ocp.args.JsonRestore())).meta
        except Exception as error:
            raise CheckpointError(f"its description cannot be read: {line_of(error)}") from error
        if meta.pop("sum", None) not in (None, _sum(meta)):
            raise Damaged("its description changed since it was saved")
        return meta

    def check(self, update: int) -> None:
        """**Raises** `CheckpointError` if the checkpoint's configuration or format differs. Starts no device; damage is
        left to `restore`."""
        try:
            meta = self.describe(update)
        except CheckpointError:
            return
        self._check_identity(meta, update)

    def restore(self, like: Any, update: int | None = None, fresh: Any = ()) -> tuple[Any, int]:
        """Read a checkpoint. `notes` says then what changed around it.

        **Arguments:** `like`, a state (of arrays or `jax.ShapeDtypeStruct`) with the structure, shapes, dtypes and
        shardings of the result; the devices may differ from those at saving; `update`, which checkpoint (None: the
        newest); `fresh`, the frozen part of a new start: if it equals the saved one, it is used instead of reading, so
        that its memory is needed only once, and written again if its files changed and are damaged.
        **Returns:** the state and its update.
        **Raises:** `FileNotFoundError` if there is none; `CheckpointError` if its configuration differs (naming the
        options), its state differs (naming the leaves), the data in the `fresh` frozen part differ (leaves of int32
        and bool, such as tokens and masks, and all of `given`), or it is damaged (naming the last good one).
        """
        complete = self.updates()
        if not complete:
            raise FileNotFoundError(f"there is no checkpoint in {self.root}")
        chosen = complete[-1] if update is None else update
        if chosen not in complete:
            listed = ", ".join(map(str, complete))
            raise FileNotFoundError(f"there is no checkpoint of update {chosen} in {self.root}; it has {listed}")
        try:
            meta = self.describe(chosen)
            self._check_identity(meta, chosen)
            is_same = self._is_same(fresh, meta, chosen)
            if not is_same and jax.tree.leaves(getattr(fresh, "given", ())):
                like = like.replace(frozen=like.frozen.replace(given=fresh.given))
            state = self._read(like, chosen, meta, fresh if is_same else None)
            if is_same:
                self._repair_frozen(fresh, meta)
            self.notes += moved(meta, chosen)
            return state, chosen
        except _DamagedFrozen as error:
            raise CheckpointError(
                f"the frozen part of {self.folder} is damaged ({error}): delete {self.frozen_root}, and --run.resume "
                "writes it again, if the model and the data are where they were"
            ) from error
        except Damaged as error:
            self._offer(like, chosen, error)
        except CheckpointError as error:
            if error.__cause__ is None:
                raise
            self._offer(like, chosen, error)

    def _check_identity(self, meta: Mapping[str, Any], update: int) -> None:
        if meta.get("format") not in (1, FORMAT):
            raise CheckpointError(
                f"checkpoint {update} in {self.root} has format {meta.get('format')}; this version reads 1 and {FORMAT}"
            )
        changed = []
        if self.config is not None:
            changed = configs.differences(configs.completed(meta["identity"], self.config), self.identity)
        if changed:
            raise CheckpointError(
                f"checkpoint {update} in {self.root} is of another configuration: {'; '.join(changed)} "
                "(saved -> now). Put these back to continue it, or start a run of another name"
            )

    def _is_same(self, fresh: Any, meta: Mapping[str, Any], update: int) -> bool:
        """Return whether the frozen part equals the saved one. **Raises:** `CheckpointError` if its data differ."""
        leaves = trees.named_leaves(fresh)
        if not leaves:
            return False
        saved = meta["frozen"]
        sums = trees.checksums({name: _raw(x) for name, x in leaves.items()}, meta["format"])
        data = [n for n, x in leaves.items() if str(x.dtype) in ("int32", "bool") or frozen_part.is_given(n)]
        changed = [n for n in data if saved.get(n, sums[n]) != sums[n]]
        if changed:
            raise CheckpointError(
                f"checkpoint {update} in {self.root} was made with other data: {', '.join(changed[:5])} changed since. "
                "Put the data back to continue it, or start a run of another name"
            )
        return sums == saved

    def _repair_frozen(self, fresh: Any, meta: Mapping[str, Any]) -> None:
        """Write the frozen part again if its files changed, and with them the arrays. Files that are as they were
        written are not read."""
        leaves = frozen_part.written(trees.named_leaves(fresh))
        if self.read_only or not leaves or not (wrong := frozen_part.changed(self.frozen_root)):
            return
        if jax.process_count() == 1:
            with contextlib.suppress(Damaged):
                for portion in frozen_part.portions(leaves):
                    self._read_frozen(portion, meta)
                return frozen_part.note(self.frozen_root)  # such as a copy, whose files have other times
        self._write_frozen(fresh)
        self.notes.append(f"the files of the frozen part changed ({wrong}): it was written again")

    def _read_frozen(self, leaves: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, Any]:
        """Arrays of the frozen part, by name. **Raises:** `Damaged`."""
        read = partial(frozen_part.read, self.frozen_root)
        return _restore_leaves(leaves, meta["frozen"], read, meta["format"], "frozen.")

    def _read(self, like: Any, update: int, meta: Mapping[str, Any], frozen: Any = None) -> Any:
        """The state, with the given `frozen` part, else with that on disk."""
        frozen_like, like, version = like.frozen, like.replace(frozen=()), meta["format"]
        targets = trees.named_leaves(like)
        _check_leaves(meta["leaves"], describe(targets), f"checkpoint {update} in {self.root}")
        sums = {name: leaf["checksum"] for name, leaf in meta["leaves"].items()}

        def restore(target):
            args = ocp.args.Composite(state=ocp.args.StandardRestore(target))
            return self._manager.restore(update, args=args).state

        leaves = _restore_leaves(targets, sums, restore, version)
        state = jax.tree.unflatten(jax.tree.structure(like), leaves.values())
        if frozen is not None:
            self._keep_sums(meta)
            return state.replace(frozen=frozen)
        frozen_leaves = trees.named_leaves(frozen_like)
        if set(frozen_leaves) != set(meta["frozen"]):
            differing = sorted(set(frozen_leaves) ^ set(meta["frozen"]))
            raise CheckpointError(f"the frozen part of {self.folder} has other leaves: {', '.join(differing[:5])}")
        if not frozen_leaves:
            return state.replace(frozen=frozen_like)

        try:
            read = self._read_frozen(frozen_part.written(frozen_leaves), meta)
            frozen = jax.tree.unflatten(
                jax.tree.structure(frozen_like), [read.get(n, x) for n, x in frozen_leaves.items()]
            )
        except Damaged as error:
            raise _DamagedFrozen(str(error)) from error
        self._keep_sums(meta)
        return state.replace(frozen=frozen)

    def _keep_sums(self, meta: Mapping[str, Any]) -> None:
        """Keep the checksums of the frozen part for the next checkpoint, unless they are of an older version."""
        if meta["format"] == FORMAT:
            self._frozen_sums = meta["frozen"]

    def _offer(self, like: Any, update: int, cause: Exception) -> NoReturn:
        """Refuse a damaged checkpoint, and name the newest older one that is intact."""
        for older in reversed([u for u in self.updates() if u < update]):
            try:
                self._read(like, older, self.describe(older))
            except CheckpointError:
                continue
            option = "--checkpoint" if self.read_only else "--run.resume-from"
            offer = f"the last good one is that of update {older}: use it with {option} {older}"
            break
        else:
            offer = "no older one is whole"
        raise CheckpointError(f"checkpoint {update} in {self.root} is damaged ({cause}); {offer}") from cause


def _silence_orbax() -> None:
    """Keep orbax from logging a traceback of its threads: it raises their errors again, and our message names them."""
    logging.getLogger("absl").addFilter(_is_not_of_orbax)  # a filter is added once


def _is_not_of_orbax(record: logging.LogRecord) -> bool:
    return record.levelno < logging.ERROR or "orbax" not in Path(record.pathname).parts


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress orbax's warning that a folder opened for reading is read-only."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def restore_state(folder: str | Path, like: Any, update: int | None = None, config: Any = None) -> tuple[Any, int]:
    """Read one checkpoint of a run without changing the folder; see `Checkpoints.restore`."""
    with Checkpoints(folder, config=config, read_only=True) as checkpoints:
        return checkpoints.restore(like, update)


# --- leaves: their description, and reading with verification -------------------------------------------------------


class CheckpointError(ValueError):
    """Checkpoint that cannot be used, because its configuration or state differs or it is damaged; the message says
    which."""


def _raw(x: Any) -> Any:
    """An array as it is stored: typed PRNG keys as their words."""
    return jax.random.key_data(x) if trees.is_key(x) else x


def describe(leaves: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The shape and dtype of each array, as JSON."""
    return {name: {"shape": list(x.shape), "dtype": str(x.dtype)} for name, x in leaves.items()}


class Damaged(CheckpointError):
    """The bytes of a checkpoint differ from those saved."""


class _DamagedFrozen(Damaged):
    """The bytes of the frozen part differ from those saved."""


def moved(meta: Mapping[str, Any], update: int) -> list[str]:
    """A note if a checkpoint is of another jax, jaxlib or device, whose programs may round differently."""
    saved = {**meta.get("versions", {}), "device": meta.get("device", "")}
    now = {**info.versions(), "device": info.device()}
    changed = [
        f"{name} {saved[name]} -> {now[name]}" for name in ("jax", "jaxlib") if saved.get(name, now[name]) != now[name]
    ]
    if saved["device"] not in ("", now["device"]):
        changed.append(f"device {saved['device']} -> {now['device']}")
    if not changed:
        return []
    return [
        f"checkpoint {update} was written with others ({', '.join(changed)}): what follows may differ in its last bits "
        "from an uninterrupted run"
    ]


def line_of(error: Exception) -> str:
    """An error on one line: its class, and the beginning of its message."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:160]}"


def mute_late_errors() -> None:
    """Keep orbax's late errors from standard error: after a read or write that fails, it closes its event loop before
    tensorstore's others end, and each of those prints a traceback (`RuntimeError: Event loop is closed`), or is logged
    by asyncio as a task, or a gathering of tasks, whose error was not taken. They come before the failure reaches the
    caller or after it, so this is called before anything is read or written."""
    logging.getLogger("asyncio").addFilter(_is_not_late)  # a filter is added once
    report = sys.unraisablehook
    if getattr(report, "mutes_late_errors", False):
        return

    def hook(unraisable: Any) -> None:
        error = unraisable.exc_value
        if not isinstance(error, RuntimeError) or str(error) != "Event loop is closed":
            report(unraisable)

    hook.mutes_late_errors = True  # type: ignore[attr-defined]
    sys.unraisablehook = hook


def _is_not_late(record: logging.LogRecord) -> bool:
    """Any record but one of asyncio's on an error that was never taken and that passed through orbax or tensorstore: a
    task's text names its coroutine's file, a gathering of tasks (`_GatheringFuture`) does so only in its traceback, and
    the error of a plain future of tensorstore has no traceback, but says what was read (`tensorstore_spec`)."""
    text = record.getMessage()
    if "exception was never retrieved" not in text.split("\n", 1)[0]:
        return True
    error = record.exc_info[1] if record.exc_info else None
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    return not ("orbax" in text or "tensorstore" in text or any("orbax" in frame.filename for frame in frames))


def _check_leaves(saved: Mapping[str, Any], expected: Mapping[str, Any], subject: str) -> None:
    """**Raises** `CheckpointError` naming the leaves that are missing, extra, or of another shape or dtype."""
    lines = [f"{name} is not in it" for name in expected if name not in saved]
    lines += [f"{name} is only in it" for name in saved if name not in expected]
    for name in expected:
        if name in saved:
            a, b = saved[name], expected[name]
            if (a["shape"], a["dtype"]) != (b["shape"], b["dtype"]):
                lines.append(f"{name} is {a['dtype']}{a['shape']}, not {b['dtype']}{b['shape']}")
    if lines:
        suffix = f" and {len(lines) - 5} more" if len(lines) > 5 else ""
        raise CheckpointError(f"{subject} is of another state: {'; '.join(lines[:5])}{suffix}")


def _key_impl(x: Any) -> Any:
    """The PRNG implementation of keys, also of abstract ones (which `jax.random.key_impl` refuses)."""
    impls: list[Any] = []
    jax.eval_shape(lambda key: impls.append(jax.random.key_impl(key)), jax.ShapeDtypeStruct(x.shape, x.dtype))
    return impls[0]


def _target(x: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(x, "sharding", None) or SingleDeviceSharding(jax.devices()[0])
    if trees.is_key(x):
        x = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(x.shape, x.dtype))
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def _restore_leaves(
    targets: Mapping[str, Any], sums: Mapping[str, int], restore: Any, version: int, prefix: str = ""
) -> dict[str, Any]:
    """Read the leaves `targets`, by name and in their order, verify their checksums of that version, and rewrap PRNG
    keys.

    **Arguments:** `restore`, `(targets by name) -> arrays by name`; `prefix`, of names in messages.
    **Raises:** `Damaged` if they cannot be read, or differ from those saved.
    """
    arrays = {name: _target(x) for name, x in targets.items()}
    mute_late_errors()
    try:
        read = dict(restore({name: x for name, x in arrays.items() if x.size}))
    except Exception as error:
        raise Damaged(line_of(error)) from error
    for name, x in arrays.items():
        if not x.size:
            read[name] = jax.device_put(jax.numpy.zeros(x.shape, x.dtype), x.sharding)
    actual = trees.checksums({name: read[name] for name in targets}, version)
    wrong = [prefix + name for name in targets if actual[name] != sums[name]]
    if wrong:
        raise Damaged(f"the contents of {', '.join(wrong[:5])} changed since they were saved")
    return {
        name: jax.random.wrap_key_data(read[name], impl=_key_impl(x)) if trees.is_key(x) else read[name]
        for name, x in targets.items()
    }
