"""Pretrained agents: as the start of finetuning, in whole or in part, and as guides of exploration."""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from llmrl_jax.rl.branches import BranchQPolicy
from llmrl_jax.rl.policy import Policy


Tune = Literal["all", "critic", "linear"]
StartValue = Literal["zero", "keep"]
Path = tuple[str, ...]


class Pretrained(Policy):
    """A Q-policy that starts from given weights and trains a part of them, a `llmrl_jax.rl.policy.Policy`.

    What is not trained is in `frozen`: the optimizer does not see it, and it is saved once.
    """

    def __init__(
        self,
        policy: BranchQPolicy,
        params: Any,
        frozen: Any,
        tune: Tune = "all",
        reinit: bool = False,
        value: StartValue = "zero",
    ):
        """**Arguments:** `policy`; its `params` and `frozen`; `tune`, `all` weights, those of the heads (`critic`), or
        those of their last layers (`linear`); `reinit`, whether these weights of the heads start at random; `value`,
        how the value of a state starts: at `zero`, or as given (`keep`).

        With `zero` the network's values start as its advantages, which choose the same actions (values of actions are
        the sum of both, 1511.06581, eq. 9). Given values are sums of the rewards of many goals. One task pays less, and
        ends the episode: with `keep` its success is worth less than what other actions seem to earn, and the agent
        avoids it until all values have fallen."""
        self.policy, self.tune, self.reinit, self.value = policy, tune, reinit, value
        self.heads, self.epsilon = policy.heads, policy.epsilon
        self._params, self._frozen = params, frozen

    def _in_heads(self, path: Path) -> bool:
        return path[0] in self.heads and (self.tune != "linear" or path[1] == "out")

    def init(self, key, obs):
        given = flatten_dict(self._params)
        if self.reinit:
            new = flatten_dict(self.policy.init(key, obs)[0])
            given = {path: new[path] if self._in_heads(path) else x for path, x in given.items()}
        if self.value == "zero":
            given = {path: jnp.zeros_like(x) if path[:2] == ("value", "out") else x for path, x in given.items()}
        trained = {path: x for path, x in given.items() if self.tune == "all" or self._in_heads(path)}
        rest = {path: x for path, x in given.items() if path not in trained}
        return unflatten_dict(trained), {"own": self._frozen, "rest": unflatten_dict(rest)}

    def _whole(self, params: Any, frozen: Any) -> Any:
        return unflatten_dict({**flatten_dict(frozen["rest"]), **flatten_dict(params)})

    def q(self, params, frozen, obs):
        return self.policy.q(self._whole(params, frozen), frozen["own"], obs)


class Guide(Policy):
    """A trained Q-policy whose `init` gives its weights, for `llmrl_jax.rl.dqn.make_dqn(guide=...)`."""

    def __init__(self, policy: BranchQPolicy, params: Any, frozen: Any):
        """**Arguments:** `policy`; its `params` and `frozen`."""
        self.policy, self._given = policy, (params, frozen)

    def init(self, key, obs):
        return jax.tree.map(lambda x: x, self._given)

    def q(self, params, frozen, obs):
        return self.policy.q(params, frozen, obs)
