"""An agent that writes, in torch as a peer: a loop on the host around generation by transformers, and PPO's update."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.resets import VectorEnv, select
from llmrl_jax.multiturn.rollout import select_rows
from llmrl_jax.multiturn.text import join
from llmrl_jax.systems.agent.build import WritingAgent


class Worlds:
    """Our worlds and their text as a host sees them: one compiled call a turn for the whole batch."""

    def __init__(self, agent: WritingAgent, count: int):
        env, params, text = agent.env, agent.env_params, agent.policy.text
        self.vector = VectorEnv(env, count, policy="pool", pool_size=64)
        size, rebuilt = agent.policy.prompt_tokens, agent.policy.memory == "reprompt"

        def first(key: jax.Array) -> Any:
            obs, state = self.vector.reset(key, params)
            return state, join([text.heads(obs), text.turns(obs, opening=True)], size)

        def step(state: Any, action: jax.Array, cut: jax.Array, key: jax.Array) -> Any:
            obs, state, reward, terminated, truncated, _ = self.vector.step(key, state, action, params)
            done = terminated | truncated
            fresh, restarted = self.vector.restart(jax.random.fold_in(key, 1), state, cut & ~done, params)
            obs, state = select(cut & ~done, fresh, obs), select_rows(cut & ~done, restarted, state)
            begins = done | cut
            opened = join([text.heads(obs), text.turns(obs, opening=True)], size)
            message = opened if rebuilt else select(begins, opened, join([text.turns(obs)], size))
            return state, reward, begins, message

        self._first, self._step = jax.jit(first), jax.jit(step)
        self.key, self.calls = jax.random.key(3), 0
        self.state, message = self._first(self.key)
        self.messages: list[list[int]] = self._lists(message)
        """What each world says next, as tokens."""

    @staticmethod
    def _lists(message: Any) -> list[list[int]]:
        tokens, lengths = jax.device_get(message)
        return [row[:n].tolist() for row, n in zip(tokens, lengths, strict=True)]

    def step(self, actions: np.ndarray, cut: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """One step of every world. **Returns:** rewards, and whether each is at the beginning of an episode."""
        self.calls += 1
        key = jax.random.fold_in(self.key, self.calls)
        self.state, reward, begins, message = self._step(self.state, jnp.asarray(actions), jnp.asarray(cut), key)
        self.messages = self._lists(message)
        return np.asarray(reward), np.asarray(begins)


@dataclass
class Turn:
    """A reply and what it led to."""

    start: int
    """The index of the reply's first token in `text`."""
    log_probs: list[float]
    value: float
    text: list[int]
    """Of the conversation, or with `reprompt` of this turn: the prompt and the reply."""
    reward: float = 0.0
    ends: bool = False


@dataclass
class Episode:
    """The tokens that an episode's next reply is given, and its turns of this rollout."""

    tokens: list[int]
    turns: list[Turn] = field(default_factory=list)


class HostLoop:
    """Play and update of a policy that writes, all rows in step: every one reads, all write until the last reply ends.

    **Arguments:** `folder`, the model; `cached`: keys and values stay from turn to turn, as in a server with a cache of
    prefixes, or with `reprompt` during a reply, and each token is one pass of the batch; else `generate` of
    transformers with the whole texts and `options`, as the agent loops of the field call their engines.
    """

    def __init__(self, folder: str, agent: WritingAgent, config: Any, *, cached: bool, **options: Any):
        import torch
        import transformers

        self.torch, self.agent, self.config, self.cached, self.options = torch, agent, config, cached, options
        self.model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        policy, replies = agent.policy, agent.policy.replies
        self.rebuilt = policy.memory == "reprompt"
        self.size, self.default, self.text = policy.reply_tokens, policy.default_action, policy.text
        self.moves, self.classes = np.asarray(replies.moves), np.asarray(replies.classes)
        self.closed, self.action, self.start = np.asarray(replies.closed), np.asarray(replies.action), replies.start
        width, hidden = policy.value_head.width, self.model.config.hidden_size
        relu = torch.nn.ReLU
        self.head = torch.nn.Sequential(
            torch.nn.Linear(hidden, width), relu(), torch.nn.Linear(width, width), relu(), torch.nn.Linear(width, 1)
        )
        self.parameters = [*self.model.parameters(), *self.head.parameters()]
        self.optimizer = torch.optim.Adam(self.parameters, config.learning_rate, eps=config.adam_eps)
        self.worlds = Worlds(agent, config.num_envs)
        self.running = [Episode([]) for _ in range(config.num_envs)]
        self.finished: list[Episode] = []

    # --- generation ---------------------------------------------------------------------------------------------------

    def _padded(self, rows: Sequence[Sequence[int]], left: bool = False) -> tuple[Any, Any]:
        """Rows as one array, and its mask."""
        length = max(map(len, rows))
        pads = [[self.text.pad_id] * (length - len(row)) for row in rows]
        mask = [[0] * len(pad) + [1] * len(row) if left else [1] * len(row) + [0] * len(pad)
                for row, pad in zip(rows, pads)]  # fmt: skip
        tokens = [[*pad, *row] if left else [*row, *pad] for row, pad in zip(rows, pads)]
        return self.torch.tensor(tokens), self.torch.tensor(mask)

    def _drawn(self, logits: Any) -> tuple[Any, Any]:
        """A token of each row, and its log-probability."""
        log_probs = self.torch.log_softmax(logits / self.agent.policy.temperature, dim=-1)
        token = self.torch.multinomial(log_probs.exp(), 1)
        return token[:, 0], log_probs.gather(1, token)[:, 0]

    def _generated(self) -> tuple[list[list[int]], list[list[float]], list[float]]:
        """Replies to the conversations by `generate`, which reads them again; values are not computed."""
        import transformers

        rows = [episode.tokens for episode in self.running]
        tokens, mask = self._padded(rows, left=True)
        states, begin = np.full(len(rows), self.start), tokens.shape[1]

        def ended(ids: Any, scores: Any, **_: Any) -> Any:
            nonlocal states
            if ids.shape[1] > begin:
                states = self.moves[states, self.classes[ids[:, -1].numpy()]].astype(int)
            return self.torch.from_numpy(self.closed[states])

        out = self.model.generate(
            tokens, attention_mask=mask, max_new_tokens=self.size, do_sample=True, top_k=0, top_p=1.0,
            temperature=self.agent.policy.temperature, pad_token_id=self.text.pad_id, eos_token_id=None,
            stopping_criteria=transformers.StoppingCriteriaList([ended]), return_dict_in_generate=True,
            output_scores=True, **self.options,
        )  # fmt: skip
        written = out.sequences[:, begin:]
        scores = self.torch.log_softmax(self.torch.stack(out.scores, 1), -1).gather(2, written[..., None])[..., 0]
        replies, log_probs = [], []
        for row, chosen in zip(written.tolist(), scores.tolist()):
            count = self._length(row)
            replies.append(row[:count])
            log_probs.append(chosen[:count])
        return replies, log_probs, [0.0] * len(rows)

    def _length(self, row: list[int]) -> int:
        """The tokens of a reply, which is padded."""
        state = self.start
        for i, token in enumerate(row):
            state = self.moves[state, self.classes[token]]
            if self.closed[state]:
                return i + 1
        return len(row)

    def _pass(self, tokens: Any, mask: Any) -> Any:
        """Hidden states of further tokens of each row, whose keys and values are kept."""
        self.mask = self.torch.cat([self.mask, mask], 1)
        positions = (self.position[:, None] + mask.cumsum(1) - 1).clamp(min=0)
        self.position = self.position + mask.sum(1)
        out = self.model.model(
            tokens, attention_mask=self.mask, position_ids=positions, past_key_values=self.cache, use_cache=True
        )
        return out.last_hidden_state

    def _forget(self, rows: np.ndarray) -> None:
        """What rows have read is not seen any more."""
        gone = self.torch.tensor(rows)
        self.mask[gone] = 0
        self.position[gone] = 0

    def _continued(self, read: list[list[int]]) -> tuple[list[list[int]], list[list[float]], list[float]]:
        """Replies after `read` further tokens of each row, and the values before them."""
        torch, count = self.torch, len(read)
        tokens, mask = self._padded(read)
        hidden = self._pass(tokens, mask)[torch.arange(count), mask.sum(1) - 1]
        values = self.head(hidden)[:, 0].tolist()
        states, live = np.full(count, self.start), np.ones(count, bool)
        replies: list[list[int]] = [[] for _ in read]
        log_probs: list[list[float]] = [[] for _ in read]
        for _ in range(self.size):
            token, log_prob = self._drawn(self.model.lm_head(hidden))
            states = np.where(live, self.moves[states, self.classes[token.numpy()]], states)
            for row in np.flatnonzero(live):
                replies[row].append(int(token[row]))
                log_probs[row].append(float(log_prob[row]))
            hidden = self._pass(token[:, None], torch.from_numpy(live.astype(np.int64))[:, None])[:, 0]
            live = live & ~self.closed[states]
            if not live.any():
                break
        return replies, log_probs, values

    # --- play ---------------------------------------------------------------------------------------------------------

    def play(self, turns: int) -> tuple[int, int]:
        """`turns` turns of every row. **Returns:** turns and tokens, read and written."""
        import transformers

        torch, count, spoken = self.torch, self.config.num_envs, 0
        self.finished = []
        for episode in self.running:
            episode.turns = []
        with torch.inference_mode():
            read: list[list[int]] = [[] for _ in range(count)]
            if self.cached and not self.rebuilt:
                read = [list(episode.tokens) for episode in self.running]
            for turn in range(turns):
                # keys and values are by other parameters than before, or of another prompt
                if self.cached and (self.rebuilt or not turn):
                    self.cache = transformers.DynamicCache(config=self.model.config)
                    self.mask = torch.zeros((count, 0), dtype=torch.long)
                    self.position = torch.zeros(count, dtype=torch.long)
                for row, message in enumerate(self.worlds.messages):
                    self.running[row].tokens = message if self.rebuilt else self.running[row].tokens + message
                    read[row] = read[row] + message
                    spoken += len(message)
                replies, log_probs, values = self._continued(read) if self.cached else self._generated()
                states = [self._ended(reply) for reply in replies]
                named = self.action[states]
                cut = np.zeros(count, bool)
                for row, episode in enumerate(self.running):
                    start, episode.tokens = len(episode.tokens), episode.tokens + replies[row]
                    episode.turns.append(Turn(start, log_probs[row], values[row], episode.tokens))
                    spoken += len(replies[row])
                    room = 2 * self.text.sizes[1] + self.size
                    cut[row] = not self.rebuilt and len(episode.tokens) + room > self.config.episode_tokens
                reward, begins = self.worlds.step(np.where(named < 0, self.default, named).astype(np.int32), cut)
                for row in range(count):
                    self.running[row].turns[-1].reward = float(reward[row])
                for row in np.flatnonzero(begins):
                    self.running[row].turns[-1].ends = True
                    self.finished.append(self.running[row])
                    self.running[row] = Episode([])
                if self.cached:
                    self._forget(begins)
                read = [[] for _ in range(count)]
        return turns * count, spoken

    def _ended(self, reply: list[int]) -> int:
        state = self.start
        for token in reply:
            state = int(self.moves[state, self.classes[token]])
        return state

    # --- update -------------------------------------------------------------------------------------------------------

    def _credited(self) -> list[tuple[list[int], list[tuple[Turn, float, float]]]]:
        """Texts with the advantage and the target of each turn: generalised advantage estimation over turns."""
        gamma, lam = self.config.gamma, self.config.gae_lambda
        out = []
        for episode in (*self.finished, *self.running):
            later, carried, turns = 0.0, 0.0, []
            for turn in reversed(episode.turns):
                carried = turn.reward + gamma * later - turn.value + gamma * lam * carried
                turns.append((turn, carried, carried + turn.value))
                later = turn.value
            texts = [[turn] for turn in turns] if self.rebuilt else [turns] if turns else []
            # of a conversation the latest turn, the first one here, has all tokens
            out += [(part[0][0].text, part) for part in texts]
        return out

    def learn(self, at_once: int) -> None:
        """The gradient steps of an update, on sequences of similar length, `at_once` in a pass."""
        torch, config = self.torch, self.config
        episodes = self._credited()
        rng = np.random.default_rng(0)
        for _ in range(config.epochs):
            for part in np.array_split(rng.permutation(len(episodes)), config.minibatches):
                chosen = sorted((episodes[i] for i in part), key=lambda x: len(x[0]))
                count = sum(len(turn.log_probs) for _, turns in chosen for turn, *_ in turns)
                replies = sum(len(turns) for _, turns in chosen)
                given = np.concatenate([[a] * len(turn.log_probs) for _, turns in chosen for turn, a, _ in turns])
                centre, spread = float(given.mean()), float(given.std()) + 1e-8
                self.optimizer.zero_grad(set_to_none=True)
                for first in range(0, len(chosen), at_once):
                    self._loss(chosen[first : first + at_once], count, replies, centre, spread).backward()
                torch.nn.utils.clip_grad_norm_(self.parameters, config.max_grad_norm)
                self.optimizer.step()

    def _loss(self, episodes: list, count: int, replies: int, centre: float, spread: float) -> Any:
        """The loss of some sequences, a part of a minibatch of `count` tokens and `replies`."""
        torch, config = self.torch, self.config
        tokens, mask = self._padded([episode for episode, _ in episodes])
        hidden = self.model.model(tokens, attention_mask=mask, use_cache=False).last_hidden_state
        rows, places, old, advantage, starts, targets, values = [], [], [], [], [], [], []
        for row, (_, turns) in enumerate(episodes):
            for turn, given, target in turns:
                places += range(turn.start, turn.start + len(turn.log_probs))
                rows += [row] * len(turn.log_probs)
                old += turn.log_probs
                advantage += [(given - centre) / spread] * len(turn.log_probs)
                starts.append((row, turn.start - 1))
                targets.append(target)
                values.append(turn.value)
        rows, places = torch.tensor(rows), torch.tensor(places)
        # logits of the replies' tokens only
        log_probs = torch.log_softmax(self.model.lm_head(hidden[rows, places - 1]), -1)
        chosen = log_probs.gather(1, tokens[rows, places][:, None])[:, 0]
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        ratio, given = (chosen - torch.tensor(old)).exp(), torch.tensor(advantage)
        clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
        gain = torch.minimum(ratio * given, clipped * given) + config.entropy_coef * entropy
        at = torch.tensor(starts)
        value, target, before = self.head(hidden[at[:, 0], at[:, 1]])[:, 0], torch.tensor(targets), torch.tensor(values)
        near = before + (value - before).clamp(-config.value_clip, config.value_clip)
        error = torch.maximum((value - target) ** 2, (near - target) ** 2)
        return -gain.sum() / count + config.value_loss_coef * error.sum() / replies

    def check(self) -> None:
        """Check that what was written last has the probabilities that a pass over the whole conversation gives it."""
        for episode in self.running:
            for turn in episode.turns:
                scores = self.log_probs(np.array([turn.text]))[0]
                places = slice(turn.start - 1, turn.start - 1 + len(turn.log_probs))
                np.testing.assert_allclose(scores[places], turn.log_probs, atol=1e-3)

    def log_probs(self, tokens: np.ndarray) -> np.ndarray:
        """Of each token of a row but the first."""
        with self.torch.inference_mode():
            rows = self.torch.tensor(tokens, dtype=self.torch.long)
            logits = self.model(rows, use_cache=False).logits[:, :-1]
            scores = self.torch.log_softmax(logits, -1).gather(2, rows[:, 1:, None])
        return scores[..., 0].numpy()


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of a call, and what it returns."""
    started = time.perf_counter()
    result = call()
    return time.perf_counter() - started, result
