"""GLAM: the rollout and the whole update of `llmrl glam train`, with random weights of a shape or a real model."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.accelerator import counts
from benchmarks.accelerator.record import Case, Measured, Settings, clocked
from benchmarks.accelerator.shapes import SHAPES, TINY, described, dtype
from llmrl_jax import lm
from llmrl_jax.core.files import write_whole
from llmrl_jax.lm.tokens import WordTokenizer
from llmrl_jax.parallel import Placement
from llmrl_jax.rl.ppo import PPO
from llmrl_jax.rl.rollout import collect, with_pool
from llmrl_jax.systems.glam import presets
from llmrl_jax.systems.glam.build import build, candidates_of, make_world
from llmrl_jax.systems.glam.config import GlamConfig
from llmrl_jax.systems.glam.prompt import glam_prompt


ROLLOUT = "as the part scoring, for every step and once more per environment, for the values after the last step"
UPDATE = "the rollout, and per epoch and step twice as much again: forward, and backward without the base's gradients"


def settings_of(tiny: bool) -> GlamConfig:
    """GLAM's published settings with adapters, for fewer steps and one epoch; the demo's world for a tiny run."""
    config = presets.DEMO if tiny else presets.GLAM_LORA
    sizes = (4, 2, 2) if tiny else (32, 8, 4)
    shorter: dict[str, Any] = dict(zip(("num_envs", "num_steps", "minibatches"), sizes))
    ppo = replace(config.ppo, **shorter, epochs=1, microbatches=1, pool_size=8 if tiny else 256)
    # on an accelerator all prompts at once; trained weights are float32 in any case
    return replace(config, ppo=ppo, score_rows=0, remat=True, dtype=dtype().name)


def write_folder(path: Path, config: GlamConfig, sizes: lm.LlamaConfig) -> None:
    """A model folder without weights: the architecture, and a tokenizer with one token per word of the prompt."""
    env, _ = make_world(config)
    template = glam_prompt(env, env.action_names, history=config.history, list_actions=config.list_actions)
    WordTokenizer.from_prompt(template.prompt, template.actions).save(path)
    write_whole(path / "config.json", json.dumps(sizes.to_hf()))


class Program:
    """What `llmrl glam train` runs, in two programs: the rollout alone, and the update that contains it."""

    def __init__(self, config: GlamConfig):
        self.config, self.glam = config, build(config)
        ppo = (self.glam.ppo, self.glam.env, self.glam.env_params, self.glam.policy)
        self.ppo = PPO(*ppo, Placement(None), None, None)
        self.state = self.ppo.init(jax.random.key(0))
        self.steps = config.ppo.num_envs * config.ppo.num_steps

    def rollout(self, state: Any) -> Any:
        """The first half of an update. **Returns:** the sums of all numbers that were recorded."""
        keys = jax.random.split(jax.random.fold_in(state.key, state.update))
        runner = with_pool(self.ppo.vector, state.runner, keys[0], state.update, self.config.ppo.pool_every)
        played = (self.glam.policy, state.params, state.frozen, runner, keys[1], self.config.ppo.num_steps)
        _, record = collect(self.ppo.vector, *played)
        read = (record.log_prob, record.value, record.next_value, record.reward, record.action)
        return [jnp.sum(x) for x in read]

    def update(self, state: Any) -> Any:
        """An update. **Returns:** all that it changes, and its metrics of the gradient steps."""
        after, metrics = self.ppo.update(state)
        kept = {name: metrics[name] for name in ("loss", "grad_norm", "first_ratio_error", "nonfinite")}
        return after.params, after.opt_state, kept

    def flop(self) -> tuple[float, float]:
        """Operations of a rollout and of an update."""
        ppo, compiled = self.config.ppo, self.glam.compiled
        candidates = candidates_of(self.glam.prompt, compiled)
        forward = counts.scoring_flop(self.glam.policy.model.config, compiled.max_length, candidates)
        rollout = forward * (self.steps + ppo.num_envs)
        return rollout, rollout + 2 * forward * self.steps * ppo.epochs


def program_of(config: GlamConfig, sizes: lm.LlamaConfig | None) -> Program:
    """The program with random weights of `sizes`; with None, of the model of `config`."""
    if sizes is None:
        return Program(config)
    with tempfile.TemporaryDirectory() as folder:
        write_folder(Path(folder), config, sizes)
        return Program(replace(config, model=folder, init="random"))


def measure(make: Callable[[], Program], whole: bool) -> Measured:
    """A rollout, or an update if `whole`."""
    program = make()
    times, took, result = clocked(program.update if whole else program.rollout, program.state)
    facts: dict[str, Any] = {"padded_prompt": program.glam.compiled.max_length}
    if whole:
        facts |= {"metrics": {name: float(x) for name, x in result[2].items()}}
    flop, formula = program.flop()[whole], UPDATE if whole else ROLLOUT
    return Measured(times, took, program.steps, "environment steps", flop, formula, facts=facts)


def cases(settings: Settings) -> Iterator[Case]:
    """The rollout and the update for each shape, or for the model of `settings.model`."""
    config = settings_of(settings.tiny)
    models: dict[str, lm.LlamaConfig | None] = (
        {"tiny": TINY} if settings.tiny else {k: SHAPES[k] for k in ("135M", "1B")}
    )
    if settings.model:
        config, models = replace(config, model=settings.model), {Path(settings.model).name: None}
    ppo = config.ppo
    sizes = {"env": config.env, "envs": ppo.num_envs, "steps": ppo.num_steps, "epochs": ppo.epochs}
    sizes |= {"minibatches": ppo.minibatches, "remat": config.remat, "dtype": config.dtype}
    for name, shape in models.items():
        sized = described(lm.read_config(settings.model) if shape is None else shape) | sizes
        program = cache(partial(program_of, config, shape))  # both are measured with the same weights
        for what in ("rollout", "update"):
            case = f"{name}, {what} of {ppo.num_envs} environments x {ppo.num_steps} steps"
            yield Case(case, sized, partial(measure, program, what == "update"))
