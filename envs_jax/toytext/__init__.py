"""Toy text: tabular environments with Gymnasium's transition tables, and ProPS's Nim and maze."""

from typing import TYPE_CHECKING

from envs_jax.lazy import attach
from envs_jax.registry import register


if TYPE_CHECKING:
    from envs_jax.toytext.blackjack import Blackjack
    from envs_jax.toytext.cliff_walking import CliffWalking
    from envs_jax.toytext.frozen_lake import FrozenLake, random_map
    from envs_jax.toytext.maze import Maze
    from envs_jax.toytext.nim import Nim
    from envs_jax.toytext.reference import import_state
    from envs_jax.toytext.tables import NO_LIMIT, Table, TabularEnvironment, ToyTextParams, ToyTextState
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
        "reference": ["import_state"],
        "tables": ["NO_LIMIT", "Table", "TabularEnvironment", "ToyTextParams", "ToyTextState"],
        "taxi": ["Taxi"],
        "values": ["optimal_values", "policy_value"],
    },
)

register("FrozenLake-v1", "envs_jax.toytext.frozen_lake:FrozenLake", about="cross slippery ice, 4 x 4, between holes")
register(
    "FrozenLake8x8-v1",
    "envs_jax.toytext.frozen_lake:FrozenLake",
    about="cross slippery ice, 8 x 8, between holes",
    map_name="8x8",
    max_steps=200,
)
register(
    "FrozenLakeText-v1",
    "envs_jax.toytext.frozen_lake:FrozenLake",
    about="cross slippery ice, shown as text, on one of 256 maps of 4 x 4",
    text="grid",
    random_maps=256,
)
register("CliffWalking-v1", "envs_jax.toytext.cliff_walking:CliffWalking", about="walk along a cliff without falling")
register(
    "CliffWalkingSlippery-v1",
    "envs_jax.toytext.cliff_walking:CliffWalking",
    about="the cliff, where steps go astray",
    is_slippery=True,
)
register("Taxi-v3", "envs_jax.toytext.taxi:make_v3", about="fetch a passenger and drop him at his stop")
register("Taxi-v4", "envs_jax.toytext.taxi:Taxi", about="the taxi, with rain and fickle passengers as options")
register("Blackjack-v1", "envs_jax.toytext.blackjack:Blackjack", about="draw cards up to 21, against a dealer")
register("Nim-v0", "envs_jax.toytext.nim:Nim", about="leave the last stick to the opponent (ProPS)")
register("maze-sample-3x3-v0", "envs_jax.toytext.maze:Maze", about="find the way through 3 x 3 cells (gym-maze)")
