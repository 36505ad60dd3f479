"""Classic control, driving, Pong, and small environments with a known optimum for testing algorithms."""

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

register("CartPole-v1", "envs_jax.control.cartpole:CartPole", about="balance a pole on a cart: left or right")
register("MountainCar-v0", "envs_jax.control.mountain_car:MountainCar", about="leave a valley with a weak engine")
register(
    "MountainCarContinuous-v0", "envs_jax.control.mountain_car:MountainCarContinuous", about="the same, by a force"
)
register("Pendulum-v1", "envs_jax.control.pendulum:Pendulum", about="swing up a pendulum by a torque")
register("Acrobot-v1", "envs_jax.control.acrobot:Acrobot", about="swing the tip of two links up to a line")
register("NavigationTrack-v0", "envs_jax.control.navigation:NavigationTrack", about="drive round a track (ProPS)")
register("Pong-v0", "envs_jax.control.pong:Pong", about="Pong as numbers, against one who never misses")
register("Debug-Match-v0", "envs_jax.control.debug:Match", about="name the symbol that is shown")
register("Debug-Aim-v0", "envs_jax.control.debug:Aim", about="give back the number that is shown")
register("Debug-Recall-v0", "envs_jax.control.debug:Recall", about="remember a sign, and name it at the end")
register("Debug-Catch-v0", "envs_jax.control.debug:Catch", about="catch a falling ball, seen as a picture")
register("Debug-Corridor-v0", "envs_jax.control.debug:Corridor", about="walk 40 cells for a reward at the end")
