"""Records of conversations for tests: texts of made-up turns, and small programs."""

from __future__ import annotations

from functools import cache

import jax.numpy as jnp
import numpy as np

from llmrl_jax.lm.small import SmallConfig
from llmrl_jax.multiturn.group import GroupConfig
from llmrl_jax.multiturn.ppo import TurnPPOConfig
from llmrl_jax.multiturn.record import REPLY, WORLD, Record
from llmrl_jax.systems.agent.build import build
from llmrl_jax.systems.agent.config import AgentConfig


SIZES = SmallConfig(hidden_size=32, layers=2, heads=4, intermediate_size=64)
SHARED = {"num_envs": 8, "minibatches": 2, "epochs": 2, "episode_tokens": 96, "learning_rate": 3e-3, "watch": True}
PPO = TurnPPOConfig(**SHARED, num_steps=40, pool_size=16)
GROUP = GroupConfig(**SHARED, group=4)


@cache
def agent(**options):
    """A small agent that writes in the game of notes."""
    settings = {"env": "Notes-Recall-v0", "tune": "full", "embedded": SIZES, "reply_tokens": 5, "value_width": 16}
    return build(AgentConfig(**{**settings, **options}))


def drawn_record(rng: np.random.Generator, rows: int = 3, length: int = 60) -> tuple[Record, np.ndarray]:
    """Rows of turns with random values and ends, padded, and their rewards. Some begin or end within a turn."""
    record = {name: np.zeros((rows, length)) for name in Record.__dataclass_fields__}
    for row in range(rows):
        place = 0
        while True:
            # an observation, a reply, and perhaps the end
            heard, said = rng.integers(1, 5), rng.integers(1, 5)
            if place + heard + said + 4 > length - rng.integers(6):
                break
            record["role"][row, place : place + heard] = WORLD
            record["decides"][row, place + heard - 1] = 1
            record["value"][row, place : place + heard + said] = rng.normal(size=heard + said)
            place += heard
            record["role"][row, place : place + said] = REPLY
            place += said
            record["acts"][row, place - 1] = 1
            record["reward"][row, place - 1] = rng.normal()
            kind = rng.random()
            if kind < 0.2:
                record["terminated"][row, place - 1] = 1
            elif kind < 0.4:  # a time-out, whose observation is read
                record["role"][row, place : place + 2] = WORLD
                record["bootstraps"][row, place + 1] = 1
                record["value"][row, place + 1] = rng.normal()
                place += 2
            if kind < 0.4 and place < length:
                record["begins"][row, place] = 1
        rest = rng.integers(3)
        record["role"][row, place : place + rest] = WORLD
    kinds = {"token": jnp.int32, "role": jnp.int8, "state": jnp.int32, "left": jnp.int32}
    kinds |= dict.fromkeys(("log_prob", "value", "reward"), jnp.float32)
    made = Record(**{name: jnp.asarray(x, kinds.get(name, bool)) for name, x in record.items()})
    return made.replace(free=made.role == REPLY), record["reward"]
