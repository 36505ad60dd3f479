"""torch as a peer of `benchmarks.dqn`: a double, dueling, n-step DQN with its replay in preallocated tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


def tensors(tree: Any) -> Any:
    """A tree of arrays as tensors of their own."""
    if isinstance(tree, dict):
        return {name: tensors(x) for name, x in tree.items()}
    return torch.from_numpy(np.array(tree))


def linear(layer: dict[str, Any]) -> nn.Linear:
    """A dense layer with the weights of ours."""
    inputs, outputs = layer["kernel"].shape
    made = nn.Linear(inputs, outputs)
    with torch.no_grad():
        made.weight.copy_(tensors(layer["kernel"]).T)
        made.bias.copy_(tensors(layer["bias"]))
    return made


def tower(layers: dict[str, Any], last: str = "out") -> nn.Sequential:
    """Hidden layers with ReLU and a linear output."""
    hidden = sorted(name for name in layers if name.startswith("hidden"))
    parts: list[nn.Module] = []
    for name in hidden:
        parts += [linear(layers[name]), nn.ReLU()]
    return nn.Sequential(*parts, linear(layers[last]))


def dueling(value: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
    """Values of actions from the value of the state and the advantages."""
    return value + advantage - advantage.mean(-1, keepdim=True)


class Plain(nn.Module):
    """The MLP with dueling heads."""

    def __init__(self, params: Any):
        super().__init__()
        names = sorted(name for name in params if name.startswith("hidden"))
        self.hidden = nn.ModuleList(linear(params[name]) for name in names)
        self.advantage, self.value = linear(params["advantage"]), linear(params["value"])

    def forward(self, obs: dict[str, torch.Tensor]) -> torch.Tensor:
        x = obs["vector"]
        for layer in self.hidden:
            x = F.relu(layer(x))
        return dueling(self.value(x), self.advantage(x))


class Branches(nn.Module):
    """The network with branches for symbols, text and goals."""

    def __init__(self, params: Any, facts: dict[str, Any], added: bool = False):
        """**Arguments:** `facts`: `planes`, the codes of each plane of the view; `phrases`, the embeddings of the
        phrases `[P, E]`; `goals`, those of goals `[A, E]`; `added`, whether the layer on the view adds rows of its
        kernel, as ours does on a CPU, instead of multiplying one-hot vectors."""
        super().__init__()
        encoder = params["encoder"]
        for name in ("text", "goals", "fusion") if added else ("symbols", "text", "goals", "fusion"):
            setattr(self, name, linear(encoder[name]))
        if added:
            self.kernel = nn.Parameter(tensors(encoder["symbols"]["kernel"]))
            self.bias = nn.Parameter(tensors(encoder["symbols"]["bias"]))
        self.added = added
        self.advantage, self.value = tower(params["advantage"]), tower(params["value"])
        self.pointing = tower(params["pointing"]) if "pointing" in params else None
        self.codes = [torch.arange(n, dtype=torch.uint8) for n in facts["planes"]]
        self.table = tensors(facts["goals"])
        phrases = tensors(facts["phrases"])
        self.phrases = torch.cat([torch.zeros_like(phrases[:1]), phrases])  # row 0: no phrase
        self.bits = torch.arange(7, -1, -1, dtype=torch.uint8)

    def forward(self, obs: dict[str, torch.Tensor]) -> torch.Tensor:
        rows = len(obs["view"])
        text = F.embedding_bag(obs["text"].int() + 1, self.phrases, mode="sum")
        text = text * torch.rsqrt(text.square().sum(-1, keepdim=True).clamp_min(1e-12))
        bits = (obs["goals"][..., None] >> self.bits) & 1
        members = bits.view(rows, -1)[:, : len(self.table)].float()
        total = members.sum(-1, keepdim=True)
        goals = (members / torch.where(total > 0, total, 1.0)) @ self.table
        parts = [F.relu(self.seen(obs["view"], obs["inventory"].float() / 9)), self.text(text), self.goals(goals)]
        x = F.relu(self.fusion(torch.cat(parts, -1)))
        advantage = self.advantage(x)
        if self.pointing is not None:
            advantage = advantage + self.pointing(x) * members
        return dueling(self.value(x), advantage)

    def seen(self, view: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """The layer on the codes of the view and the counts of the inventory."""
        rows = len(view)
        if not self.added:
            planes = [(view[..., i, None] == codes).view(rows, -1) for i, codes in enumerate(self.codes)]
            return self.symbols(torch.cat([*(plane.float() for plane in planes), counts], -1))
        places, before = [], 0
        for i, codes in enumerate(self.codes):
            code = view[..., i].reshape(rows, -1).int()
            places.append(code + before + len(codes) * torch.arange(code.shape[1], dtype=torch.int32))
            before += len(codes) * code.shape[1]
        total = F.embedding_bag(torch.cat(places, -1), self.kernel, mode="sum")
        return torch.addmm(self.bias, counts, self.kernel[before:]) + total


class Peer:
    """The learner: `steps(count)` takes gradient steps on batches drawn uniformly from the replay."""

    def __init__(self, network: nn.Module, target: nn.Module, replay: dict[str, Any], config: Any):
        """**Arguments:** `replay`, whole n-step transitions: `obs`, `next_obs`, `action`, `reward`, `discount` (0 where
        terminated); `config`, a `DQNConfig`."""
        self.network, self.target, self.config = network, target.requires_grad_(False), config
        self.replay = tensors(replay)
        self.size = len(self.replay["action"])
        self.optimizer = torch.optim.Adam(
            network.parameters(),
            config.learning_rate,
            (config.adam_b1, config.adam_b2),
            config.adam_eps,
            fused=True,
        )

    def batch(self, index: torch.Tensor) -> dict[str, Any]:
        """The transitions at given indices."""
        return {
            name: {k: v[index] for k, v in x.items()} if isinstance(x, dict) else x[index]
            for name, x in self.replay.items()
        }

    def loss(self, batch: dict[str, Any]) -> torch.Tensor:
        """The mean Huber loss of double Q-learning."""
        chosen = self.network(batch["obs"]).gather(1, batch["action"][:, None])[:, 0]
        with torch.no_grad():
            best = self.network(batch["next_obs"]).argmax(-1, keepdim=True)
            value = self.target(batch["next_obs"]).gather(1, best)[:, 0]
            wanted = batch["reward"] + batch["discount"] * value
        return F.huber_loss(chosen, wanted, delta=self.config.huber_delta)

    def step(self, index: torch.Tensor, loss: Callable | None = None) -> torch.Tensor:
        """One gradient step on the transitions at `index`. **Returns:** the loss before it."""
        value = (loss or self.loss)(self.batch(index))
        self.optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), self.config.max_grad_norm)
        self.optimizer.step()
        return value.detach()

    def steps(self, count: int, loss: Callable | None = None) -> float:
        """`count` gradient steps. **Returns:** the last loss."""
        for _ in range(count):
            value = self.step(torch.randint(self.size, (self.config.batch_size,)), loss)
        return float(value)
