"""Imitation of an expert that writes: demonstrations as conversations, and the run of `llmrl agent clone`."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import envs_jax
from envs_jax.babyai.env import BabyAI
from llmrl_jax import lm
from llmrl_jax.agents.babyai import NoisyExpert
from llmrl_jax.core.activity import doing
from llmrl_jax.core.learner import Learner
from llmrl_jax.lm.small import EMBEDDED, refuse_unread_weights
from llmrl_jax.multiturn.policy import TurnPolicy
from llmrl_jax.multiturn.replies import FORMATS
from llmrl_jax.run.folder import opened
from llmrl_jax.run.loop import RunResult
from llmrl_jax.systems.agent.build import BLOCKED, HENCE, NOWHERE, WritingAgent, build, load_world
from llmrl_jax.systems.agent.config import DEMO, AgentConfig, CloneConfig, CloneRun
from llmrl_jax.systems.agent.train import make_experiment
from llmrl_jax.tuning import ChatTemplate, Example, make_sft, pack
from llmrl_jax.workflows import experiment as experiments
from llmrl_jax.workflows.experiment import Experiment
from llmrl_jax.workflows.tuning import write_tuned


NOUN = re.compile(r"(?:a|the) ((?:\w+ )?(?:ball|box|key|door))\b")
"""The objects of a mission, of which some have no colour."""


DIRECTIONS = ("left", "right", "forward")
"""The words of a phrase that say in which direction an object lies."""


def thought_of(text: Mapping[str, str], plan: str = "") -> str:
    """The expert's thought on the goal's object: its name and the directions in which it lies, as in `red ball left
    forward`, or `nowhere` if it is out of view; then `blocked` if something else is one step away in the last of these
    directions (forward, if there is none), since a policy that sees one observation would otherwise push on, or turn to
    and fro; and what follows from that, as in `red ball left blocked so go forward`.

    The name comes first since it can be copied from the mission; what follows it is then a look-up of one step, which
    a small model learns much sooner than whether the object is in view.

    Of a mission with two tasks it is about the object of the first, also when that is done, since no text says so.

    **Arguments:** `text`, of an observation: `mission` and `text` (`Environment.describe`); `plan`, the name of the
    action that the expert holds best; empty: the thought has none."""
    first = text["mission"].rpartition(" after you ")[2].partition(", then ")[0]
    goals = NOUN.findall(first)
    phrases = [phrase.strip() for phrase in text["text"].split(",")]
    thought = [*goals[:1], NOWHERE]
    for goal, phrase in ((goal, phrase) for goal in goals for phrase in phrases if goal in phrase):
        if directions := [word for word in phrase.split() if word in DIRECTIONS]:
            thought = [goal, *directions]
            break
    side = thought[-1] if thought[-1] in DIRECTIONS else "forward"
    near = [phrase for phrase in phrases if re.fullmatch(f"[^0-9]* 1 step {side}", phrase)]
    taken = any(not any(goal in phrase for goal in goals) for phrase in near)
    return " ".join([*thought, *([BLOCKED] if taken else []), *([HENCE, plan] if plan else [])])


def reply_of(form: str, action: str, thought: str) -> str:
    """A reply in a format. **Arguments:** `thought`, empty: none."""
    rule = FORMATS[form]
    if rule.thought:
        before = f"{rule.thought[0]} {thought} {rule.thought[1]} " if thought else ""
    else:
        before = f"THINK {thought} " if thought and rule.opening else ""
    return f"{before}{rule.opening} {action} {rule.closing}".strip()


class Demonstration:
    """An episode of the expert, as the texts in which its replies are learned."""

    def __init__(self, appends: bool, window: int, length: int, end: int = -1):
        """**Arguments:** `appends`, whether the episode is one text, or each turn has one of its own with the last
        `window` turns; `length`, the most tokens of a text; `end`, see `TurnText.end`."""
        self.appends, self.window, self.length, self.end_token = appends, window, length, end
        self.turns: list[tuple[list[int], list[int]]] = []
        self.full, self.used = False, 0

    def turn(self, head: list[int], opening: list[int], following: list[int], reply: list[int]) -> list[Example]:
        """One turn: the tokens of the head, of the observation where it follows no reply and where it does, and the
        reply. **Returns:** the texts that are whole with it."""
        if self.appends:
            world = self._continued(self.turns[-1][1], following) if self.turns else [*head, *opening]
            self.full = self.full or self.used + len(world) + len(reply) > self.length
            if not self.full:
                self.turns.append((world, reply))
                self.used += len(world) + len(reply)
            return []
        world = following if self.turns and self.window else opening
        text = list(head)
        for observation, answer in [*self.turns, (world, [])]:
            text += [*self._continued(text, observation), *answer]
        self.turns = [*self.turns, (world, reply)][-self.window :] if self.window else []
        return [Example([*text, *reply], [False] * len(text) + [True] * len(reply))]

    def _continued(self, before: list[int], world: list[int]) -> list[int]:
        """An observation as it follows a text, see `llmrl_jax.multiturn.text.continued`."""
        return world[1:] if before[-1:] == world[:1] == [self.end_token] else world

    def end(self) -> list[Example]:
        """The end of the episode; the next one begins. **Returns:** its text, if it is one."""
        turns, self.turns, self.full, self.used = self.turns, [], False, 0
        if not self.appends or not turns:
            return []
        parts = [(part, learned) for turn in turns for part, learned in zip(turn, (False, True))]
        return [Example([t for part, _ in parts for t in part], [learned for part, learned in parts for _ in part])]


def demonstrations(agent: WritingAgent, config: CloneConfig, seed: int, length: int) -> list[Example]:
    """Texts that the policy sees, with the replies of an expert in BabyAI that acts at random with a probability of
    `noise`; only replies are learned. With the memory `append` a text is a conversation, with `reprompt` one turn.

    **Arguments:** `length`, the most tokens of a conversation, which is cut to whole turns. **Raises:** `ValueError` if
    a reply has more than `reply_tokens`."""
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
        return after, state, best, action, terminated | truncated, pieces

    thoughts: dict[tuple[bytes | int, ...], str] = {}
    replies: dict[tuple[int, str], list[int]] = {}

    def reply_to(captions: dict[str, Any], best: int, action: int) -> list[int]:
        observed = (*(x.tobytes() for x in captions.values()), best)
        if observed not in thoughts:
            thinks = config.thoughts and agent.config.think
            thoughts[observed] = thought_of(agent.env.describe(captions), names[best]) if thinks else ""
        thought = thoughts[observed]
        if (action, thought) not in replies:
            reply = reply_of(agent.config.format, names[action], thought)
            tokens = tokenizer.encode(reply) + end
            if len(tokens) > agent.config.reply_tokens:
                raise ValueError(
                    f"reply_tokens is {agent.config.reply_tokens}, but the expert's reply {reply!r} has {len(tokens)}: "
                    f"take --reply-tokens {len(tokens)} or more"
                )
            replies[action, thought] = tokens
        return replies[action, thought]

    key = jax.random.key(seed)
    obs, state = expert.reset(key)
    episodes = [Demonstration(policy.memory == "append", policy.window, length, text.end) for _ in range(copies)]
    turns: list[Example] = []
    conversations: list[list[list[Example]]] = [[] for _ in range(copies)]  # of each copy's episodes
    for t in range(100_000):
        captions = jax.device_get({name: obs[name] for name in agent.env.captions})
        obs, state, best, action, done, pieces = step(jax.random.fold_in(key, t), obs, state)
        best, action, done, pieces = jax.device_get((best, action, done, pieces))
        head, opening, following = ([x[:n].tolist() for x, n in zip(*piece)] for piece in pieces)
        for i, episode in enumerate(episodes):
            reply = reply_to({name: x[i] for name, x in captions.items()}, int(best[i]), int(action[i]))
            turns += episode.turn(head[i], opening[i], following[i], reply)
            if done[i]:
                conversations[i].append(episode.end())
        ended = [len(mine) for mine in conversations]
        if policy.memory != "append" and sum(ended) >= config.episodes:
            return turns
        if policy.memory == "append" and min(ended) * copies >= config.episodes:
            # as many of each copy: the first that end would be the short ones
            texts = [mine[number] for number in range(min(ended)) for mine in conversations]
            return [example for text in texts[: config.episodes] for example in text]
    raise RuntimeError("the expert's episodes do not end")


def check(config: CloneRun) -> None:
    """**Raises** `ValueError` for adapters, which imitation does not train, and for missions that are not English;
    `TypeError` for an environment that is none of BabyAI's, for which there is no expert."""
    if config.agent.tune != "full":
        raise ValueError(f"tune is {config.agent.tune}, but imitation trains all weights: take --tune full")
    world = load_world(config.agent.env) or envs_jax.make(config.agent.env)[0].unwrapped
    if not isinstance(world, BabyAI):
        raise TypeError(
            f"env is {config.agent.env}, for which there is no expert to imitate: take one of BabyAI-Text/ (llmrl envs "
            "list BabyAI-Text), or train without imitation: llmrl agent train --decoding constrained"
        )
    if config.clone.thoughts and world.language != "english":
        raise ValueError(
            f"env is {config.agent.env}, but the expert's thoughts are made of English texts: take --no-thoughts"
        )


def check_rows(config: CloneConfig, policy: TurnPolicy) -> None:
    """**Raises** `ValueError`, before anything is played, if texts may not fit into rows, or rows not be divided."""
    tokens, chunk = config.episode_tokens, config.sft.head_chunk
    policy.capacity(tokens)
    if (longest := policy.longest_text or 0) > tokens:
        raise ValueError(
            f"episode_tokens is {tokens}, but a prompt and its reply have up to {longest} tokens: take "
            f"--episode-tokens {longest} or more, or a smaller --window"
        )
    if chunk and tokens % chunk:
        raise ValueError(f"sft.head_chunk is {chunk}; it must divide the {tokens} of episode_tokens")


def lesson(agent: WritingAgent, config: CloneConfig, seed: int) -> tuple[Learner, int]:
    """The learner that imitates the expert, and its number of updates."""
    length = config.episode_tokens
    with doing("the expert plays demonstrations"):
        data = pack(demonstrations(agent, config, seed, length), length)
    updates = max(1, round(config.epochs * len(data.tokens) / config.sft.batch_size))
    model = agent.policy.model.clone(lora=None)
    variables = {"params": agent.policy.base(jax.random.key(seed))}
    longest = agent.policy.longest_text
    mesh = agent.policy.mesh
    return make_sft(config.sft, model, variables, data, updates, mesh=mesh, take=True, longest=longest), updates


def base_texts(agent: WritingAgent) -> tuple[tuple[int, ...], ChatTemplate | None]:
    """The end tokens and the chat template of the model from which an agent began. **Raises:** what reading raises."""
    if agent.config.model == EMBEDDED:
        return (), None
    path = lm.locate(agent.config.model)
    return lm.end_tokens(path, agent.tokenizer), ChatTemplate.load(path)


def write_model(agent: WritingAgent, state: Any, folder: Path) -> None:
    """Write the weights of a learner's state to `model/` in a folder, with the tokenizer, the end tokens and the chat
    template of the model from which it began."""
    ends, template = base_texts(agent)
    write_tuned(folder, agent.config.model, agent.policy.model, state, agent.tokenizer, template, ends)


def make(config: CloneRun, agent: WritingAgent | None = None) -> Experiment:
    """The model of a run, the demonstrations that it learns from, and its evaluation.

    **Raises:** what `check`, `build` and `demonstrations` raise."""
    check(config)
    agent = build(config.agent) if agent is None else agent
    check_rows(config.clone, agent.policy)
    learner, updates = lesson(agent, config.clone, config.run.seed)

    @functools.cache
    def heads() -> tuple[Any, Any]:
        # demonstrations do not train the critic, which does not act
        return agent.policy.init_heads(jax.random.key(0))

    def weights(state: Any) -> tuple[Any, Any]:
        value, replies = heads()
        return {"params": state.params, "value": value}, {"replies": replies}

    options: dict[str, Any] = {"updates": updates, "title": "imitation", "shown": {"loss": "loss"}}
    return make_experiment(config, agent, learner, config.clone.episode_tokens, weights, **options)


def clone(config: CloneRun) -> RunResult:
    """Fine-tune all weights of a model on demonstrations, write it to `model/` in the run's folder, and evaluate it.

    **Raises:** what `make` and `llmrl_jax.run.loop.train` raise."""
    check(config)
    if not config.run.resume:
        refuse_unread_weights(config.agent, (AgentConfig(), DEMO))
    agent = build(config.agent)
    base_texts(agent)  # what cannot be read is an error before the model learns
    with opened(config.run, "agent-clone") as folder:

        def facts(result: RunResult) -> dict[str, Any]:
            if result.stopped:
                return {}
            write_model(agent, result.state, folder)
            return {"model": "model"}

        result = experiments.train(make(config, agent), folder, facts=facts)
        if not result.stopped:
            print(f"The model is in {folder / 'model'}: llmrl agent train --model {folder / 'model'}")
        return result
