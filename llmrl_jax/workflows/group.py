"""Several runs in one program, each with a folder, a log, checkpoints and an evaluation of its own.

Runs whose updates are the same function of the state, as those that differ in seeds and traced floats, are rows of one
`vmap` (`llmrl_jax.rl.seeds`). Each is an ordinary run in a thread; one thread works at a time. Where a run compiles its
updates or calls them, it waits for the others, and the last computes the updates of all. A run that ends leaves the
group, and the others continue. A run whose update differs, or that resumes elsewhere, runs by itself.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from llmrl_jax.core.activity import say
from llmrl_jax.core.learner import Learner
from llmrl_jax.rl.seeds import equal_parts, select_run, stack_runs, vmap_learners
from llmrl_jax.run import pytrees as trees
from llmrl_jax.run.chunk import MEMBER, compile_chunk
from llmrl_jax.run.metrics import by_run
from llmrl_jax.run.signals import StopRequest


def run_group(runs: Sequence[Callable[[], int]]) -> list[int]:
    """Call functions that each make a run. **Returns:** what they return; 1 for one that raises."""
    with StopRequest() as request:
        group = _Group(len(runs), request)
        threads = [threading.Thread(target=group.enter, args=x, daemon=True) for x in enumerate(runs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return group.codes


class Member:
    """The part of a group that one run sees."""

    def __init__(self, group: _Group, number: int):
        self.group, self.number, self.alone = group, number, False

    @property
    def stop(self) -> str:
        """The signal by which the run has to stop; the same for all runs of the program."""
        return self.group.request.name if self.alone else self.group.stop

    @property
    def spent(self) -> float | None:
        """Seconds of the last chunk, without waiting and compiling; None for a run by itself."""
        return None if self.alone else self.group.spent

    def compile_chunk(self, learner: Learner, state: Any, capacity: int) -> tuple[Any, float]:
        """`llmrl_jax.run.chunk.compile_chunk` for all runs of the group."""
        seconds = self.group.meet(self.number, (learner, state, capacity), self.group.compile)
        if seconds is None:
            self.alone = True
            return compile_chunk(learner, state, capacity)
        return lambda *inputs: self.group.meet(self.number, inputs, self.group.advance), seconds


class _Group:
    def __init__(self, size: int, request: StopRequest):
        self.request, self.stop, self.codes = request, "", [1] * size
        self.turn = threading.Condition()
        """Held by the thread that works."""
        self.members = set(range(size))
        self.inputs: dict[int, Any] = {}
        self.outputs: dict[int, Any] = {}
        self.work: Callable[[dict[int, Any]], dict[int, Any]] = dict
        self.spent = 0.0

    def enter(self, number: int, run: Callable[[], int]) -> None:
        """Make a run, in its thread."""
        MEMBER.set(Member(self, number))
        with self.turn:
            try:
                self.codes[number] = run()
            finally:
                self._leave(number)

    def _leave(self, number: int) -> None:
        self.members.discard(number)
        self._complete()

    def meet(self, number: int, inputs: Any, work: Callable[[dict[int, Any]], dict[int, Any]]) -> Any:
        """Wait until all members have given inputs, for which `work` computes the outputs. **Returns:** its own."""
        self.inputs[number], self.work = inputs, work
        self._complete()
        self.turn.wait_for(lambda: number in self.outputs)
        if isinstance(output := self.outputs.pop(number), Exception):
            raise output
        return output

    def _complete(self) -> None:
        if not self.inputs or self.inputs.keys() != self.members:
            return
        inputs, self.inputs = {i: self.inputs[i] for i in sorted(self.inputs)}, {}
        self.stop = self.request.name
        try:
            self.outputs |= self.work(inputs)  # beside those of runs that have not been woken yet
        except Exception as error:
            self.outputs |= dict.fromkeys(inputs, error)
        self.turn.notify_all()

    def compile(self, inputs: Mapping[int, tuple[Learner, Any, int]]) -> dict[int, float | None]:
        """Compile the updates of the members that have the first one's program. **Returns:** the seconds; None for
        the others, which leave."""
        started = time.monotonic()
        programs = {i: (_program(learner, state), capacity) for i, (learner, state, capacity) in inputs.items()}
        self.learner, _, self.capacity = inputs[min(inputs)]
        self.members = {i for i in inputs if programs[i] == programs[min(inputs)]}
        if others := len(inputs) - len(self.members):
            say(f"note: {others} of {len(inputs)} runs have another program than the first: they run by themselves")
        self._build({i: inputs[i][1] for i in inputs if i in self.members})
        seconds = time.monotonic() - started
        return {i: seconds if i in self.members else None for i in inputs}

    def _build(self, states: Mapping[int, Any]) -> None:
        rows = list(states.values())
        shared = equal_parts(rows, self.learner.shared)
        merged = stack_runs(rows, shared)
        self.chunk, _ = compile_chunk(vmap_learners(self.learner, len(rows)), merged, self.capacity)
        self.order, self.frozen, own_frozen = tuple(states), merged.frozen, merged.own_frozen
        self.stacked = jax.jit(lambda *rows: stack_runs(rows, shared).replace(own_frozen=own_frozen))
        self.split = jax.jit(lambda merged: [select_run(merged, i) for i in range(len(rows))])

    def advance(self, inputs: Mapping[int, tuple[Any, Any, np.int32]]) -> dict[int, Any]:
        """A chunk of updates of all members. **Returns:** what each one's own chunk would."""
        if tuple(inputs) != self.order:  # one has ended
            self._build({i: state.replace(frozen=frozen) for i, (state, frozen, _) in inputs.items()})
        lengths = {int(n) for _, _, n in inputs.values()}
        if len(lengths) > 1:
            raise ValueError(f"chunks have {sorted(lengths)} updates: runs of one program need equal run.*_every")
        merged = self.stacked(*(state for state, _, _ in inputs.values()))
        started = time.monotonic()
        merged, rows = self.chunk(merged, self.frozen, np.int32(lengths.pop()))
        lines = by_run(jax.device_get(rows))
        self.spent = time.monotonic() - started
        return {i: (tree, lines[str(k)]) for k, (i, tree) in enumerate(zip(inputs, self.split(merged)))}


def _program(learner: Learner, state: Any) -> Any:
    """A learner's update as a function of the state, to compare: equal only if both compute the same, bit for bit."""
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)
    closed = jax.make_jaxpr(learner.update)(shapes)
    text = re.sub(r" at 0x[0-9a-f]+", "", str(closed.jaxpr))
    parts = int(state.update), jax.tree.structure(state), dict(learner.compiler_options), text
    arrays = [np.asarray(jax.random.key_data(x) if trees.is_key(x) else x) for x in _constants(closed)]
    return parts, [(str(x.dtype), x.shape, x.tobytes()) for x in arrays]


def _constants(jaxpr: Any) -> Iterator[Any]:
    """The constants of a program and of those inside it, which its text does not have."""
    yield from getattr(jaxpr, "consts", ())
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield from (x.val for x in equation.invars if isinstance(x, Literal))
        for part in jax.tree.leaves(equation.params):
            if isinstance(part, ClosedJaxpr | Jaxpr):
                yield from _constants(part)
