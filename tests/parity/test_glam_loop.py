"""The peer of the benchmark of GLAM's loop: it reads what our worlds say, and computes what our policy computes."""

from __future__ import annotations

import jax
import numpy as np
import pytest


gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("minigrid")

from benchmarks import glam_loop  # noqa: E402
from benchmarks.glam_loop import AT_ONCE, BUILT, NARROW  # noqa: E402
from benchmarks.torch_glam import Worlds, describe  # noqa: E402
from benchmarks.torch_peer import compiler_error  # noqa: E402
from envs_jax.babyai import import_state  # noqa: E402
from llmrl_jax.systems.glam.build import make_world  # noqa: E402
from llmrl_jax.systems.glam.prompts import glam_prompt  # noqa: E402
from tests.parity.test_babyai_text import describe as by_grammar, random_views  # noqa: E402


def test_the_peer_says_what_the_grammar_says():
    for image in random_views(200):
        assert describe(image) == by_grammar(image)


def test_the_peers_prompts_are_ours():
    """The same worlds, by import, and the same actions, across windows that fill up."""
    config = glam_loop.setting(True)
    env, params = make_world(config)
    template = glam_prompt(env, env.action_names)
    worlds = Worlds("BabyAI-" + glam_loop.LEVEL, 2, template.actions, 3, 20.0)
    rng = np.random.default_rng(0)
    observe = jax.jit(env.unwrapped.observe)
    windows: list[list[np.ndarray]] = [[], []]
    actions: list[list[int]] = [[], []]
    for _ in range(6):
        for i, world in enumerate(worlds.envs):
            obs = jax.device_get(observe(import_state(world, env, params)[1]))
            windows[i] = [*windows[i], obs["text"]][-3:]
            pad = 3 - len(windows[i])
            slots = {
                "mission": obs["mission"],
                "text": np.stack(windows[i] + [np.full_like(obs["text"], -1)] * pad),
                "actions": np.array(actions[i] + [-1] * (2 - len(actions[i])), np.int32),
                "count": np.int32(len(windows[i])),
            }
            assert worlds.prompts()[i] == template.render(slots).rstrip()
        chosen = rng.integers(0, 6, 2).tolist()
        _, ends = worlds.step(chosen)
        for i, ended in enumerate(ends):
            actions[i] = [] if ended else [*actions[i], chosen[i]][-2:]
            windows[i] = [] if ended else windows[i]


@pytest.mark.slow
def test_the_loop_is_measured():
    """At tiny sizes; what `run` itself asserts (tokens, log-probabilities, values) is the test."""
    pytest.importorskip("peft")
    result = glam_loop.run(quick=True)
    ways = len(AT_ONCE) + len(BUILT) * (not compiler_error())
    sides = 3 + (1 + len(NARROW)) * ways  # ours, ours in mixed precision, torch as published
    assert len(result.rows) == 2 * sides and len(result.bars) == 6
    assert all(len(row.samples) >= 5 and min(row.samples) > 0 for row in result.rows)
