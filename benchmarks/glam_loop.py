"""GLAM's whole loop with SmolLM2-135M: environment steps of play and of whole updates, beside the pipeline in torch."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import OURS, REPEATS, Result, Row, aim, compiled, fastest, rates, speedup, threads
from benchmarks.torch_glam import PAIRS, Agent, Worlds
from benchmarks.torch_peer import COMPILED, compiler_error
from envs_jax.resets import VectorEnv
from llmrl_jax import lm
from llmrl_jax.lm.small import EMBEDDED
from llmrl_jax.rl.ppo import GLAM as PUBLISHED, PPOState
from llmrl_jax.rl.rollout import collect, with_pool
from llmrl_jax.systems.glam.build import Glam, build
from llmrl_jax.systems.glam.config import GLAM_LORA, GlamConfig


TITLE = "GLAM's loop: play and whole updates with SmolLM2-135M, compared with the pipeline in torch"

LEVEL = "GoToLocalS6N2-v0"
PLAY, UPDATE = "play", "a whole update"
BARS = {PLAY: (6.0, 2.0), UPDATE: (4.0, 1.5)}
"""Times the published pipeline, and times the same at its best."""


NAIVE_STEPS = 2
"""Steps of the published pipeline per environment and update: two environments, since a step takes it seconds."""
PEERS = "transformers and peft, eager"
AT_ONCE = (8, 4)
"""Prompts in a pass of a gradient, of torch at its best: each is measured, and the faster counts."""
BUILT = (8,)
"""The same, where the programs are compiled."""
MULTIPLE = 64
"""Padded lengths of compiled programs are multiples of this."""
BEST = "torch, at its best"
MIXED = "mixed precision"
NARROW = ("autocast", "bfloat16")
"""Ways of torch to use a processor's matrix units for bfloat16: see `benchmarks.torch_peer`."""
NARROW_BEST = f"{BEST}, in bfloat16"


def setting(quick: bool, dtype: Any = "float32") -> GlamConfig:
    """The published prompt and loss; few environments and steps, so that a sample takes seconds."""
    ppo = replace(PUBLISHED, num_envs=8, num_steps=2, epochs=1, minibatches=1, microbatches=4, pool_size=16)
    how = replace(
        GLAM_LORA, env=f"BabyAI-Text/{LEVEL}", model="smollm2-135m", dtype=dtype, score_rows=4, score_widths=8, ppo=ppo
    )
    if not quick:
        return how
    small = replace(how.embedded, hidden_size=32, layers=1, intermediate_size=32)
    return replace(how, model=EMBEDDED, embedded=small, value_width=16, score_widths=2)


@dataclass
class Side:
    """One implementation: its calls by case, and the samples."""

    who: str
    steps: int
    """Environment steps per call."""
    calls: dict[str, Callable[[], dict[str, float]]]
    """Calls by name; each returns seconds by case."""
    note: str = ""
    narrow: bool = False
    """Whether products have factors of bfloat16."""
    compile_seconds: dict[str, float] = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=lambda: {PLAY: [], UPDATE: []})

    def sample(self) -> None:
        """Call everything once, and keep the seconds."""
        for call in self.calls.values():
            for case, took in call().items():
                self.samples[case].append(took)

    def row(self, case: str) -> Row:
        times = rates(self.steps, self.samples[case])
        note = self.note if case == UPDATE else self.note.partition(";")[0]  # play has no gradients
        title = case + f", {MIXED}" * self.narrow
        return Row(title, self.who, "env-steps/s", times, self.compile_seconds.get(case), note)


class Ours:
    """The learner of `llmrl glam train`, and its play alone."""

    def __init__(self, glam: Glam):
        self.glam, self.ppo = glam, glam.config.ppo
        self.learner = glam.learner()
        self.state: PPOState = self.learner.init(jax.random.key(0))
        lora = self.state.params["lora"]
        leaves, tree = jax.tree.flatten(lora)
        keys = jax.random.split(jax.random.key(1), len(leaves))
        # B starts at zero, which would hide a fault in it
        drawn = [x + 0.02 * jax.random.normal(key, x.shape) for x, key in zip(leaves, keys, strict=True)]
        self.state = self.state.replace(params={**self.state.params, "lora": tree.unflatten(drawn)})
        self.first = jax.tree.map(jnp.copy, self.state.params)
        """The parameters before any update, which torch starts from."""
        self.vector = VectorEnv(glam.env, self.ppo.num_envs, policy=self.ppo.reset, pool_size=self.ppo.pool_size)
        self.metrics: dict[str, float] = {}
        self.lengths: list[float] = []

    def _play(self, state: PPOState) -> tuple[Any, Any]:
        keys = jax.random.split(jax.random.fold_in(state.key, state.update))
        runner = with_pool(self.vector, state.runner, keys[0], state.update, self.ppo.pool_every)
        runner, rollout = collect(
            self.vector, self.glam.policy, state.params, state.frozen, runner, keys[1], self.ppo.num_steps
        )
        lengths = jax.vmap(self.glam.policy.prompts)(rollout.obs)[1]
        return runner.env_state, (rollout.log_prob, rollout.next_value, lengths)

    def side(self) -> Side:
        """Compiled, and called once, so that windows are full."""
        play, play_seconds = compiled(self._play, self.state)
        update, update_seconds = compiled(self.learner.update, self.state, donate_argnums=0)

        def timed(case: str, call: Callable[[], Any]) -> dict[str, float]:
            started = time.perf_counter()
            jax.block_until_ready(call())
            return {case: time.perf_counter() - started}

        def one_update() -> Any:
            self.state, metrics = update(self.state)
            self.metrics = {name: max(float(x), self.metrics.get(name, 0.0)) for name, x in metrics.items()}
            return self.state

        def one_play() -> Any:
            result = play(self.state)
            self.lengths += np.asarray(result[1][2]).ravel().tolist()
            return result

        calls = {PLAY: lambda: timed(PLAY, one_play), UPDATE: lambda: timed(UPDATE, one_update)}
        took = {PLAY: play_seconds, UPDATE: update_seconds}
        narrow = self.glam.config.dtype == "mixed"
        side = Side(OURS, self.ppo.num_envs * self.ppo.num_steps, calls, narrow=narrow, compile_seconds=took)
        one_update()
        one_play()
        return side

    def check(self, agents: list[Agent], wide: float = 1e-3) -> None:
        """Check that torch's agents read the same prompts as the same tokens, and give the same log-probabilities and
        values, within `wide`."""
        policy, obs = self.glam.policy, self.state.runner.obs
        tokens, lengths = jax.jit(policy.prompts)(obs)

        @jax.jit
        def ours(params: Any, frozen: Any, obs: Any) -> tuple[jax.Array, jax.Array]:
            scores = policy.scores(params, frozen, obs)  # type: ignore[attr-defined]
            return scores.sum, policy.value(params, scores.hidden)

        want = ours(self.first, self.state.frozen, obs)
        rows = [row[:n].tolist() for row, n in zip(np.asarray(tokens), np.asarray(lengths), strict=True)]
        for i, row in enumerate(rows):
            text = self.glam.prompt.render(jax.tree.map(lambda x, i=i: np.asarray(x)[i], obs))
            if agents[0].encode(text.rstrip()) != row:
                raise AssertionError(f"torch reads other tokens in {text!r}")
        for agent in agents:
            with agent.torch.inference_mode():
                got = [x.numpy() for x in agent.scores(rows)]
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=wide), got, list(map(np.asarray, want)))


def notes(glam: Glam, agents: list[Agent], ours: Ours, mixed: Ours, cores: int) -> list[str]:
    """Description of the measurement. **Arguments:** `agents`, in torch, the published pipeline first; `mixed`, ours in
    it."""
    unbuilt = f" {compiler_error()}." if compiler_error() else ""
    ppo, lora = ours.ppo, glam.config.lora
    head, most = len(glam.policy.prefix), glam.compiled.max_length
    error, bound = ours.metrics["first_ratio_error"], ours.learner.bounds["first_ratio_error"]
    naive, theirs = agents[0], statistics.mean([n for agent in agents for n in agent.tokens])
    return [
        f"float32, {threads(cores)}. {glam.config.env}, the published prompt (list of actions, goal, three "
        f"observations, two actions): {statistics.mean(ours.lengths):.0f} tokens on average in ours and {theirs:.0f} "
        f"in torch, at most {most}. An update is {ppo.num_envs} environments x {ppo.num_steps} steps and a gradient "
        f"step on all of them; adapters of rank {lora.rank} on {' and '.join(lora.targets)}, critic "
        f"{glam.config.value_width} wide. Before anything is timed, both read the same texts as the same tokens, and "
        "log-probabilities and values agree within 1e-3. Samples alternate.",
        f"Ours: all in one program; prompts are sorted into groups of {glam.config.score_rows} with one of "
        f"{glam.config.score_widths} padded lengths. A group computes the first {head} tokens, which all prompts "
        "share, once, and the actions as a tree in the same pass. The first ratio of an update differs from 1 by at "
        f"most {error:.1e}; `llmrl glam train` stops above {bound:.0e}.",
        f"torch as published: every action is a sequence of its own, prompt and action, {PAIRS} in a pass; minigrid "
        f"and text on the host, one environment after another; gradients prompt by prompt, on adapters (the paper "
        f"trains all weights). {naive.ppo.num_envs} environments x {naive.ppo.num_steps} steps, since its passes do "
        "not grow with their number.",
        "torch at its best: all environments in one batch, padded to its longest prompt, the prompts' keys and values "
        "computed once and repeated for the actions, inference mode, gradients of prompts of similar length. The rows "
        f"with `torch.compile` pad to multiples of {MULTIPLE} tokens, and compile the MLP and the norms of a layer for "
        "each length and number of prompts, in programs that serve all layers; attention and the cache of keys and "
        f"values stay eager. The fastest row counts.{unbuilt}",
        "Mixed precision is `--dtype mixed`: float32 but for the factors of products with weights, which are bfloat16. "
        "torch's counterparts are `torch.autocast` to bfloat16 over float32 weights, and base weights of bfloat16; "
        "both are at its best otherwise. Their log-probabilities of actions are within 1 of those in float32. "
        f"The first ratio of an update differs from 1 by at most {mixed.metrics['first_ratio_error']:.1e} in ours.",
    ]


def torch_side(who: str, agent: Agent, note: str, built: float | None = None) -> Side:
    """An agent in torch: play is a part of its update, timed there. **Arguments:** `built`, seconds of compilation."""

    def call() -> dict[str, float]:
        took = agent.update()
        return {PLAY: took.rollout, UPDATE: took.whole}

    took = {} if built is None else {UPDATE: built}
    steps, narrow = agent.ppo.num_envs * agent.ppo.num_steps, who == NARROW_BEST
    return Side(who, steps, {UPDATE: call}, note, narrow, took)


def run(quick: bool = False) -> Result:
    """Environment steps per second, all sides in turn."""
    import torch

    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    glam = build(setting(quick))
    ours, ppo, env = Ours(glam), glam.config.ppo, glam.config.env
    start = list(glam.tokenizer.prefix_ids)
    with tempfile.TemporaryDirectory() as folder:
        state = ours.state
        variables = {**state.frozen, "lora": state.params["lora"]}
        base = lm.save_hf(f"{folder}/base", glam.policy.model.config, variables["params"])
        adapters = lm.save_adapter(f"{folder}/adapters", glam.policy.model, variables)

        def agent(ppo: Any, **how: Any) -> Agent:
            worlds = Worlds(
                env.replace("BabyAI-Text/", "BabyAI-"), ppo.num_envs, glam.prompt.actions, glam.config.history,
                glam.config.reward_scale,
            )  # fmt: skip
            worlds.play(glam.config.history)
            return Agent(
                (str(base), str(adapters)),
                ours.first["value"],
                worlds,
                lambda text: start + list(glam.tokenizer.encode(text)),
                glam.policy.candidates,  # type: ignore[attr-defined]
                ppo,
                **how,
            )

        # passes of a few sequences: its speed does not depend on the number of environments
        naive = agent(replace(ppo, num_envs=2, num_steps=NAIVE_STEPS), shared=False)
        mixed = Ours(build(setting(quick, "mixed")))
        sides = [ours.side(), mixed.side(), torch_side("torch, as published", naive, PEERS)]
        multiple = 512 if quick else MULTIPLE
        exact: list[Agent] = [naive]
        narrowed: list[Agent] = []
        for kind in ("float32", *NARROW):
            who, agents, how = NARROW_BEST, narrowed, f"{PEERS}, {kind}"
            if kind == "float32":
                who, agents, how = BEST, exact, PEERS
            for count in AT_ONCE:
                agents.append(agent(ppo, shared=True, at_once=count, kind=kind))
                sides.append(torch_side(who, agents[-1], f"{how}; gradients of {count} prompts at a time"))
            for count in () if compiler_error() else BUILT:
                one = agent(ppo, shared=True, at_once=count, kind=kind, multiple=multiple, builds=True)
                took = one.build(glam.compiled.max_length)
                agents.append(one)
                how = how.replace("eager", COMPILED)
                sides.append(torch_side(who, one, f"{how}; gradients of {count} prompts at a time", took))
        ours.check(exact)
        ours.check(narrowed, 1.0)  # log-probabilities of up to eight tokens through 30 layers
        for _ in range(REPEATS):
            for side in sides:
                side.sample()
    rows = [side.row(case) for case in (PLAY, UPDATE) for side in sides]
    bars = []
    for case, aims in BARS.items():
        narrow = f"{case}, {MIXED}"
        pairs = ((case, "torch, as published", aims[0]), (case, BEST, aims[1]), (narrow, NARROW_BEST, aims[1]))
        for title, who, bar in pairs:
            mine, theirs = ([row for row in rows if (row.case, row.who) == (title, x)] for x in (OURS, who))
            ratio, best = speedup(mine, theirs), fastest(theirs)
            bars.append(f"{title}: {ratio:.2f} times {who} ({best.note}) {aim(ratio, bar)}")
    return Result(rows, bars, notes(glam, exact, ours, mixed, cores))
