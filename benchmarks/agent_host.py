"""Agents in an environment of Python: turns of play, beside the same world on the device."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import OURS, REPEATS, Result, Row, compiled, speedup
from envs_jax.bridges.host import HostWorld
from envs_jax.toytext.frozen_lake import FrozenLake
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.lm.small import SmallConfig
from llmrl_jax.multiturn.learner import TurnState
from llmrl_jax.multiturn.ppo import TurnPPO, TurnPPOConfig
from llmrl_jax.multiturn.text import TurnText
from llmrl_jax.systems.agent.build import WritingAgent, build
from llmrl_jax.systems.agent.config import AgentConfig


TITLE = "An environment of Python for agents that write: play, compared with the same world on the device"

HOST, CASE = "a host's FrozenLake", "FrozenLake, play of an update"
LAKE = FrozenLake(is_slippery=False, text="grid")
LAKE.id = "Lake"
SIZES = SmallConfig(hidden_size=96, layers=2, intermediate_size=256)
TINY = SmallConfig(hidden_size=32, layers=1, intermediate_size=32)
OPTIONS: dict[str, Any] = {"tune": "full", "decoding": "constrained", "reply_tokens": 5}
WARM = 2
PPO = TurnPPOConfig(num_envs=64, num_steps=256, episode_tokens=256, pool_size=64)


class HostLake:
    """The lake without slippery ice, by its letters in plain Python."""

    cells = "".join(LAKE.desc)
    side = len(LAKE.desc)

    def text(self) -> str:
        """The map in the words of ours."""
        symbols = [{"S": "_", "F": "_", "H": "O"}.get(letter, letter) for letter in self.cells]
        symbols[self.cell] = {"H": "X", "G": "√"}.get(self.cells[self.cell], "P")
        rows = ["".join(symbols[i : i + self.side]) for i in range(0, len(symbols), self.side)]
        return ", ".join(rows) + ","

    def reset(self, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        self.cell, self.time = self.cells.index("S"), 0
        return self.text(), {}

    def step(self, action: int) -> tuple[str, float, bool, bool, dict[str, Any]]:
        row, column = divmod(self.cell, self.side)
        down, right = ((0, -1), (1, 0), (0, 1), (-1, 0))[action]
        row, column = (min(max(x, 0), self.side - 1) for x in (row + down, column + right))
        self.cell, self.time = row * self.side + column, self.time + 1
        letter = self.cells[self.cell]
        return self.text(), float(letter == "G"), letter in "GH", self.time >= LAKE.max_steps, {}


def agents(sizes: SmallConfig) -> dict[str, WritingAgent]:
    """The same policy in both worlds, by who steps them."""
    assert LAKE.book is not None
    rows, limit = [f" {row}," for row in LAKE.book.phrases], LAKE.max_steps
    world = HostWorld(HostLake, LAKE.names, limit, turn_tokens=len(LAKE.desc) + 2, head_tokens=1, vocabulary=rows)
    host = build(AgentConfig(env="Lake", embedded=sizes, **OPTIONS), world=world)
    text, env = TurnText(LAKE, host.tokenizer), EpisodeStatistics(LAKE)
    device = replace(host, policy=replace(host.policy, text=text), env=env, env_params=env.default_params)
    return {OURS: device, HOST: host}


class Play:
    """Play of updates, whose episodes go on, and whose parameters stay."""

    def __init__(self, agent: WritingAgent, config: TurnPPOConfig):
        self.turn = TurnPPO(config, agent.policy, agent.env, agent.env_params, None)
        self.state: TurnState = self.turn.init(jax.random.key(0))
        self.program, self.compile_seconds = compiled(self._play, self.state)
        self.rates: list[float] = []

    def _play(self, state: TurnState) -> tuple[TurnState, jax.Array, jax.Array]:
        turn, key = self.turn, jax.random.fold_in(state.key, state.update)
        rows = turn.begin(state, key)
        before = rows.length
        rows, record, steps = turn.conversation.play(state.params, state.frozen, rows, key, turn.steps)
        credit, _ = turn.credit(record, steps, state.hparams)
        acts = record.acts & (jnp.arange(record.token.shape[1]) >= before[:, None])
        state = state.replace(rows=turn.keep(rows, record, credit), update=state.update + 1)
        return state, jnp.sum(acts), record.token

    def __call__(self) -> np.ndarray:
        """Play an update, keep its turns per CPU second, and return its tokens."""
        started = time.process_time()
        self.state, turns, tokens = jax.block_until_ready(self.program(self.state))
        self.rates.append(int(turns) / (time.process_time() - started))
        return np.asarray(tokens)


def run(quick: bool = False) -> Result:
    """Turns per CPU second."""
    config = replace(PPO, num_envs=4, num_steps=40, minibatches=1) if quick else PPO
    sides = {who: Play(agent, config) for who, agent in agents(TINY if quick else SIZES).items()}
    warm = 1 if quick else WARM
    for number in range(warm + REPEATS):
        ours, theirs = (side() for side in sides.values())
        if not number:  # later ones may differ by the rounding of products of other sizes
            np.testing.assert_array_equal(ours, theirs)
    notes = {
        OURS: "the world on the device",
        HOST: "in Python, one call for all rows that act, text and tokens made there",
    }
    rows = [Row(CASE, who, "turns/s", x.rates[warm:], x.compile_seconds, notes[who]) for who, x in sides.items()]
    more = 1 / rows[1].median - 1 / rows[0].median
    ratio = speedup(rows[:1], rows[1:])
    bars = [
        f"{CASE}: {ratio:.2f} times the speed of the same play with the world in Python, whose turns take "
        f"{1e6 * more:.0f} microseconds more."
    ]
    return Result(
        rows,
        bars,
        [
            f"float32; {config.num_envs} rows x {config.num_steps} tokens, a Llama of {SIZES.layers} layers and "
            f"{SIZES.hidden_size} units with random weights, constrained replies of up to 5 tokens, a map of 4 x 4 "
            "cells as text, no gradients. Seconds are CPU seconds of the process. Episodes go on over updates; "
            "samples alternate, and both write the same tokens in the first update."
        ],
    )
