"""Imitation of an expert that writes: demonstrations as conversations, and the run of `llmrl agent clone`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

import envs_jax
from envs_jax.babyai.env import BabyAI
from llmrl_jax import lm
from llmrl_jax.agents.babyai import NoisyExpert
from llmrl_jax.core.files import replacing
from llmrl_jax.multiturn.replies import FORMATS
from llmrl_jax.run.folder import opened, write_summary
from llmrl_jax.run.loop import RunResult, train as run_training
from llmrl_jax.systems.agent.build import NOWHERE, WritingAgent, build
from llmrl_jax.systems.agent.config import CloneConfig, CloneRun
from llmrl_jax.systems.agent.train import evaluators, summarise, table
from llmrl_jax.tuning import Example, make_sft, pack


NOUN = re.compile(r"(?:a|the) (\w+ (?:ball|box|key|door))")
"""The objects of a mission."""


def thought_of(text: Mapping[str, str]) -> str:
    """The expert's thought: the phrase of the observation that has the goal's object, or `nowhere`.

    **Arguments:** `text`, of an observation: `mission` and `text` (`Environment.describe`)."""
    goals = NOUN.findall(text["mission"])
    phrases = [phrase.strip() for phrase in text["text"].split(",")]
    return next((phrase for goal in goals for phrase in phrases if goal in phrase), NOWHERE)


def reply_of(form: str, action: str, thought: str) -> str:
    """A reply in a format. **Arguments:** `thought`, empty: none."""
    rule = FORMATS[form]
    if rule.thought:
        before = f"{rule.thought[0]} {thought} {rule.thought[1]} " if thought else ""
    else:
        before = f"THINK {thought} " if thought and rule.opening else ""
    return f"{before}{rule.opening} {action} {rule.closing}".strip()


def demonstrations(agent: WritingAgent, config: CloneConfig, seed: int, length: int) -> list[Example]:
    """Conversations of an expert in BabyAI that acts at random with a probability of `noise`, as tokens; only replies
    are learned.

    **Arguments:** `length`, the most tokens of a conversation, which is cut to whole turns."""
    policy, tokenizer = agent.policy, agent.tokenizer
    copies = min(256, config.episodes)
    expert = NoisyExpert(agent.env, agent.env_params, copies, config.noise, seen_only=True)
    names = agent.env.action_names
    text = policy.text
    end = [tokenizer.eos_id] if not FORMATS[agent.config.format].closing and tokenizer.eos_id is not None else []
    end = [] if FORMATS[agent.config.format].ends else end

    @jax.jit
    def step(key: jax.Array, obs: Any, state: Any) -> Any:
        best_key, pick_key, step_key, pool_key = jax.random.split(key, 4)
        best = expert.best(state)
        random = jax.random.randint(pick_key, best.shape, 0, len(names))
        action = jnp.where(jax.random.bernoulli(best_key, config.noise, best.shape), random, best)
        state = expert.envs.refresh(pool_key, state, agent.env_params)
        after, state, _, terminated, truncated, _ = expert.envs.step(step_key, state, action, agent.env_params)
        pieces = (text.heads(obs), text.turns(obs, opening=True), text.turns(obs))
        return after, state, action, terminated | truncated, pieces

    key = jax.random.key(seed)
    obs, state = expert.reset(key)
    rows: list[list[tuple[list[int], bool]]] = [[] for _ in range(copies)]
    closed = [False] * copies  # a conversation that is full is left out until its episode ends
    examples: list[Example] = []
    for t in range(100_000):
        captions = jax.device_get({name: obs[name] for name in agent.env.captions})
        obs, state, action, done, pieces = step(jax.random.fold_in(key, t), obs, state)
        action, done, pieces = jax.device_get((action, done, pieces))
        (heads, head_sizes), (opening, opening_sizes), (turns, turn_sizes) = pieces
        for i in range(copies):
            row = rows[i]
            thought = ""
            if config.thoughts and agent.config.think:
                thought = thought_of(agent.env.describe({name: x[i] for name, x in captions.items()}))
            reply = tokenizer.encode(reply_of(agent.config.format, names[action[i]], thought)) + end
            if row:
                world_tokens = turns[i, : turn_sizes[i]].tolist()
            else:
                world_tokens = [*heads[i, : head_sizes[i]].tolist(), *opening[i, : opening_sizes[i]].tolist()]
            used = sum(len(part) for part, _ in row)
            closed[i] = closed[i] or used + len(world_tokens) + len(reply) > length
            if not closed[i]:
                row += [(world_tokens, False), (reply, True)]
            if done[i]:
                if row:
                    learn = [learned for part, learned in row for _ in part]
                    examples.append(Example([token for part, _ in row for token in part], learn))
                rows[i], closed[i] = [], False
        if len(examples) >= config.episodes:
            return examples[: config.episodes]
    raise RuntimeError("the expert's episodes do not end")


def check(config: CloneRun) -> None:
    """**Raises** `ValueError` for adapters, which imitation does not train, and `TypeError` for a world that is none of
    BabyAI's, for which there is no expert."""
    if config.agent.tune != "full":
        raise ValueError(f"tune is {config.agent.tune}, but imitation trains all weights: take --tune full")
    env, _ = envs_jax.make(config.agent.env)
    if not isinstance(env.unwrapped, BabyAI):
        raise TypeError(
            f"env is {config.agent.env}, for which there is no expert to imitate: take one of BabyAI-Text/ (llmrl envs "
            "list BabyAI-Text), or train without imitation: llmrl agent train --decoding constrained"
        )


def clone(config: CloneRun) -> RunResult:
    """Fine-tune all weights of a model on demonstrations, evaluate it, and write it to `model/` in the run's folder.

    **Raises:** what `check` and `build` raise."""
    check(config)
    agent, length, seed = build(config.agent), config.clone.episode_tokens, config.run.seed
    with opened(config.run, "agent-clone") as folder:
        data = pack(demonstrations(agent, config.clone, seed, length), length)
        options = config.clone.sft
        updates = max(1, round(config.clone.epochs * len(data.tokens) / options.batch_size))
        model = agent.policy.model.clone(lora=None)
        variables = {"params": agent.policy.base(jax.random.key(seed))}
        learner = make_sft(options, model, variables, data, updates, take=True)
        result = run_training(
            learner,
            config.run,
            num_updates=updates,
            full_config=config,
            folder=folder,
            title="imitation",
            shown={"loss": "loss"},
        )
        if result.stopped:
            return result
        with replacing(folder / "model") as draft:
            agent.tokenizer.save(lm.save_hf(draft, model.config, result.state.params))
        trained = build(replace(config.agent, model=str(folder / "model")))
        params, frozen = trained.policy.init(jax.random.key(seed))
        play = evaluators(trained, length)(config.eval_episodes, False)
        results = {"sampled": summarise(play(params, frozen, jax.random.key(seed)))}
        write_summary(folder, results)
        print(table(results, config.eval_episodes))
        print(f"The model is in {folder / 'model'}: llmrl agent train --model {folder / 'model'}")
        return result
