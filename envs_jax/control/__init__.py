"""Classic control, driving, Pong, and small worlds with a known optimum for testing algorithms."""

from typing import TYPE_CHECKING

from envs_jax.lazy import attach
from envs_jax.registry import register


if TYPE_CHECKING:
    from envs_jax.control.acrobot import Acrobot
    from envs_jax.control.cartpole import CartPole
    from envs_jax.control.mountain_car import MountainCar, MountainCarContinuous
    from envs_jax.control.navigation import NavigationTrack
    from envs_jax.control.pendulum import Pendulum
    from envs_jax.control.pong import Pong
    from envs_jax.control.reference import import_state


__all__ = [
    "Acrobot",
    "CartPole",
    "MountainCar",
    "MountainCarContinuous",
    "NavigationTrack",
    "Pendulum",
    "Pong",
    "import_state",
]
__getattr__ = attach(
    __name__,
    {
        "acrobot": ["Acrobot"],
        "cartpole": ["CartPole"],
        "mountain_car": ["MountainCar", "MountainCarContinuous"],
        "navigation": ["NavigationTrack"],
        "pendulum": ["Pendulum"],
        "pong": ["Pong"],
        "reference": ["import_state"],
    },
)

register("CartPole-v1", "envs_jax.control.cartpole:CartPole")
register("MountainCar-v0", "envs_jax.control.mountain_car:MountainCar")
register("MountainCarContinuous-v0", "envs_jax.control.mountain_car:MountainCarContinuous")
register("Pendulum-v1", "envs_jax.control.pendulum:Pendulum")
register("Acrobot-v1", "envs_jax.control.acrobot:Acrobot")
register("NavigationTrack-v0", "envs_jax.control.navigation:NavigationTrack")
register("Pong-v0", "envs_jax.control.pong:Pong")
register("Debug-Match-v0", "envs_jax.control.debug:Match")
register("Debug-Aim-v0", "envs_jax.control.debug:Aim")
register("Debug-Recall-v0", "envs_jax.control.debug:Recall")
register("Debug-Catch-v0", "envs_jax.control.debug:Catch")
