"""GLAM's loop in torch as a peer: worlds and text on the host, scores by transformers, PPO on peft's adapters."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmrl_jax import lm
from llmrl_jax.rl.ppo import PPOConfig


Tokens = list[int]
PAIRS = 4
"""Sequences in a pass of the published pipeline (`minibatch_size` of its `lamorel_args`)."""


def describe(image: np.ndarray) -> list[str]:
    """BabyAI-Text's sentences of a view of minigrid, `[7, 7, 3]`."""
    from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT

    def steps(n: int) -> str:
        return f"{n} step{'s' if n > 1 else ''}"

    kinds, colors, states = (image[:, :, i].tolist() for i in range(3))
    said = []
    carried = IDX_TO_OBJECT[kinds[3][6]]
    if carried in ("key", "ball", "box"):
        said.append(f"You carry a {IDX_TO_COLOR[colors[3][6]]} {carried}")
    for way, (right, forward), reach in (("forward", (0, 1), 6), ("left", (-1, 0), 3), ("right", (1, 0), 3)):
        for n in range(1, reach + 1):
            what = IDX_TO_OBJECT[kinds[3 + n * right][6 - n * forward]]
            if what not in ("unseen", "empty"):
                said += [f"You see a wall {steps(n)} {way}"] if what == "wall" else []
                break
    for i, j in itertools.product(range(7), range(7)):
        what = IDX_TO_OBJECT[kinds[i][j]]
        if (i, j) == (3, 6) or what in ("unseen", "empty", "wall"):
            continue
        where = [f"{steps(abs(i - 3))} {'left' if i < 3 else 'right'}"] if i != 3 else []
        where += [f"{steps(6 - j)} forward"] if j < 6 else []
        state = f"{('open', 'closed', 'locked')[states[i][j]]} " if what == "door" else ""
        said.append(f"You see a {state}{IDX_TO_COLOR[colors[i][j]]} {what} {' and '.join(where)}")
    return said


class Worlds:
    """Environments of minigrid, stepped one by one, with GLAM's window of observations and actions."""

    def __init__(self, id: str, count: int, actions: Sequence[str], history: int, reward_scale: float):
        import gymnasium
        import minigrid  # noqa: F401  (registers its ids)

        self.envs = [gymnasium.make(id) for _ in range(count)]
        self.actions, self.scale = actions, reward_scale
        self.seen: list[deque] = [deque(maxlen=history) for _ in range(count)]
        self.done: list[deque] = [deque(maxlen=history - 1) for _ in range(count)]
        self.goals = [""] * count
        for i, env in enumerate(self.envs):
            self._begin(i, env.reset(seed=i)[0])

    def _begin(self, i: int, obs: dict[str, Any]) -> None:
        self.seen[i].clear()
        self.done[i].clear()
        self.goals[i] = obs["mission"]
        self.seen[i].append(describe(obs["image"]))

    def play(self, steps: int) -> None:
        """Random actions, so that windows are full."""
        rng = np.random.default_rng(0)
        for _ in range(steps):
            self.step(rng.integers(0, len(self.actions), len(self.envs)).tolist())

    def prompts(self) -> list[str]:
        """The prompt of every environment (`agents/base_agent.py` of GLAM), without the space at its end, which belongs
        to the action."""
        head = f"Possible action of the agent: {', '.join(self.actions)} \n Goal of the agent: "
        texts = []
        for goal, seen, done in zip(self.goals, self.seen, self.done, strict=True):
            text = head + goal
            for k, said in enumerate(seen):
                text += f" \n Observation {k}: " + "".join(f"{sentence}, " for sentence in said) + f"\n Action {k}: "
                text += self.actions[done[k]] if k < len(done) else ""
            texts.append(text.rstrip())
        return texts

    def step(self, actions: Sequence[int]) -> tuple[list[float], list[bool]]:
        """One step of every environment; those that end are reset. **Returns:** rewards and ends, a time-out being an
        end, as published."""
        rewards, ends = [], []
        for i, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            obs, reward, terminated, truncated, _ = env.step(action)
            rewards.append(self.scale * float(reward))
            ends.append(terminated or truncated)
            if ends[-1]:
                self._begin(i, env.reset()[0])
            else:
                self.done[i].append(action)
                self.seen[i].append(describe(obs["image"]))
        return rewards, ends


@dataclass
class Took:
    """Times of an update."""

    rollout: float
    """Seconds of play, with the values of the last observations."""
    whole: float
    """Seconds of play, returns and gradient steps."""


class Agent:
    """The language model with adapters and a value head, its worlds, and PPO's update.

    As published (`shared` false) every action string is a sequence of its own, prompt and action, in passes of `PAIRS`
    sequences, and a gradient is computed prompt by prompt. At its best (`shared`) all prompts are one batch, whose keys
    and values are computed once and repeated for the actions, and a gradient takes `at_once` prompts of similar length.
    With a `multiple` above 1 prompts have few lengths, and with `builds` the MLP and the norms of a layer are compiled
    for each of them: one program serves all layers.
    """

    def __init__(
        self,
        folders: tuple[str, str],
        value: Any,
        worlds: Worlds,
        encode: Callable[[str], Tokens],
        candidates: lm.Candidates,
        ppo: PPOConfig,
        *,
        shared: bool,
        at_once: int = 1,
        kind: str = "float32",
        multiple: int = 1,
        builds: bool = False,
    ):
        """**Arguments:** `folders`, of the base and of the adapters; `value`, the parameters of our value head (with
        sigmoids); `encode`, from a prompt's text to tokens; `kind`, as in `torch_peer.Torch`; `multiple`, of which
        padded lengths are; `builds`, whether to use `torch.compile` (`build` then makes its programs)."""
        import warnings

        import peft
        import torch
        import transformers

        # peft uses a name that transformers has changed
        warnings.filterwarnings("ignore", message=".is_gradient_checkpointing.", category=FutureWarning)
        self.torch, self.transformers = torch, transformers
        base = transformers.LlamaForCausalLM.from_pretrained(
            folders[0], dtype=torch.bfloat16 if kind == "bfloat16" else torch.float32
        )
        self.model = peft.PeftModel.from_pretrained(base, folders[1], is_trainable=True).eval()
        self.trunk, self.lm_head = base.model, base.lm_head
        layers: list[Any] = []
        for name in ("hidden_1", "hidden_2", "value"):
            kernel = torch.tensor(np.asarray(value[name]["kernel"]))
            layer = torch.nn.Linear(*kernel.shape)
            layer.weight.data, layer.bias.data = kernel.T.contiguous(), torch.tensor(np.asarray(value[name]["bias"]))
            layers += [layer, torch.nn.Sigmoid()]
        self.value = torch.nn.Sequential(*layers[:-1])
        self.learnt = [p for p in (*self.model.parameters(), *self.value.parameters()) if p.requires_grad]
        betas = (ppo.adam_b1, ppo.adam_b2)
        self.optimizer = torch.optim.Adam(self.learnt, lr=ppo.learning_rate, betas=betas, eps=ppo.adam_eps)
        self.worlds, self.encode, self.ppo, self.at_once, self.multiple = worlds, encode, ppo, at_once, multiple
        self.how = lambda: torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast")
        self.actions = [list(c) for c in candidates.sequences]
        self.width = candidates.width
        self.table = torch.tensor(candidates.tokens).long()
        self.real = torch.arange(self.width) < torch.tensor(candidates.lengths)[:, None]
        self.scores = self.shared if shared else self.naive
        self.tokens: list[int] = []
        """The lengths of the prompts of all updates."""
        if builds:
            for layer in self.trunk.layers:
                for part in (layer.mlp, layer.input_layernorm, layer.post_attention_layernorm):
                    part.compile(dynamic=False)

    def build(self, longest: int) -> float:
        """Play and gradients once for each padded length up to that of `longest` tokens. **Returns:** the seconds."""
        self.torch._dynamo.config.recompile_limit = 64
        started = time.perf_counter()
        rows = self.torch.zeros(self.at_once)
        for length in range(self.multiple, longest + self.multiple, self.multiple):
            prompts = [[3] * length] * len(self.worlds.envs)
            with self.torch.inference_mode():
                self.scores(prompts)
            self.loss(prompts[:1] * self.at_once, rows.long(), rows, rows, rows, rows).backward()
        self.optimizer.zero_grad()
        return time.perf_counter() - started

    def _padded(self, rows: Sequence[Tokens]) -> tuple[Any, Any]:
        """Rows padded on the left, and their mask."""
        longest = -(-max(map(len, rows)) // self.multiple) * self.multiple
        tokens = self.torch.tensor([[0] * (longest - len(row)) + row for row in rows])
        return tokens, self.torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])

    def _hidden(self, tokens: Any, mask: Any, cache: Any = None) -> Any:
        """Hidden states of the last columns of `mask`, those of `tokens`."""
        places = (mask.cumsum(1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        with self.how():
            return self.trunk(
                tokens, attention_mask=mask, position_ids=places, past_key_values=cache, use_cache=cache is not None
            ).last_hidden_state

    def _log_probs(self, hidden: Any) -> Any:
        """Log-probabilities of the vocabulary, float32."""
        with self.how():
            logits = self.lm_head(hidden)
        return logits.float().log_softmax(-1)

    def naive(self, prompts: Sequence[Tokens]) -> tuple[Any, Any]:
        """Scores `[B, A]` and values `[B]`, a sequence for each pair of prompt and action."""
        pairs = [(prompt, action) for prompt in prompts for action in self.actions]
        scores, first = [], []
        for start in range(0, len(pairs), PAIRS):
            some = pairs[start : start + PAIRS]
            hidden = self._hidden(*self._padded([p + a for p, a in some]))[:, -self.width - 1 :]
            log_probs = self._log_probs(hidden)
            for row, (_, action) in enumerate(some):
                begin = self.width - len(action)
                scores.append(sum(log_probs[row, begin + i, token] for i, token in enumerate(action)))
                if (start + row) % len(self.actions) == 0:
                    first.append(hidden[row, begin])
        torch = self.torch
        return torch.stack(scores).view(len(prompts), -1), self.value(torch.stack(first).float())[:, 0]

    def shared(self, prompts: Sequence[Tokens]) -> tuple[Any, Any]:
        """Scores `[B, A]` and values `[B]`, the keys and values of a prompt computed once."""
        torch, count = self.torch, len(self.actions)
        tokens, mask = self._padded(prompts)
        cache = self.transformers.DynamicCache(config=self.trunk.config)
        last = self._hidden(tokens, mask, cache)[:, -1]
        rows, real = self.table.repeat(len(tokens), 1), self.real.repeat(len(tokens), 1)
        log_probs = self._log_probs(last).repeat_interleave(count, 0)[:, None]
        if self.width > 1:
            cache.batch_repeat_interleave(count)
            mask = torch.cat([mask.repeat_interleave(count, 0), torch.ones_like(rows[:, 1:])], 1)
            later = self._log_probs(self._hidden(rows[:, :-1], mask, cache))
            log_probs = torch.cat([log_probs, later], 1)
        picked = log_probs.gather(-1, rows[..., None])[..., 0]
        return (picked * real).sum(-1).view(len(tokens), count), self.value(last.float())[:, 0]

    def read(self) -> list[Tokens]:
        """The prompts of the worlds as tokens."""
        return [self.encode(text) for text in self.worlds.prompts()]

    def update(self) -> Took:
        """Play, advantages, gradient steps. Play is `num_steps` of every world; the values of the last observations are
        one more pass over the prompts alone."""
        torch, ppo = self.torch, self.ppo
        started = time.perf_counter()
        prompts, actions, log_probs, values, rewards, ends = [], [], [], [], [], []
        with torch.inference_mode():
            for _ in range(ppo.num_steps):
                prompts.append(self.read())
                logits, value = self.scores(prompts[-1])
                choice = torch.distributions.Categorical(logits=logits)
                actions.append(choice.sample())
                log_probs.append(choice.log_prob(actions[-1]))
                values.append(value)
                reward, end = self.worlds.step(actions[-1].tolist())
                rewards.append(torch.tensor(reward))
                ends.append(torch.tensor(end))
            last = self.value(self._hidden(*self._padded(self.read()))[:, -1].float())[:, 0]
        played = time.perf_counter() - started
        advantages, after = [], torch.zeros(len(last))
        for t in reversed(range(ppo.num_steps)):
            goes_on = (~ends[t]).float()
            following = values[t + 1] if t + 1 < ppo.num_steps else last
            delta = rewards[t] + ppo.gamma * following * goes_on - values[t]
            after = delta + ppo.gamma * ppo.gae_lambda * goes_on * after
            advantages.append(after)
        advantage, value = torch.cat(advantages[::-1]).clone(), torch.cat(values).clone()
        batch = (torch.cat(actions).clone(), torch.cat(log_probs).clone(), value, advantage, advantage + value)
        rows = [row for step in prompts for row in step]
        size = len(rows) // ppo.minibatches
        for _ in range(ppo.epochs):
            for some in torch.randperm(len(rows)).split(size):
                self._gradient_step(rows, batch, sorted(some.tolist(), key=lambda i: len(rows[i])))
        self.tokens += map(len, rows)
        return Took(played, time.perf_counter() - started)

    def _gradient_step(self, rows: Sequence[Tokens], batch: tuple[Any, ...], chosen: Sequence[int]) -> None:
        """A step of Adam on the rows `chosen`, `at_once` of them at a time."""
        self.optimizer.zero_grad()
        for start in range(0, len(chosen), self.at_once):
            part = list(chosen[start : start + self.at_once])
            loss = self.loss([rows[i] for i in part], *(x[part] for x in batch))
            (loss * len(part) / len(chosen)).backward()
        self.torch.nn.utils.clip_grad_norm_(self.learnt, self.ppo.max_grad_norm)
        self.optimizer.step()

    def loss(self, prompts: Sequence[Tokens], action: Any, log_prob: Any, old: Any, advantage: Any, goal: Any) -> Any:
        """PPO's clipped loss (`llmrl_jax.rl.ppo.ppo_loss`), a mean over rows."""
        torch, ppo = self.torch, self.ppo
        logits, value = self.scores(prompts)
        choice = torch.distributions.Categorical(logits=logits)
        ratio = (choice.log_prob(action) - log_prob).exp()
        clipped = ratio.clamp(1 - ppo.clip_eps, 1 + ppo.clip_eps)
        policy_loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
        near = old + (value - old).clamp(-ppo.value_clip, ppo.value_clip)
        value_loss = torch.maximum((value - goal) ** 2, (near - goal) ** 2).mean()
        return policy_loss + ppo.value_loss_coef * value_loss - ppo.entropy_coef * choice.entropy().mean()
