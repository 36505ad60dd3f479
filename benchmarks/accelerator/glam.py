"""GLAM: the rollout and the whole update of `llmrl glam train`, with random weights of a shape or a real model."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.accelerator import counts
from benchmarks.accelerator.record import Case, Measured, Settings, called
from benchmarks.accelerator.shapes import AFTER, BEFORE, SHAPES, TINY, attending, described, dtype
from llmrl_jax import lm
from llmrl_jax.core.files import write_whole
from llmrl_jax.lm.tokens import WordTokenizer
from llmrl_jax.parallel import Placement
from llmrl_jax.rl.ppo import PPO
from llmrl_jax.rl.rollout import collect, with_pool
from llmrl_jax.systems.glam import config as presets
from llmrl_jax.systems.glam.build import build, candidates_of, make_world
from llmrl_jax.systems.glam.config import GlamConfig
from llmrl_jax.systems.glam.prompts import glam_prompt


ROLLOUT = (
    "as the part scoring, for every step and once more per environment, for the values after the last step; every "
    "prompt at the longest length, of which groups sorted by length compute a part"
)
UPDATE_S = 25.0
"""Seconds that a compiled update is expected to take, with its repetitions."""
REPORTED = ("loss", "grad_norm", "approx_kl", "nonfinite")
"""Metrics of an update that are recorded, beside those of the ratio of the two probabilities of an action."""
UPDATE = "the rollout, and per epoch and step twice as much again: forward, and backward without the base's gradients"


def settings_of(tiny: bool, num_envs: int = 32) -> GlamConfig:
    """GLAM's published settings with adapters, for fewer steps and one epoch; the demo's world for a tiny run. How
    prompts are grouped is left to the library."""
    config = presets.DEMO if tiny else presets.GLAM_LORA
    sizes = (4, 2, 2) if tiny else (num_envs, 8, 4)
    shorter: dict[str, Any] = dict(zip(("num_envs", "num_steps", "minibatches"), sizes))
    ppo = replace(config.ppo, **shorter, epochs=1, microbatches=1, pool_size=8 if tiny else 256)
    # trained weights are float32 in any case
    return replace(config, ppo=ppo, remat=True, dtype=dtype().name)


def padded(config: GlamConfig) -> GlamConfig:
    """The settings with all prompts of a batch at once, padded to the longest possible one."""
    return replace(config, score_rows=0, score_widths=1)


def write_folder(path: Path, config: GlamConfig, sizes: lm.LlamaConfig) -> None:
    """A model folder without weights: the architecture, and a tokenizer with one token per word of the prompt."""
    env, _ = make_world(config)
    template = glam_prompt(env, env.action_names, history=config.history, list_actions=config.list_actions)
    WordTokenizer.from_prompt(template.prompt, template.actions).save(path)
    write_whole(path / "config.json", json.dumps(sizes.to_hf()))


class Program:
    """Programs of `llmrl glam train`: the rollout alone, and the update that contains it."""

    def __init__(self, config: GlamConfig, attention: str):
        self.config, self.glam = config, build(config)
        policy = self.glam.policy
        self.policy = replace(policy, model=policy.model.clone(**attending(attention)))
        ppo = (self.glam.ppo, self.glam.env, self.glam.env_params, self.policy)
        self.ppo = PPO(*ppo, Placement(None), None, None)
        self.state = self.ppo.init(jax.random.key(0))
        self.steps = config.ppo.num_envs * config.ppo.num_steps

    @cached_property
    def programs(self) -> tuple[Future, Future]:
        """The rollout and the update, compiled side by side, each with its seconds. Both are there before one is
        called, since compilation uses the device too."""

        def compile(lowered: Any, traced: float) -> tuple[Any, float]:
            started = time.perf_counter()
            return lowered.compile(), traced + time.perf_counter() - started

        with ThreadPoolExecutor(2) as pool:
            tasks = []
            for function in (self.rollout, self.update):
                started = time.perf_counter()
                lowered = jax.jit(function).lower(self.state)
                tasks.append((lowered, time.perf_counter() - started))
            return pool.submit(compile, *tasks[0]), pool.submit(compile, *tasks[1])

    def rollout(self, state: Any) -> Any:
        """The first half of an update. **Returns:** the sums of all numbers that were recorded."""
        keys = jax.random.split(jax.random.fold_in(state.key, state.update))
        runner = with_pool(self.ppo.vector, state.runner, keys[0], state.update, self.config.ppo.pool_every)
        played = (self.policy, state.params, state.frozen, runner, keys[1], self.config.ppo.num_steps)
        _, record = collect(self.ppo.vector, *played)
        read = (record.log_prob, record.value, record.next_value, record.reward, record.action)
        return [jnp.sum(x) for x in read]

    def update(self, state: Any) -> Any:
        """An update. **Returns:** all that it changes, and its metrics of the gradient steps: among them how far the
        probabilities of play are from those of the first gradient step."""
        after, metrics = self.ppo.update(state)
        reported = {name: x for name, x in metrics.items() if name in REPORTED or "ratio" in name or "sampling" in name}
        return after.params, after.opt_state, reported

    def flop(self) -> tuple[float, float]:
        """Operations of a rollout and of an update."""
        ppo, compiled = self.config.ppo, self.glam.compiled
        candidates = candidates_of(self.glam.prompt, compiled)
        forward = counts.scoring_flop(self.policy.model.config, compiled.max_length, candidates)
        rollout = forward * (self.steps + ppo.num_envs)
        return rollout, rollout + 2 * forward * self.steps * ppo.epochs


@lru_cache(maxsize=1)  # rollout and update are measured with the same weights, and then others take their memory
def program_of(config: GlamConfig, attention: str, sizes: lm.LlamaConfig | None) -> Program:
    """The program with random weights of `sizes`; with None, of the model of `config`."""
    if sizes is None:
        return Program(config, attention)
    with tempfile.TemporaryDirectory() as folder:
        write_folder(Path(folder), config, sizes)
        return Program(replace(config, model=folder, init="random"), attention)


def measure(config: GlamConfig, attention: str, sizes: lm.LlamaConfig | None, whole: bool) -> Measured:
    """A rollout, or an update if `whole`."""
    program = program_of(config, attention, sizes)
    times, took, result, temporary = called(*program.programs[whole].result(), program.state)
    facts: dict[str, Any] = {
        "padded_prompt": program.glam.compiled.max_length,
        "group": program.policy.rows,
        "shorter_lengths": list(program.policy.widths),
        "temporary_bytes": temporary,
    }
    if whole:
        facts |= {"metrics": {name: float(x) for name, x in result[2].items()}}
    flop, formula = program.flop()[whole], UPDATE if whole else ROLLOUT
    return Measured(times, took, program.steps, "environment steps", flop, formula, facts=facts)


def cases(settings: Settings) -> Iterator[Case]:
    """The rollout and the update for each shape, or for the model of `settings.model`; then with more environments, and
    as they were before: all prompts padded to the longest one, attention by plain products."""
    config = settings_of(settings.tiny)
    models: dict[str, lm.LlamaConfig | None] = (
        {"tiny": TINY} if settings.tiny else {k: SHAPES[k] for k in ("135M", "1B")}
    )
    if settings.model:
        config, models = replace(config, model=settings.model), {Path(settings.model).name: None}
    yield from of_models(models, config, AFTER)
    if not settings.tiny:
        first = dict([next(iter(models.items()))])
        yield from of_models(first, replace(config, ppo=settings_of(False, 256).ppo), AFTER)
        yield from of_models(models, padded(config), BEFORE)
    program_of.cache_clear()  # other parts need its memory


def of_models(models: dict[str, lm.LlamaConfig | None], config: GlamConfig, attention: str) -> Iterator[Case]:
    """The rollout and the update of each model with the same settings."""
    ppo = config.ppo
    sizes = {"env": config.env, "envs": ppo.num_envs, "steps": ppo.num_steps, "epochs": ppo.epochs}
    sizes |= {"minibatches": ppo.minibatches, "remat": config.remat, "dtype": config.dtype, **attending(attention)}
    sizes |= {"score_rows": config.score_rows, "score_widths": config.score_widths}
    for name, shape in models.items():
        sized = described(lm.read_config(config.model) if shape is None else shape) | sizes
        which = f"of {ppo.num_envs} environments x {ppo.num_steps} steps" + ", as before" * (attention == BEFORE)
        rollout, update = f"{name}, rollout {which}", f"{name}, update {which}"
        yield Case(rollout, sized, partial(measure, config, attention, shape, False))
        # compiled with the rollout
        yield Case(update, sized, partial(measure, config, attention, shape, True), expected=UPDATE_S, after=rollout)
