"""BK-RL: what a potential adds to PPO's time per step, beside the sentence encoder of the published BK-Goal."""

from __future__ import annotations

import dataclasses
import re
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import OURS, REPEATS, Figure, Result, Row, aim, compiled, rates, seconds, threads
from llmrl_jax.rl.ppo import make_ppo
from llmrl_jax.run.config import BaseRunConfig, RunConfig
from llmrl_jax.systems.bkrl.build import make_env
from llmrl_jax.systems.bkrl.collect import EpisodeDataset, collect, read_episodes
from llmrl_jax.systems.bkrl.config import CodeRun, CollectRun, GoalsRun, PreferRun, TrainRun, WindowConfig, preset
from llmrl_jax.systems.bkrl.goals import propose
from llmrl_jax.systems.bkrl.preferences import prefer
from llmrl_jax.systems.bkrl.programs import write_programs
from llmrl_jax.systems.bkrl.prompts import TEXT, caption, world_of
from llmrl_jax.systems.bkrl.train import experiment


TITLE = "BK-RL: what a potential adds to PPO, GoToLocal-RedBall-S20"

CASE = "PPO, 8 environments x 64 steps"
ALONE = "PPO alone"
ALGS = {"bk-code": "BK-Code", "bk-goal": "BK-Goal", "bk-pref": "BK-Pref", "random": "random potential", "rnd": "RND"}
MOST = {"bk-code": 20, "bk-goal": 20, "bk-pref": 50}
"""Per cent that they may add."""
ENVS, PAST, LIMIT = 8, 4, 512
"""Of the published BK-Goal: environments, observations of a situation, tokens of a text."""


def made_potentials(folder: Path, quick: bool) -> dict[str, dict[str, str]]:
    """The options of `llmrl bkrl train` for each potential, made by the scripted advisers of episodes in `folder`."""
    out = str(folder)
    run = RunConfig(out=out, name="episodes", log_every=100, checkpoint_every=100, eval_every=100)
    collect(CollectRun(agent=preset("babyai", collects=True), steps=8192 if quick else 65_536, run=run))

    def named(name: str) -> BaseRunConfig:
        return BaseRunConfig(out=out, name=name)

    windows = WindowConfig(data=str(folder / "episodes"))
    write_programs(CodeRun(windows=windows, rounds=1, run=named("bk-code")))
    prefer(PreferRun(windows=windows, pairs=100, run=named("bk-pref")))
    situations = dataclasses.replace(windows, window=PAST)
    propose(GoalsRun(windows=situations, situations=100, encoder="hashed", run=named("bk-goal")))
    asked = {alg: {"potential": str(folder / alg)} for alg in MOST}
    return {**asked, "random": {"data": windows.data}, "rnd": {}}


def programs(folder: Path, quick: bool, updates: int) -> dict[str, tuple[Any, float]]:
    """For each agent a compiled call of some updates, and the seconds of its compilation."""
    agent = preset("babyai")
    learners: dict[str, Any] = {}
    for alg, options in made_potentials(folder, quick).items():
        made = experiment(TrainRun(agent=agent, alg=alg, **options))  # type: ignore[arg-type]
        learners[alg] = made.learner
    plain = experiment(TrainRun(agent=agent))
    learners[ALONE] = make_ppo(agent.ppo, plain.env, plain.env.default_params, plain.policy)
    calls: dict[str, tuple[Any, float]] = {}
    for name, learner in learners.items():

        def several(state: Any, update: Any = learner.update) -> Any:
            def one(state: Any, _: None) -> Any:
                state, metrics = update(state)
                return state, sum(jnp.sum(x) for x in jax.tree.leaves(metrics))

            return jax.lax.scan(one, state, None, length=updates)

        state = jax.jit(learner.init)(jax.random.key(0))
        program, compile_seconds = compiled(several, state)
        calls[name] = (lambda program=program, state=state: program(state)), compile_seconds
    return calls


def texts(data: EpisodeDataset) -> list[list[str]]:
    """Situations and last transitions of windows in words, as the published BK-Goal embeds them for each step."""
    env = make_env(WindowConfig().env)
    book, verbs = env.captions[TEXT], world_of(env).verbs
    windows = data.sample(np.random.default_rng(0), 8 * ENVS, PAST)
    found: list[list[str]] = [[], []]
    for rows, actions in zip(windows.obs[TEXT], windows.action.tolist()):
        said = [book.render(row) for row in rows]
        found[0].append(caption(said[:-1], actions[:-1], verbs))
        found[1].append(caption(said[-2:], actions[-1:], verbs))
    return found


def encoder_per_step(data: EpisodeDataset) -> tuple[list[float], str]:
    """Environment steps per second of the sentence encoder of the published BK-Goal alone, in torch: two texts for each
    step, of all environments in one batch. The size is that of `prajjwal1/bert-small`, with random weights."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048
    )
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    batches, longest = [], []
    for kind in texts(data):
        # Each word and each mark of a caption is a piece of BERT's vocabulary; two more begin and end a text.
        lengths = [min(LIMIT, 2 + len(re.findall(r"\w+|[^\w\s]", text))) for text in kind]
        longest.append(statistics.mean(lengths))
        for start in range(0, len(lengths), ENVS):
            some = torch.tensor(lengths[start : start + ENVS])
            mask = (torch.arange(int(some.max())) < some[:, None]).long()
            batches.append((torch.randint(0, config.vocab_size, mask.shape) * mask, mask))

    @torch.inference_mode()
    def step() -> float:
        total = 0.0
        for tokens, mask in batches:
            hidden = model(input_ids=tokens, attention_mask=mask).last_hidden_state
            mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            total += float(torch.nn.functional.normalize(mean, dim=-1).sum())
        return total

    times = seconds(step)
    note = f"texts of {longest[0]:.0f} and {longest[1]:.0f} tokens"
    return rates(len(batches) // 2 * ENVS, times), note


def run(quick: bool) -> Result:
    """Steps per second of whole updates, all agents in turn; then of the encoder alone."""
    updates = 2 if quick else 20
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        calls = programs(folder, quick, updates)
        steps = updates * preset("babyai").ppo.num_envs * preset("babyai").ppo.num_steps
        times: dict[str, list[float]] = {name: [] for name in calls}
        for repeat in range(2 * REPEATS + 1):
            for alg, (call, _) in calls.items():
                started = time.perf_counter()
                jax.block_until_ready(call())
                if repeat:  # the first call warms up
                    times[alg].append(time.perf_counter() - started)
        encoder, note = encoder_per_step(read_episodes(folder / "episodes"))
    alone = Figure.of(times[ALONE])
    rows = [Row(CASE, OURS, "steps/s", rates(steps, times[ALONE]), calls[ALONE][1], ALONE)]
    bars = []
    for alg, title in ALGS.items():
        more = (Figure.of(times[alg]) / alone).scaled(100, plus=-100)
        rows.append(Row(CASE, OURS, "steps/s", rates(steps, times[alg]), calls[alg][1], title))
        if alg in MOST:
            bars.append(f"{title} adds {more:.0f}% to the time of a step {aim(more, MOST[alg], below=True)}")
    rows.append(Row(CASE, f"bert-small in torch, {threads(2)}", "steps/s", encoder, None, f"the encoder alone, {note}"))
    goal = statistics.median(rates(steps, times["bk-goal"])) / statistics.median(encoder)
    bars.append(f"the whole update with BK-Goal is {goal:.0f} times as fast as its published encoder alone")
    notes = [
        "Preset `babyai`: play and four epochs of learning, whole updates of 512 steps; the agents are measured in "
        "turn. Potentials by the scripted advisers; windows of 8 actions, of 4 for goals.",
        "The published BK-Goal embeds two texts for every environment step, the situation and the last transition, "
        "with `prajjwal1/bert-small` (4 layers, 512 wide; here with random weights). Its PPO, world and retrieval are "
        "not counted.",
    ]
    return Result(rows, bars, notes)
