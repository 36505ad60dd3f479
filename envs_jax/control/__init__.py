"""Classic control, and small worlds with a known optimum for testing algorithms."""

from envs_jax.control.cartpole import CartPole, import_state
from envs_jax.registry import register


__all__ = ["CartPole", "import_state"]

register("CartPole-v1", "envs_jax.control.cartpole:CartPole")
register("Debug-Match-v0", "envs_jax.control.debug:Match")
register("Debug-Aim-v0", "envs_jax.control.debug:Aim")
register("Debug-Recall-v0", "envs_jax.control.debug:Recall")
register("Debug-Catch-v0", "envs_jax.control.debug:Catch")
