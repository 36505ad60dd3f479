"""Checkpoints of the whole training state with orbax: asynchronous, atomic, pruned, verified on reading.

A checkpoint holds every leaf of the learner's state except `frozen`, which is written once, beside them. Leaves are
stored by name; typed PRNG keys as their raw words. Each checkpoint has a description in JSON: the configuration's
identity, versions, mesh, and the shape, dtype and checksum of every leaf, which verify a restored state.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import jax
import orbax.checkpoint as ocp
from jax.sharding import SingleDeviceSharding
from orbax.checkpoint import checkpoint_managers

from llmrl_jax.core import config as configs
from llmrl_jax.core.checks import nearest
from llmrl_jax.run import info, leaves as trees


FORMAT = trees.CHECKSUMS
"""Format of the descriptions, by the version of their checksums. Checkpoints of format 1 are read too."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be used, because its configuration or state differs or it is damaged; the message says
    which."""


def _raw(x: Any) -> Any:
    return jax.random.key_data(x) if trees.is_key(x) else x


def _describe(leaves: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: {"shape": list(x.shape), "dtype": str(x.dtype)} for name, x in leaves.items()}


def _mesh(tree: Any) -> dict[str, int]:
    mesh = trees.mesh_of(tree)
    return {} if mesh is None else {str(name): size for name, size in mesh.shape.items()}


class Checkpoints:
    """The checkpoints of one run: `<folder>/checkpoints/<update>` and `<folder>/frozen`."""

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
        with _quiet():
            self._manager = ocp.CheckpointManager(self.root, options=options)

    def _score(self, metrics: Mapping[str, float]) -> float:
        value = metrics.get(self.best, math.nan) if metrics else math.nan
        return -math.inf if value is None or math.isnan(value) else value

    def updates(self) -> list[int]:
        """The updates of the complete checkpoints, ascending."""
        return sorted(self._manager.all_steps())

    def latest(self) -> int | None:
        """The update of the newest complete checkpoint."""
        return max(self.updates(), default=None)

    # --- writing ------------------------------------------------------------------------------------------------------

    def save(self, update: int, state: Any, metrics: Mapping[str, float] | None = None) -> None:
        """Write the state after `update` updates. Returns once the arrays are copied; the files are written
        in the background.

        **Raises:** `OSError` or `ValueError` if this or an earlier save failed; complete checkpoints stay intact.
        """
        metrics = dict(metrics or {})
        if self.best and self.best not in metrics:
            raise ValueError(f"there is no metric {self.best!r} to keep the best by{nearest(self.best, list(metrics))}")
        frozen = self._save_frozen(state.frozen)
        leaves = trees.named_leaves(state.replace(frozen=()))
        raw = {name: _raw(x) for name, x in leaves.items()}
        described, sums = _describe(leaves), trees.checksums(raw)
        meta = {
            "format": FORMAT,
            "update": update,
            "identity": self.identity,
            "versions": info.versions(),
            "devices": jax.device_count(),
            "mesh": _mesh(state),
            "frozen": frozen,
            "leaves": {name: {**described[name], "checksum": sums[name]} for name in leaves},
        }
        self._manager.save(
            update,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave({name: x for name, x in raw.items() if x.size}),
                meta=ocp.args.JsonSave(meta),
            ),
            metrics={name: float(value) for name, value in metrics.items()} if self.best else None,
            force=True,
        )

    def _save_frozen(self, frozen: Any) -> dict[str, int]:
        """Write the frozen part unless it is written already. **Returns:** the checksums of its leaves.

        A frozen part without a checkpoint comes from a run that ended before its first one, and is replaced."""
        if not jax.tree.leaves(frozen):
            return {}
        if not hasattr(self, "_frozen_sums"):
            leaves = trees.named_leaves(frozen)
            raw = {name: _raw(x) for name, x in leaves.items()}
            if not self.updates() or not self.frozen_root.exists():
                with ocp.StandardCheckpointer() as writer:
                    writer.save(self.frozen_root, {name: x for name, x in raw.items() if x.size}, force=True)
            self._frozen_sums = trees.checksums(raw)
        return self._frozen_sums

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
        """The description saved with a checkpoint."""
        try:
            return self._manager.restore(update, args=ocp.args.Composite(meta=ocp.args.JsonRestore())).meta
        except Exception as error:
            raise CheckpointError(f"its description cannot be read: {_line(error)}") from error

    def restore(self, like: Any, update: int | None = None, fresh: Any = ()) -> tuple[Any, int]:
        """Read a checkpoint.

        **Arguments:** `like`, a state (of arrays or `jax.ShapeDtypeStruct`) with the structure, shapes, dtypes and
        shardings of the result; the devices may differ from those at saving; `update`, which checkpoint (None: the
        newest); `fresh`, the frozen part of a new start: if it equals the saved one, it is used instead of reading, so
        that its memory is needed only once.
        **Returns:** the state and its update.
        **Raises:** `FileNotFoundError` if there is none; `CheckpointError` if its configuration differs (naming the
        options), its state differs (naming the leaves), the data in the `fresh` frozen part differ (leaves of int32
        and bool, such as tokens and masks), or it is damaged (naming the last good one).
        """
        known = self.updates()
        if not known:
            raise FileNotFoundError(f"there is no checkpoint in {self.root}")
        wanted = known[-1] if update is None else update
        if wanted not in known:
            has = ", ".join(map(str, known))
            raise FileNotFoundError(f"there is no checkpoint of update {wanted} in {self.root}; it has {has}")
        try:
            meta = self.describe(wanted)
            self._check_identity(meta, wanted)
            same = self._is_same(fresh, meta, wanted)
            return self._read(like, wanted, meta, fresh if same else None), wanted
        except _Damaged as error:
            self._offer(like, wanted, error)
        except CheckpointError as error:
            if error.__cause__ is None:
                raise
            self._offer(like, wanted, error)

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
        """Whether the frozen part equals the saved one. **Raises:** `CheckpointError` if its data differ."""
        leaves = trees.named_leaves(fresh)
        if not leaves:
            return False
        saved = meta["frozen"]
        sums = trees.checksums({name: _raw(x) for name, x in leaves.items()}, meta["format"])
        data = [n for n, x in leaves.items() if str(x.dtype) in ("int32", "bool")]
        changed = [n for n in data if saved.get(n, sums[n]) != sums[n]]
        if changed:
            raise CheckpointError(
                f"checkpoint {update} in {self.root} was made with other data: {', '.join(changed[:5])} changed since. "
                "Put the data back to continue it, or start a run of another name"
            )
        return sums == saved

    def _read(self, like: Any, update: int, meta: Mapping[str, Any], frozen: Any = None) -> Any:
        """The state, with the given `frozen` part, else with that on disk."""
        frozen_like, like, version = like.frozen, like.replace(frozen=()), meta["format"]
        wanted = trees.named_leaves(like)
        _check_leaves(meta["leaves"], _describe(wanted), f"checkpoint {update} in {self.root}")
        sums = {name: leaf["checksum"] for name, leaf in meta["leaves"].items()}

        def restore(target):
            args = ocp.args.Composite(state=ocp.args.StandardRestore(target))
            return self._manager.restore(update, args=args).state

        state = _restore(like, wanted, sums, restore, version)
        if frozen is not None:
            self._keep_sums(meta)
            return state.replace(frozen=frozen)
        frozen_leaves = trees.named_leaves(frozen_like)
        if set(frozen_leaves) != set(meta["frozen"]):
            odd = sorted(set(frozen_leaves) ^ set(meta["frozen"]))
            raise CheckpointError(f"the frozen part of {self.folder} has other leaves: {', '.join(odd[:5])}")
        if not frozen_leaves:
            return state.replace(frozen=frozen_like)

        def restore_frozen(target):
            with ocp.StandardCheckpointer() as reader:
                return reader.restore(self.frozen_root, target)

        frozen = _restore(frozen_like, frozen_leaves, meta["frozen"], restore_frozen, version, "frozen.")
        self._keep_sums(meta)
        return state.replace(frozen=frozen)

    def _keep_sums(self, meta: Mapping[str, Any]) -> None:
        """Keep the checksums of the frozen part for the next checkpoint, unless they are of an older version."""
        if meta["format"] == FORMAT:
            self._frozen_sums = meta["frozen"]

    def _offer(self, like: Any, update: int, why: Exception) -> NoReturn:
        """Refuse a damaged checkpoint, and name the newest older one that is intact."""
        for older in reversed([u for u in self.updates() if u < update]):
            try:
                self._read(like, older, self.describe(older))
            except CheckpointError:
                continue
            offer = f"the last good one is that of update {older}: continue from it with resume_from={older}"
            break
        else:
            offer = "no older one is whole"
        raise CheckpointError(f"checkpoint {update} in {self.root} is damaged ({why}); {offer}") from why


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


class _Damaged(CheckpointError):
    """The bytes of a checkpoint differ from those saved."""


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:160]}"


def _check_leaves(saved: Mapping[str, Any], wanted: Mapping[str, Any], what: str) -> None:
    lines = [f"{name} is not in it" for name in wanted if name not in saved]
    lines += [f"{name} is only in it" for name in saved if name not in wanted]
    for name in wanted:
        if name in saved:
            a, b = saved[name], wanted[name]
            if (a["shape"], a["dtype"]) != (b["shape"], b["dtype"]):
                lines.append(f"{name} is {a['dtype']}{a['shape']}, not {b['dtype']}{b['shape']}")
    if lines:
        more = f" and {len(lines) - 5} more" if len(lines) > 5 else ""
        raise CheckpointError(f"{what} is of another state: {'; '.join(lines[:5])}{more}")


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


def _restore(
    like: Any, wanted: Mapping[str, Any], sums: Mapping[str, int], restore: Any, version: int, prefix: str = ""
) -> Any:
    """Read the leaves `wanted` into the structure of `like`, verify their checksums of that version, and rewrap PRNG
    keys."""
    target = {name: _target(x) for name, x in wanted.items()}
    try:
        read = dict(restore({name: x for name, x in target.items() if x.size}))
    except Exception as error:
        raise _Damaged(_line(error)) from error
    for name, x in target.items():
        if not x.size:
            read[name] = jax.device_put(jax.numpy.zeros(x.shape, x.dtype), x.sharding)
    actual = trees.checksums({name: read[name] for name in wanted}, version)
    wrong = [prefix + name for name in wanted if actual[name] != sums[name]]
    if wrong:
        raise _Damaged(f"the contents of {', '.join(wrong[:5])} changed since they were saved")
    leaves = []
    for name, x in wanted.items():
        value = read[name]
        if trees.is_key(x):
            value = jax.random.wrap_key_data(value, impl=_key_impl(x))
        leaves.append(value)
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def restore_state(folder: str | Path, like: Any, update: int | None = None, config: Any = None) -> tuple[Any, int]:
    """Read one checkpoint of a run without changing the folder; see `Checkpoints.restore`."""
    with Checkpoints(folder, config=config, read_only=True) as checkpoints:
        return checkpoints.restore(like, update)
