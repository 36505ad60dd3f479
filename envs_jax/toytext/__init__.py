"""Toy text: worlds small enough to be a table, with Gymnasium's own tables, and ProPS's Nim and maze."""

from typing import TYPE_CHECKING

from envs_jax.lazy import attach
from envs_jax.registry import register


if TYPE_CHECKING:
    from envs_jax.toytext.blackjack import Blackjack
    from envs_jax.toytext.cliff_walking import CliffWalking
    from envs_jax.toytext.frozen_lake import FrozenLake, random_map
    from envs_jax.toytext.maze import Maze
    from envs_jax.toytext.nim import Nim
    from envs_jax.toytext.tables import NO_LIMIT, Table, TabularEnvironment, ToyTextParams, ToyTextState, import_state
    from envs_jax.toytext.taxi import Taxi
    from envs_jax.toytext.values import optimal_values, policy_value


__all__ = [
    "NO_LIMIT",
    "Blackjack",
    "CliffWalking",
    "FrozenLake",
    "Maze",
    "Nim",
    "Table",
    "TabularEnvironment",
    "Taxi",
    "ToyTextParams",
    "ToyTextState",
    "import_state",
    "optimal_values",
    "policy_value",
    "random_map",
]
__getattr__ = attach(
    __name__,
    {
        "blackjack": ["Blackjack"],
        "cliff_walking": ["CliffWalking"],
        "frozen_lake": ["FrozenLake", "random_map"],
        "maze": ["Maze"],
        "nim": ["Nim"],
        "tables": ["NO_LIMIT", "Table", "TabularEnvironment", "ToyTextParams", "ToyTextState", "import_state"],
        "taxi": ["Taxi"],
        "values": ["optimal_values", "policy_value"],
    },
)

register("FrozenLake-v1", "envs_jax.toytext.frozen_lake:FrozenLake")
register("FrozenLake8x8-v1", "envs_jax.toytext.frozen_lake:FrozenLake", map_name="8x8", max_steps=200)
register("CliffWalking-v1", "envs_jax.toytext.cliff_walking:CliffWalking")
register("CliffWalkingSlippery-v1", "envs_jax.toytext.cliff_walking:CliffWalking", is_slippery=True)
register("Taxi-v3", "envs_jax.toytext.taxi:make_v3")
register("Taxi-v4", "envs_jax.toytext.taxi:Taxi")
register("Blackjack-v1", "envs_jax.toytext.blackjack:Blackjack")
register("Nim-v0", "envs_jax.toytext.nim:Nim")
register("maze-sample-3x3-v0", "envs_jax.toytext.maze:Maze")
