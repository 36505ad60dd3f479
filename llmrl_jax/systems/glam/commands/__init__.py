"""GLAM: a language model as the policy, improved by online RL; and its baselines."""

from llmrl_jax.systems.glam.commands.clone import clone
from llmrl_jax.systems.glam.commands.test import compare, export, test
from llmrl_jax.systems.glam.commands.train import demo, evaluate, train


COMMANDS = {
    "demo": demo,
    "train": train,
    "clone": clone,
    "eval": evaluate,
    "test": test,
    "compare": compare,
    "export": export,
}
