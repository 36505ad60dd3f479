"""BabyAI's words: captions against an independent describer, and against minigrid's own missions."""

from __future__ import annotations

import itertools

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from minigrid.core.constants import COLOR_NAMES, IDX_TO_COLOR, IDX_TO_OBJECT
from minigrid.envs.babyai.core import verifier

from envs_jax.babyai.constants import COLORS, TYPES
from envs_jax.babyai.mission import (
    AFTER,
    ANY,
    BEFORE,
    GO_TO,
    LOCATIONS,
    NO_CLAUSE,
    OPEN_DOOR,
    PICK_UP,
    PUT_NEXT,
    SINGLE,
    Mission,
)
from envs_jax.babyai.text import french
from envs_jax.babyai.text.english import (
    MISSION_LENGTH,
    MISSIONS,
    OBJECT,
    PLACES,
    VIEW,
    mission_caption,
    mission_limits,
    sentence_bound,
    view_caption,
    view_limits,
)


LEVELS = (
    "BabyAI-GoToLocal-v0",
    "BabyAI-GoTo-v0",
    "BabyAI-UnlockLocal-v0",
    "BabyAI-PutNextLocal-v0",
    "BabyAI-BossLevel-v0",
    "BabyAI-KeyCorridorS4R3-v0",
)
ALL = sentence_bound(len(PLACES))


@pytest.fixture(scope="module")
def captions():
    return jax.jit(jax.vmap(lambda image: view_caption(image, ALL)))


@pytest.fixture(scope="module")
def missions():
    return jax.jit(jax.vmap(mission_caption))


def describe(image: np.ndarray) -> list[str]:
    """BabyAI-Text's sentences, straight from the grammar: one rule after another, one cell after another."""
    said = []

    def steps(n):
        return "1 step" if n == 1 else f"{n} steps"

    kind, color, _ = image[3, 6]
    if IDX_TO_OBJECT[kind] in ("key", "ball", "box"):
        said.append(f"You carry a {IDX_TO_COLOR[color]} {IDX_TO_OBJECT[kind]}")
    rays = {
        "forward": [(3, 6 - n) for n in range(1, 7)],
        "left": [(3 - n, 6) for n in range(1, 4)],
        "right": [(3 + n, 6) for n in range(1, 4)],
    }
    for way, ray in rays.items():
        for n, cell in enumerate(ray, 1):
            what = IDX_TO_OBJECT[image[cell][0]]
            if what in ("unseen", "empty"):
                continue
            if what == "wall":
                said.append(f"You see a wall {steps(n)} {way}")
            break
    for i in range(7):
        for j in range(7):
            what = IDX_TO_OBJECT[image[i, j, 0]]
            if (i, j) == (3, 6) or what in ("unseen", "empty", "wall"):
                continue
            where = []
            if i < 3:
                where.append(f"{steps(3 - i)} left")
            if i > 3:
                where.append(f"{steps(i - 3)} right")
            if j < 6:
                where.append(f"{steps(6 - j)} forward")
            state = ("open ", "closed ", "locked ")[image[i, j, 2]] if what == "door" else ""
            said.append(f"You see a {state}{IDX_TO_COLOR[image[i, j, 1]]} {what} {' and '.join(where)}")
    return said


def random_views(n: int) -> np.ndarray:
    """Images with everything anywhere, most cells unseen or empty."""
    rng = np.random.default_rng(0)
    kind = rng.choice([0, 1, 2, 4, 5, 6, 7], (n, 7, 7), p=[0.3, 0.3, 0.12, 0.07, 0.07, 0.07, 0.07])
    kind[: n // 8] = rng.choice([4, 5, 6, 7], (n // 8, 7, 7))  # so full that every place speaks
    color = np.where(kind == 2, 5, rng.integers(0, 6, kind.shape))
    state = np.where(kind == 4, rng.integers(0, 3, kind.shape), 0)
    image = np.stack([kind, color, state], axis=-1).astype(np.uint8)
    image[:, 3, 6] = [rng.choice([(1, 0, 0), (5, 2, 0), (6, 0, 0), (7, 5, 0)]) for _ in range(n)]
    return image


def test_captions_of_random_views_read_as_the_grammar_says(captions):
    views = random_views(512)
    for image, caption in zip(views, np.asarray(captions(views))):
        assert VIEW.phrases_of(caption) == describe(image)


def test_captions_of_real_observations_read_as_the_grammar_says(captions):
    views = []
    for level in LEVELS:
        env = gymnasium.make(level).unwrapped
        rng = np.random.default_rng(1)
        for seed in range(2):
            views.append(env.reset(seed=seed)[0]["image"])
            for _ in range(120):
                obs, _, terminated, truncated, _ = env.step(int(rng.choice(6, p=[0.15, 0.15, 0.4, 0.1, 0.05, 0.15])))
                views.append(obs["image"])
                if terminated or truncated:
                    views.append(env.reset()[0]["image"])
    said = [VIEW.phrases_of(caption) for caption in np.asarray(captions(np.stack(views)))]
    assert said == [describe(image) for image in views]
    together = "\n".join(sentence for caption in said for sentence in caption)
    for needed in ("a open", "a closed", "a locked", "You carry a", "wall 1 step left", " and "):
        assert needed in together, f"random play never led to {needed!r}"


def test_a_caption_keeps_the_first_sentences_that_fit():
    image = random_views(16)[0]
    assert VIEW.phrases_of(jax.jit(view_caption, static_argnums=1)(image, 5)) == describe(image)[:5]


def test_a_world_of_n_objects_needs_n_sentences_and_three_walls():
    assert sentence_bound(8) == 11
    assert sentence_bound(500) == 48 + 1 + 3
    limits = view_limits(11, doors=2)
    assert [limit.at_most for limit in limits] == [1, 1, 1, 1, 2, 8]
    assert sorted(i for limit in limits for i in limit.ids) == list(range(len(VIEW)))
    assert "door" in VIEW.phrases[limits[4].ids[-1]] and "key" in VIEW.phrases[limits[5].ids[0]]


def test_constants_agree_with_minigrid():
    assert [IDX_TO_OBJECT[i] for i in range(11)] == list(TYPES)
    assert [IDX_TO_COLOR[i] for i in range(6)] == list(COLORS)


DESCRIPTOR = {"type": (ANY, *range(4, 8)), "color": (ANY, *range(6)), "location": (ANY, *range(4))}


def to_mission(instr, env):
    """A minigrid instruction as integers."""
    kinds = {
        verifier.GoToInstr: GO_TO,
        verifier.OpenInstr: OPEN_DOOR,
        verifier.PickupInstr: PICK_UP,
        verifier.PutNextInstr: PUT_NEXT,
    }
    order, halves = SINGLE, [instr]
    if isinstance(instr, (verifier.BeforeInstr, verifier.AfterInstr)):
        order = BEFORE if isinstance(instr, verifier.BeforeInstr) else AFTER
        halves = [instr.instr_a, instr.instr_b]
    kind = np.full(4, NO_CLAUSE, np.int8)
    fields = {name: np.full((4, 2), ANY, np.int8) for name in ("type", "color", "location")}
    many = np.zeros((4, 2), bool)
    for half, part in enumerate(halves):
        clauses = [part.instr_a, part.instr_b] if isinstance(part, verifier.AndInstr) else [part]
        for k, clause in enumerate(clauses, 2 * half):
            kind[k] = kinds[type(clause)]
            named = [clause.desc_move, clause.desc_fixed] if kind[k] == PUT_NEXT else [clause.desc]
            for d, desc in enumerate(named):
                fields["type"][k, d] = TYPES.index(desc.type) if desc.type else ANY
                fields["color"][k, d] = COLORS.index(desc.color) if desc.color else ANY
                fields["location"][k, d] = LOCATIONS.index(desc.loc) if desc.loc else ANY
                many[k, d] = len(desc.find_matching_objs(env)[0]) > 1
    return Mission(kind=kind, order=np.int8(order), many=many, strict=np.zeros(4, bool), **fields)


def instructions(env, rng):
    """Instructions of every class and shape about what is in a real grid."""

    def desc(doors: bool):
        while True:
            kind = rng.choice(["door"] if doors else [None, "key", "ball", "box"])
            color = rng.choice([None, *COLOR_NAMES])
            loc = rng.choice([None, *verifier.LOC_NAMES])
            found = verifier.ObjDesc(*(None if x is None else str(x) for x in (kind, color, loc)))
            if found.find_matching_objs(env)[0]:
                return found

    def clause(kind):
        if kind is verifier.PutNextInstr:
            return kind(desc(False), desc(bool(rng.integers(2))))
        return kind(desc(kind is verifier.OpenInstr or (kind is verifier.GoToInstr and bool(rng.integers(2)))))

    leaves = (verifier.GoToInstr, verifier.OpenInstr, verifier.PickupInstr, verifier.PutNextInstr)
    for kind in leaves:
        yield clause(kind)
    for a, b in itertools.product(leaves, repeat=2):
        yield verifier.AndInstr(clause(a), clause(b))
        for order in (verifier.BeforeInstr, verifier.AfterInstr):
            yield order(clause(a), clause(b))
            yield order(verifier.AndInstr(clause(a), clause(b)), clause(b))
            yield order(clause(a), verifier.AndInstr(clause(b), clause(a)))
            yield order(verifier.AndInstr(clause(a), clause(b)), verifier.AndInstr(clause(b), clause(a)))


def test_missions_are_worded_as_minigrid_words_them(missions):
    rng = np.random.default_rng(0)
    words, found = [], []
    for seed in range(3):
        env = gymnasium.make("BabyAI-BossLevel-v0").unwrapped
        env.reset(seed=seed)
        assert env.instrs.surface(env) == env.mission
        for instr in [env.instrs, *instructions(env, rng)]:
            words.append(instr.surface(env))
            found.append(to_mission(instr, env))
    batch = jax.tree.map(lambda *rows: np.stack(rows), *found)
    assert [MISSIONS.render(caption) for caption in np.asarray(missions(batch))] == words
    seen = " ".join(words)
    for needed in (", then ", " after you ", " and ", "on your left", "behind you,", "the red", "a object"):
        assert needed in seen, f"no mission said {needed!r}"


def test_the_longest_mission_fills_its_caption(missions):
    shape = (1, 4, 2)
    worst = Mission(
        kind=jnp.full((1, 4), PUT_NEXT, jnp.int8),
        order=jnp.full(1, BEFORE, jnp.int8),
        type=jnp.full(shape, 6, jnp.int8),
        color=jnp.zeros(shape, jnp.int8),
        location=jnp.full(shape, 2, jnp.int8),
        many=jnp.zeros(shape, bool),
        strict=jnp.zeros((1, 4), bool),
    )
    caption = np.asarray(missions(worst))[0]
    assert (caption >= 0).all() and len(caption) == MISSION_LENGTH == mission_limits()[0]


@pytest.mark.parametrize(
    ("kinds", "clauses", "longest"), [((GO_TO,), 1, 2), ((PUT_NEXT,), 1, 4), ((GO_TO, PICK_UP), 2, 5)]
)
def test_limits_of_missions(kinds, clauses, longest):
    size, limits = mission_limits(kinds, clauses, located=False)
    assert size == longest
    assert sorted(i for limit in limits for i in limit.ids) == list(range(len(MISSIONS)))
    allowed = {MISSIONS.phrases[i] for limit in limits if limit.at_most for i in limit.ids}
    assert "the red ball" in allowed and "the red ball on your left" not in allowed
    assert ("the red ball," in allowed) == (clauses > 1)
    assert ("go to" in allowed) == (GO_TO in kinds) and ("next to" in allowed) == (PUT_NEXT in kinds)


def test_french_says_the_same_id_for_id():
    said = french.VIEW_FRENCH.phrases
    assert said[VIEW.index("You carry a red key")] == "Tu portes une key red"
    assert said[VIEW.index("You see a wall 2 steps left")] == "Tu vois un mur à 2 pas à gauche"
    assert said[VIEW.index("You see a locked grey door 1 step right and 3 steps forward")] == (
        "Tu vois une porte grise fermée à clef 1 pas à droite et 3 pas devant"
    )
    assert said[VIEW.index("You see a blue box 3 steps forward")] == "Tu vois une boîte bleue 3 pas devant"
    goals = {phrase: french.MISSIONS_FRENCH.phrases[i] for i, phrase in enumerate(MISSIONS.phrases)}
    assert goals["go to"] == "aller à"
    # the article goes by whether the English has an a
    assert goals["the red key"] == "la clef rouge" and goals["a red key"] == "une clef rouge"
    assert goals["the red ball"] == "une balle rouge" and goals["the green box"] == "la boîte verte"


def test_every_thing_has_a_sentence_for_every_place():
    assert len(VIEW) == 18 + 6 + 3 + 3 + 6 * 6 * 48
    assert VIEW.phrases[OBJECT] == "You see a open red door 3 steps left and 6 steps forward"
