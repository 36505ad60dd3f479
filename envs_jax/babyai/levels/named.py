"""BK-RL's levels: one large room, a target that the level names, distractors (Zhang et al., 2407.03964).

Distractors may look like the target: reaching any such object is a success, as the mission's "a" says.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from envs_jax.babyai.constants import BALL, BLUE, BOX, COLORS, GREEN, RED, TYPES
from envs_jax.babyai.levels.layout import all_reachable, word
from envs_jax.babyai.levels.level import LOOSE, Level, agent_first, check_room, descriptors, random_objects
from envs_jax.babyai.mission import AFTER, ANY, BEFORE, GO_TO, PICK_UP, SINGLE
from envs_jax.checks import at_least, nearest


VERBS = {"go_to": GO_TO, "pick_up": PICK_UP}
RANDOM = "random"
DRAWN = tuple((kind, color) for color in (RED, GREEN, BLUE) for kind in (BALL, BOX))
"""The targets of `random`, equally likely."""
_NAMES = {f"{COLORS[c]} {TYPES[t]}": (t, c) for c in range(len(COLORS)) for t in LOOSE}


def _look(option: str, name: str) -> tuple[int, int]:
    """Type and colour of a target, as in "red ball"."""
    if name not in _NAMES:
        raise ValueError(
            f"NamedTarget: {option} is {name!r}{nearest(name, [*_NAMES, RANDOM])}; a colour and key, ball or box are "
            "needed, as in 'red ball'"
        )
    return _NAMES[name]


def named_target(
    room_size: int = 20, num_dists: int = 7, verb: str = "go_to", target: str = "red ball", then: str = ""
) -> Level:
    """Go to, or pick up, a target that is always the same, among random things.

    **Arguments:** `room_size`, walls included; `num_dists`, distractors; `verb`, `go_to` or `pick_up`; `target`, such
    as `red ball`, or `random`: a red, green or blue ball or box, drawn for each episode; `then`, empty, or a target to
    go to after the first, where the mission says either "..., then ..." or "... after you ...".
    """
    if verb not in VERBS:
        raise ValueError(f"NamedTarget: verb is {verb!r}{nearest(verb, list(VERBS))}; {' or '.join(VERBS)} is needed")
    at_least("NamedTarget: num_dists", num_dists, 0)
    if target == RANDOM and then:
        raise ValueError(f"NamedTarget: target is random and then is {then!r}; name the first target, or no second")
    looks = DRAWN if target == RANDOM else (_look("target", target),)
    after = (_look("then", then),) if then else ()
    first = len(after) + 1
    count = first + num_dists
    rooms = check_room("NamedTarget", room_size, count)

    def attempt(rng, task):
        kind, color = random_objects(rng, count)
        look = jnp.asarray(np.array(looks, np.int32))
        look = look[rng.integers(len(looks))] if len(looks) > 1 else look[0]
        kind, color = kind.at[0].set(look[0]), color.at[0].set(look[1])
        for i, (its_kind, its_color) in enumerate(after, 1):
            kind, color = kind.at[i].set(its_kind), color.at[i].set(its_color)
        layout, grid = agent_first(rng, rooms, kind, color)
        layout = layout.replace(accepted=layout.accepted & all_reachable(rooms, grid, layout.position))
        if not after:
            clause, order = jnp.array([VERBS[verb], 0, 0, 0]), jnp.int32(SINGLE)
            parts = descriptors((0, [(kind[0], color[0], ANY)]))
        else:
            # the target comes first in time under both wordings
            early = rng.integers(2) == 0
            x, y = jnp.where(early, 0, 1), jnp.where(early, 1, 0)
            parts = descriptors((0, [(kind[x], color[x], ANY)]), (2, [(kind[y], color[y], ANY)]))
            clause = jnp.stack([jnp.where(early, VERBS[verb], GO_TO), 0, jnp.where(early, GO_TO, VERBS[verb]), 0])
            order = jnp.where(early, BEFORE, AFTER)
        return layout, grid, word(rooms, layout, clause, order, *parts)

    tasks = (f"{verb}_seq_go_to" if after else verb,)
    clauses = (0, 2) if after else (0,)
    return Level(rooms, count, tasks, frozenset({VERBS[verb], *([GO_TO] if after else [])}), clauses, attempt)
