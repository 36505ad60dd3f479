"""Agents that write: turns and tokens of play and of whole updates, beside a loop on the host and torch."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import OURS, REPEATS, Result, Row, aim, compiled, fastest, speedup, threads
from benchmarks.torch_agent import HostLoop, timed
from llmrl_jax import lm
from llmrl_jax.lm.small import SmallConfig
from llmrl_jax.multiturn.learner import TurnState
from llmrl_jax.multiturn.ppo import TurnPPO, TurnPPOConfig
from llmrl_jax.multiturn.record import NOTHING, REPLY
from llmrl_jax.systems.agent.build import WritingAgent, build
from llmrl_jax.systems.agent.clone import lesson
from llmrl_jax.systems.agent.config import DEMO, DEMO_CLONE, AgentConfig, CloneConfig
from llmrl_jax.tuning import SFTConfig


TITLE = "Agents that write: play and whole updates, compared with a loop on the host and torch"

WORLD = "BabyAI-Text/GoToLocalS6N2-v0"
SMALL, DEMONSTRATED = "small Llama, append", "the demo's Llama, reprompt"
TAUGHT = ", taught"
PLAY, UPDATE = "play", "a whole update"
BAR = 3.0
GENERATE, KEPT = "torch, generate", "torch, keys and values kept"
CACHES: dict[str, dict[str, Any]] = {
    "growing cache": {},
    "static cache": {"cache_implementation": "static", "disable_compile": True},
}


class Case(NamedTuple):
    """An agent and its learner."""

    agent: AgentConfig
    config: TurnPPOConfig
    at_once: tuple[int, ...] = (4, 16)
    """Texts in a pass of a gradient in torch: each is measured."""
    imitation: CloneConfig | None = None
    """What the model imitates first; None: nothing, its weights are random."""


def settings(quick: bool) -> dict[str, Case]:
    """The cases by name: with random weights, and after imitation of an expert. Both sides train all weights."""
    agent = AgentConfig(env=WORLD, tune="full", reply_tokens=16)
    shared = {"epochs": 1, "minibatches": 4, "episode_tokens": 384, "pool_size": 64}
    if quick:
        tiny = replace(agent, embedded=SmallConfig(hidden_size=32, layers=1, intermediate_size=32), value_width=16)
        ppo = TurnPPOConfig(**shared | {"minibatches": 2}, num_envs=4, num_steps=96)
        few = CloneConfig(episodes=8, episode_tokens=384, sft=SFTConfig(batch_size=4))
        cases = {SMALL: Case(tiny, ppo), DEMONSTRATED: Case(replace(tiny, memory="reprompt"), ppo, at_once=(16,))}
        return cases | {SMALL + TAUGHT: Case(tiny, ppo, imitation=few)}
    many = TurnPPOConfig(**shared, num_envs=64, num_steps=256)
    small, demonstrated = Case(agent, many), Case(replace(DEMO, tune="full"), many, at_once=(16, 64))
    lessons = {SMALL: CloneConfig(episode_tokens=many.episode_tokens), DEMONSTRATED: DEMO_CLONE}
    cases = {SMALL: small, DEMONSTRATED: demonstrated}
    return cases | {name + TAUGHT: case._replace(imitation=lessons[name]) for name, case in cases.items()}


def imitated(agent: WritingAgent, config: CloneConfig) -> Any:
    """The model's weights after imitation."""
    learner, updates = lesson(agent, config, 0)
    state, update = learner.init(jax.random.key(0)), jax.jit(learner.update, donate_argnums=0)
    for _ in range(updates):
        state, _ = update(state)
    return state.params


@dataclass
class Side:
    """One implementation, and its samples."""

    who: str
    note: str
    calls: dict[str, Callable[[], tuple[float, int, int]]]
    """By case: seconds, turns and tokens of a call."""
    compile_seconds: dict[str, float] = field(default_factory=dict)
    turns: dict[str, list[float]] = field(default_factory=lambda: {PLAY: [], UPDATE: []})
    tokens: dict[str, list[float]] = field(default_factory=lambda: {PLAY: [], UPDATE: []})

    def sample(self) -> None:
        """Call everything once, and keep the rates."""
        for case, call in self.calls.items():
            took, turns, tokens = call()
            self.turns[case].append(turns / took)
            self.tokens[case].append(tokens / took)

    def rows(self, model: str) -> list[Row]:
        return [
            Row(f"{model}: {case}, {unit}", self.who, f"{unit}/s", samples, self.compile_seconds.get(case), self.note)
            for case in self.calls
            for unit, samples in (("turns", self.turns[case]), ("tokens", self.tokens[case]))
        ]


class Ours:
    """The learner of `llmrl agent train`, and its play alone."""

    def __init__(self, agent: WritingAgent, case: Case):
        self.agent, self.config = agent, case.config
        self.turn = TurnPPO(case.config, agent.policy, agent.env, agent.env_params, None)
        self.learner = self.turn.learner()
        self.state: TurnState = jax.jit(self.learner.init)(jax.random.key(0))
        if case.imitation:
            model = imitated(agent, case.imitation)
            self.state = self.state.replace(params={**self.state.params, "params": model})
        self.error = 0.0
        self.facts: dict[str, float] = {}
        """Of the first rollout: valid replies and their length, and the share of computed tokens that were needed."""

    def _play(self, state: TurnState) -> Any:
        rows = self.turn.begin(state, state.key)
        before = rows.length
        _, record, _ = self.turn.conversation.play(state.params, state.frozen, rows, state.key, self.config.num_steps)
        new = jnp.arange(record.token.shape[1]) >= before[:, None]
        return record, (record.acts & new).sum(), ((record.role != NOTHING) & new).sum()

    def side(self) -> Side:
        """Compiled, and called until rows are in the middle of episodes."""
        before = jax.tree.map(jnp.copy, self.state.params)
        update, update_seconds = compiled(self.learner.update, self.state, donate_argnums=0)
        for i in range(3):
            self.state, metrics = update(self.state)
            if i == 0:
                self.facts = {name: float(metrics[name]) for name in ("reply_length", "valid", "utilisation")}
        play, play_seconds = compiled(self._play, self.state)
        tokens = self.config.num_envs * self.config.num_steps

        def one_play() -> tuple[float, int, int]:
            # the policy that the loops on the host play with, which updates change
            state = self.state.replace(params=before)
            took, (_, turns, read) = timed(lambda: jax.block_until_ready(play(state)))
            return took, int(turns), int(read)

        def one_update() -> tuple[float, int, int]:
            took, (self.state, metrics) = timed(lambda: jax.block_until_ready(update(self.state)))
            self.error = max(self.error, float(metrics["first_ratio_error"]))
            return took, int(metrics["turns"]), tokens

        one_play()
        took = {PLAY: play_seconds, UPDATE: update_seconds}
        return Side(OURS, "one program", {PLAY: one_play, UPDATE: one_update}, took)

    def check(self, loop: HostLoop) -> None:
        """Check that torch gives the tokens that we wrote at the beginning of a rollout the same probabilities."""
        record, *_ = jax.device_get(jax.jit(self._play)(self.state))
        length = 1 + int(np.argmax(record.acts.any(0))) if record.acts.any() else record.token.shape[1]
        length = min([length, *(int(np.argmax(x)) for x in record.begins[:, 1:] if x.any())])
        scores = loop.log_probs(record.token[:, :length])
        reply = record.role[:, 1:length] == REPLY
        if not reply.any():
            raise AssertionError("no token of a reply is within the first one")
        np.testing.assert_allclose(scores[reply], record.log_prob[:, 1:length][reply], atol=1e-3)


def host_side(who: str, note: str, loop: HostLoop, turns: int, at_once: int = 0) -> Side:
    """A loop in torch. **Arguments:** `at_once`, of a gradient; 0: play alone."""

    def play() -> tuple[float, int, int]:
        took, (played, tokens) = timed(lambda: loop.play(turns))
        return took, played, tokens

    def update() -> tuple[float, int, int]:
        def both() -> tuple[int, int]:
            counts = loop.play(turns)
            loop.learn(at_once)
            return counts

        took, (played, tokens) = timed(both)
        return took, played, tokens

    play()
    loop.check()
    if not at_once:
        return Side(who, note, {PLAY: play})
    update()
    return Side(who, note, {UPDATE: update})


def measure(model: str, case: Case) -> tuple[list[Row], list[str], Ours]:
    """All sides of a case in turn. **Returns:** the rows, the verdicts, and our side."""
    agent, config = build(case.agent), case.config
    ours = Ours(agent, case)
    with tempfile.TemporaryDirectory() as folder:
        path = lm.save_hf(f"{folder}/model", agent.policy.model.config, ours.state.params["params"])
        loop = partial(HostLoop, str(path), agent, config)
        cached = loop(cached=True)
        ours.check(cached)
        sides = [ours.side()]
        # as many turns as ours plays, so that conversations are as long
        played = sides[0].calls[PLAY]()[1]
        turns = max(2, round(played / config.num_envs))
        for name, options in CACHES.items():
            sides.append(host_side(GENERATE, f"transformers, {name}", loop(cached=False, **options), turns))
        sides.append(host_side(KEPT, "transformers, a loop over tokens", cached, turns))
        for count in case.at_once:
            note = f"transformers, a loop over tokens; gradients of {count} texts at a time"
            sides.append(host_side(KEPT, note, loop(cached=True), turns, count))
        for _ in range(REPEATS):
            for side in sides:
                side.sample()
    rows = [row for side in sides for row in side.rows(model)]
    bars = []
    for what in (PLAY, UPDATE):
        for unit in ("turns", "tokens"):
            title = f"{model}: {what}, {unit}"
            mine, theirs = ([x for x in rows if x.case == title and (x.who == OURS) == own] for own in (True, False))
            best, ratio = fastest(theirs), speedup(mine, theirs)
            bars.append(f"{title}: {ratio:.2f} times {best.who} ({best.note}) {aim(ratio, BAR)}")
    return rows, bars, ours


def run(quick: bool = False) -> Result:
    """Turns and tokens per second."""
    import torch

    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    torch.manual_seed(0)
    rows: list[Row] = []
    bars: list[str] = []
    sizes = []
    for model, case in settings(quick).items():
        more, verdicts, ours = measure(model, case)
        rows, bars, config = rows + more, bars + verdicts, case.config
        sizes.append(
            f"{model}: {config.num_envs} rows x {config.num_steps} tokens, {config.minibatches} gradient steps; in "
            f"the first rollout {ours.facts['valid']:.2f} of the replies valid, {ours.facts['reply_length']:.1f} "
            f"tokens on average, `utilisation` {ours.facts['utilisation']:.2f}, the first ratio of an update "
            f"within {ours.error:.1e} of 1"
        )
    return Result(sorted(rows, key=lambda row: row.case), bars, notes(cores, sizes))


def notes(cores: int, sizes: list[str]) -> list[str]:
    """Description of the measurement."""
    return [
        f"float32, {threads(cores)}. {WORLD}, format `plain`, free replies of up to 16 tokens at temperature 1, "
        "conversations of up to 384 tokens (append), or one observation a prompt (reprompt); "
        "all weights are trained. Tokens are those read and written. Samples alternate. Before anything is timed, both "
        "give the same tokens the same log-probabilities within 1e-3.",
        "Play has the weights of the beginning on all sides; updates change theirs.",
        f"Ours, one program for play and one for the update. {'. '.join(sizes)}.",
        "Models of random weights write replies of which most are cut at 16 tokens, so rows of the loop on the host, "
        "which go in step, seldom wait for one another. Those taught have imitated an expert that thinks (the demo's "
        "Llama that of the demo, the small one 2,000 episodes), and end their replies.",
        "The loop on the host: our worlds and their text, one compiled call a turn for all rows, tokens instead of "
        "text, and replies end by the tables of our automaton. `generate` reads whole conversations at each turn, with "
        "a growing or a static cache. Where keys and values are kept, each turn reads its new tokens only, and a "
        "conversation once more at the beginning of an update, as ours. Its update is PPO's over turns with the same "
        "loss: logits of the replies' tokens only, texts of similar length together. The fastest row counts.",
    ]
