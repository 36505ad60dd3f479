"""Play of a policy that writes: in one loop every row is in its own phase.

At each step every row that writes processes one token and samples the next; of each group of rows, two that have
something to read read several tokens at once. The token that ends a reply takes a step in the environment, whose
observation is what the row reads next. So no row waits for another one's longer text, and keys and values are read once
for many tokens of an observation. The loop ends when every row has its `T` tokens; rows go on where they are at the
next update, in the middle of a turn; keys and values are computed again for the parameters that have changed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from envs_jax import tracing
from envs_jax.bridges.host import HostEnvironment, HostVector
from envs_jax.env import Environment
from envs_jax.resets import VectorEnv, VectorState, select
from llmrl_jax.kernels.slots import Tokens, write_slots
from llmrl_jax.lm import Llama
from llmrl_jax.lm.cache import Cache, Reading, Slots
from llmrl_jax.multiturn.episodes import Episodes
from llmrl_jax.multiturn.policy import TurnPolicy
from llmrl_jax.multiturn.record import NOTHING, REPLY, REREAD, WORLD, Record
from llmrl_jax.multiturn.text import Pieces, continued, join
from llmrl_jax.multiturn.words import number_of, pack, unpack
from llmrl_jax.rl.rollout import episode_info


Values = Literal["turn", "token"] | None
"""The tokens of a record that have values: the last ones of observations (`turn`), or also those of replies but the
last (`token`); None: none."""


@struct.dataclass
class Rows:
    """The conversations between two updates, in the middle of their turns: all that an exact continuation needs."""

    env_params: Any
    env_state: Any
    obs: Any
    """The environments' observations, leaves `[N, ...]`; of the next episode, where a time-out's is still read."""
    record: Record
    """What is seen and may be needed of earlier tokens, `[E, S]`, of rows or, with `episodes`, of these."""
    length: Int[Array, " E"]
    """Tokens in `record`."""
    token: Int[Array, " N"]
    """The reply's token that was sampled and has not been processed; used where `writes`."""
    writes: Bool[Array, " N"]
    """Whether a row is in its reply; else it reads."""
    log_prob: Float[Array, " N"]
    free: Bool[Array, " N"]
    queue: Int[Array, "N R"]
    """What is read next: what the environment says and, with `reprompt`, earlier turns with their replies, marked."""
    queued: Int[Array, " N"]
    """Tokens in `queue`."""
    read: Int[Array, " N"]
    """Tokens of it that have been read."""
    waited: Int[Array, " N"]
    """Steps for which a row has been reading: who has waited longest reads first."""
    state: Int[Array, " N"]
    """The automaton's, before `token`."""
    left: Int[Array, " N"]
    spoken: Int[Array, " N"]
    """Tokens of the current text that have been processed: the position of the next one, which begins it if 0."""
    final: Bool[Array, " N"]
    """Whether the queue is the last observation of an episode that timed out."""
    live: Bool[Array, " N"]
    """False for a row that has ended and begins no other episode."""
    past: Any = ()
    """With `reprompt`: `(tokens [N, w + 1, W], lengths [N, w + 1])` of the last turns with their replies, the current
    one last. Tokens of replies are marked (`mark`)."""
    episodes: Any = ()
    """`Episodes`, where rows play one after the other."""


@struct.dataclass
class World:
    """The environments after the actions of some rows."""

    obs: Any
    env_state: Any
    reward: Float[Array, " N"]
    terminated: Bool[Array, " N"]
    done: Bool[Array, " N"]
    """Whether the environment ended the episode, time-outs included."""
    cut: Bool[Array, " N"]
    """Whether it ended because no further turn fits."""
    info: dict[str, jax.Array]


@struct.dataclass
class Event:
    """Outcome of the last token that each row processed in a step; leaves `[N]`."""

    record: Record
    """Of that token, without `role` and `begins`, and without `token` where it was read."""
    written: Bool[Array, " N"]
    """Whether the token is a reply's."""
    ends: Bool[Array, " N"]
    """Whether its text ends with it."""
    info: dict[str, jax.Array]
    done: Bool[Array, " N"]
    cut: Bool[Array, " N"]
    anchor: Any


@struct.dataclass
class Steps:
    """Metrics of a rollout besides its record, leaves `[E, T]`."""

    info: dict[str, jax.Array]
    """`episode_info` of the environment's `info`, where a reply ends."""
    done: Bool[Array, "N T"]
    """Whether the environment ended an episode here."""
    cut: Bool[Array, "N T"]
    """Whether an episode ended here because its text is as long as it may be."""
    anchor: Any
    """int32, `number_of` the observation that was read, at its last token; `()` unless asked for."""
    computed: Int[Array, ""]
    """The tokens that the play computed: those processed, and those of rows that had to wait."""


def mark(token: Int[Array, "*b"]) -> Int[Array, "*b"]:
    """Tokens of a reply that is read again, negative, by which they are known among the environment's."""
    return ~token


def unmarked(tokens: Int[Array, "*b"]) -> Int[Array, "*b"]:
    """The ids of tokens of which some may be marked."""
    return jnp.where(tokens < 0, ~tokens, tokens)


def worlds_of(env: Environment, count: int, pool_size: int = 0) -> VectorEnv:
    """A batch of environments. **Arguments:** `pool_size`, of the episodes prepared for those that end; 0: nothing is
    reset. Environments of the host begin their next episode when it is needed, whatever the size."""
    if isinstance(env.unwrapped, HostEnvironment):
        return HostVector(env, count, policy="always" if pool_size else "none")
    return (
        VectorEnv(env, count, policy="pool", pool_size=pool_size) if pool_size else VectorEnv(env, count, policy="none")
    )


def select_rows(mask: Bool[Array, " N"], new: VectorState, old: VectorState) -> VectorState:
    """The states of environments, of some rows new; the pool of episodes is that of `old`."""
    return old.replace(env=select(mask, new.env, old.env))


GROUP = {"cpu": 16, "other": 8}
"""The most rows of a group, of which some read in a step; fewer where rows may be split over devices."""
READERS = 2
"""The most rows of a group that read in a step: with one, the room that a short text leaves would be lost."""
READ = {"cpu": 2.5, "other": 4}
"""Tokens that are read in a step for each one that is written: on a CPU, whose time is that of all tokens, few of them
shall be computed for nothing; elsewhere fewer steps are worth some of that."""
LEAST = 8
"""Tokens that are read in a step at least, where a group has few rows."""


class Conversation:
    """The loop over tokens of a policy in a batch of environments.

    **Arguments:** `policy`; `env`, whose resets are within the step; `episode_tokens`, see `TurnPolicy.capacity`;
    `constrain`, applied to pytrees of rows `[N, ...]`, to keep them on their devices; `once`, whether every row plays
    one episode, or its share of `episodes`, and stops; `anchors`, whether observations are numbered (`Steps.anchor`);
    `whole`, whether rows hold no earlier tokens: `play` is of whole episodes, and `play_on` goes on by its slots;
    `values`, of which tokens values are computed; `episodes`, with `whole`, those that the rows play, a multiple of the
    environments (0: as many).
    """

    def __init__(
        self,
        policy: TurnPolicy,
        env: VectorEnv,
        episode_tokens: int = 0,
        *,
        constrain: Callable[[Any], Any] = lambda rows: rows,
        once: bool = False,
        anchors: bool = False,
        whole: bool = False,
        values: Values = None,
        episodes: int = 0,
    ):
        self.values: Values = values
        self.policy, self.env, self.constrain, self.once, self.anchors = policy, env, constrain, once, anchors
        self.count = env.num_envs
        self.size = policy.capacity(episode_tokens)
        self.held = 0 if whole else self.size
        """Places for earlier tokens."""
        self.appends = policy.memory == "append"
        self.episodes = episodes or self.count
        self.follows = self.episodes > self.count
        """Whether an episode begins where another one has ended."""

    @property
    def group(self) -> int:
        """The rows of a group, of which some read in a step."""
        # whatever the mesh: when a row acts decides what its environment draws
        most = GROUP.get(tracing.platform(), GROUP["other"])
        return next(n for n in range(min(most, self.count), 0, -1) if self.count % n == 0)

    @property
    def chunk(self) -> int:
        """The most tokens that the rows of a group read at once."""
        readers, most = min(READERS, self.group), READ.get(tracing.platform(), READ["other"]) * self.group
        return min(max(LEAST, math.ceil(most)), readers * self.policy.prompt_tokens)

    # --- texts --------------------------------------------------------------------------------------------------------

    def _opening(self, obs: Any) -> tuple[Pieces, Any]:
        """The head and the first turn of episodes, and the turns kept, of which there is this one."""
        text, window = self.policy.text, self.policy.window
        turn = text.turns(obs, opening=True)
        queue = join([text.heads(obs), turn], self.policy.prompt_tokens)
        if self.appends:
            return queue, ()
        tokens, lengths = self._as_kept(turn)
        return queue, (jnp.pad(tokens, ((0, 0), (window, 0), (0, 0))), jnp.pad(lengths, ((0, 0), (window, 0))))

    def _following(self, obs: Any, past: Any, token: Int[Array, " N"]) -> tuple[Pieces, Any]:
        """Tokens that are read after a reply: the observation, and before it with `reprompt` the head and the last
        turns; and the turns kept. **Arguments:** `token`, the last one of the reply."""
        text, size, window = self.policy.text, self.policy.prompt_tokens, self.policy.window
        if self.appends:
            reply = token[:, None], jnp.ones_like(token)
            return join([continued(text.end, reply, text.turns(obs))], size), ()
        turn = text.turns(obs, opening=not window)
        tokens, lengths = (jnp.concatenate([a[:, 1:], b], axis=1) for a, b in zip(past, self._as_kept(turn)))
        parts = [*((tokens[:, i], lengths[:, i]) for i in range(window)), turn]
        parts[1:] = (continued(text.end, *pair) for pair in itertools.pairwise(parts))
        return join([text.heads(obs), *parts], size), (tokens, lengths)

    def _as_kept(self, turn: Pieces) -> tuple[Int[Array, "N 1 W"], Int[Array, "N 1"]]:
        """A turn without its reply, as `Rows.past` keeps it, `[N, 1, W]`."""
        tokens, length = turn
        return jnp.pad(tokens, ((0, 0), (0, self.policy.turn_tokens - tokens.shape[1])))[:, None], length[:, None]

    def _with_reply(self, rows: Rows, replied: Bool[Array, " N"]) -> Any:
        """The turns kept, with the token of a reply."""
        if self.appends:
            return ()
        tokens, lengths = rows.past
        index = jnp.where(replied, lengths[:, -1], tokens.shape[-1])
        tokens = tokens.at[jnp.arange(self.count), -1, index].set(mark(rows.token), mode="drop")
        return tokens, lengths.at[:, -1].add(replied)

    def start(self, key: jax.Array, env_params: Any) -> Rows:
        """Conversations at the beginning of episodes."""
        obs, env_state = jax.jit(self.env.reset)(key, env_params)
        return jax.jit(self.begin)(env_params, env_state, obs)

    def begin(self, env_params: Any, env_state: Any, obs: Any) -> Rows:
        """Conversations at the beginning of the episodes of a state, within a program. **Arguments:** `env_state` and
        `obs`, of each episode."""
        count: int = self.count
        episodes: Any = ()
        if self.follows:
            episodes = Episodes.first(obs, env_state.env, count // self.group, self.group)
            obs, env = episodes.beginning()
            env_state = env_state.replace(env=env)
        zeros, no = jnp.zeros(count, jnp.int32), jnp.zeros(count, bool)
        (queue, queued), past = self._opening(obs)
        return Rows(
            env_params=env_params,
            env_state=env_state,
            obs=obs,
            record=Record.empty(self.episodes, self.held),
            length=jnp.zeros(self.episodes, jnp.int32),
            token=zeros,
            writes=no,
            log_prob=jnp.zeros(count, jnp.float32),
            free=no,
            queue=queue,
            queued=queued,
            read=zeros,
            waited=zeros,
            state=zeros,
            left=zeros,
            spoken=zeros,
            final=no,
            live=~no,
            past=past,
            episodes=episodes,
        )

    # --- play ---------------------------------------------------------------------------------------------------------

    def play(
        self, params: Any, frozen: Any, rows: Rows, key: jax.Array, steps: int, greedy: Any = None
    ) -> tuple[Rows, Record, Steps]:
        """`steps` tokens in every row, or of every episode; fewer in those that end before (`once`).

        **Arguments:** `greedy`, as of `TurnPolicy.write`.
        **Returns:** the conversations behind them; all tokens of which something is learned, `[E, S + T]`: those that
        the rows had, without gaps, then the new ones; and what is reported.
        """
        slots = self._read_again(self.policy.variables(params, frozen), rows)
        rows, _, record, report = self.play_on(params, frozen, rows, slots, key, steps, greedy)
        return rows, record, report

    def play_on(
        self, params: Any, frozen: Any, rows: Rows, slots: Slots, key: jax.Array, steps: int, greedy: Any = None
    ) -> tuple[Rows, Slots, Record, Steps]:
        """`play` by the parameters by which the rows were played before. **Arguments:** `slots`, the keys and values of
        the rows' texts: `first_slots`, or those that the call before returned."""
        policy, count = self.policy, jnp.zeros_like(rows.length)
        variables = policy.variables(params, frozen)
        layers: Any = policy.model.apply(variables, method=Llama.unstacked_weights)
        first = jnp.ones(self.episodes, bool) if self.follows else rows.spoken == 0
        # what a row writes depends on its own tokens, not on when it was its turn to read
        world_key_of_play, write_key = jax.random.split(key)
        fold_each = jax.vmap(jax.random.fold_in, (None, 0))
        row_keys = fold_each(write_key, jnp.arange(self.count))

        def at_rows(rows, count):
            return rows.episodes.at_rows(count) if self.follows else count

        def step(rows, slots, count, number):
            count = at_rows(rows, count)
            playing = rows.live & (count < steps)
            taken, hidden, slots = self._process(variables, layers, rows, slots, playing, steps - count)
            logits: Any = policy.model.apply(variables, hidden, method=Llama.head)
            value = policy.value(params, hidden) if self.values else jnp.zeros(self.count, jnp.float32)
            world_key = jax.random.fold_in(world_key_of_play, number)
            keys = fold_each(write_key, rows.episodes.index) if self.follows else row_keys
            keys = jax.vmap(jax.random.fold_in)(keys, count + taken)
            full = count + taken == steps
            rows, event = self._advance(
                frozen["replies"], rows, playing, taken, full, logits, value, world_key, keys, greedy
            )
            return rows, slots, taken, event

        *_, event = jax.eval_shape(step, rows, slots, count, jnp.int32(0))

        def active(carry):
            rows, _, count, *_ = carry
            return jnp.any(rows.live & (at_rows(rows, count) < steps))

        def by_episode(rows, x):
            return rows.episodes.by_episode(x) if self.follows else (x, True)

        def body(carry):
            rows, slots, count, number, read, words = carry
            number = number + active(carry)
            # what stands behind the tokens that a row reads here is written over, or not used
            read = write_slots(read, [Tokens(by_episode(rows, self._next(rows))[0], count)], -1)
            after, slots, taken, event = step(rows, slots, count, number)
            new, _ = by_episode(rows, pack(event))
            taken, played = by_episode(rows, taken)
            taken = jnp.where(played, taken, 0)
            # a row that waits writes behind its last slot
            slot = jnp.where(taken > 0, count + taken - 1, steps)
            words = write_slots(words, [Tokens(new[:, None], slot)], -2)
            return after, slots, count + taken, number, read, words

        read = self.constrain(jnp.zeros((self.episodes, steps + self.chunk), jnp.int32))
        words = self.constrain(jnp.zeros((self.episodes, steps + 1, jax.eval_shape(pack, event).shape[1]), jnp.int32))
        after, slots, count, number, read, words = tracing.while_loop(
            # of several runs in one program none ends before the last: a step changes nothing where no row is active
            lambda carry: tracing.largest_of_runs(active(carry).astype(jnp.int32)) > 0,
            body,
            (rows, slots, count, jnp.int32(0), read, words),
        )
        event, read, real = unpack(words[:, :steps], event), read[:, :steps], jnp.arange(steps) < count[:, None]
        role = jnp.where(real, jnp.where(read < 0, REREAD, WORLD), NOTHING)
        role = jnp.where(event.written, REPLY, role).astype(jnp.int8)
        record = event.record.replace(
            token=jnp.where(event.written, event.record.token, jnp.where(real, unmarked(read), 0)),
            role=role,
            begins=jnp.concatenate([first[:, None], event.ends[:, :-1]], axis=1) & real,
        )
        computed = number * (self.count + self.count // self.group * self.chunk)
        report = Steps(event.info, event.done, event.cut, event.anchor, computed)
        return after, slots, record.after(rows.record, rows.length), report

    def _next(self, rows: Rows) -> Int[Array, "N chunk"]:
        """The next tokens that each row would read, some of them marked; behind the last one, any."""
        index = rows.read[:, None] + jnp.arange(self.chunk)
        return jnp.take_along_axis(rows.queue, jnp.minimum(index, rows.queue.shape[1] - 1), axis=1)

    def _process(
        self, variables: Any, layers: Any, rows: Rows, slots: Slots, active: Bool[Array, " N"], room: Int[Array, " N"]
    ) -> tuple[Int[Array, " N"], Float[Array, "N D"], Slots]:
        """The tokens of a step: those of observations that some rows of each group read, at most `room` of a row, and
        one of each reply.

        **Returns:** how many tokens each row processed; the hidden state of its last one; and the slots."""
        model, group, chunk = self.policy.model, self.group, self.chunk

        def by_group(x: jax.Array) -> jax.Array:
            return x.reshape(-1, group, *x.shape[1:])

        waits = by_group(active & ~rows.writes)
        # the rows that read, by their numbers in the group: those that have waited longest
        waited, chosen = jnp.where(waits, by_group(rows.waited), -1), []
        for _ in range(min(READERS, group)):
            chosen.append(jnp.argmax(waited, axis=1).astype(jnp.int32))
            waited = jnp.where(jnp.arange(group) == chosen[-1][:, None], -2, waited)
        lane = jnp.stack(chosen, axis=1)

        def of_lane(x: jax.Array) -> jax.Array:
            x = by_group(x)
            return jnp.take_along_axis(x, lane.reshape(*lane.shape, *(1,) * (x.ndim - 2)), axis=1)

        # the next one reads in what room the first one leaves
        requested = jnp.where(of_lane(active & ~rows.writes), of_lane(jnp.minimum(rows.queued - rows.read, room)), 0)
        ends = jnp.minimum(jnp.cumsum(requested, axis=1), chunk)
        read = Reading(lane, of_lane(rows.spoken + (active & rows.writes)), jnp.diff(ends, axis=1, prepend=0))
        reader, index = read.order(chunk)
        tokens = jnp.take_along_axis(of_lane(self._next(rows)).reshape(len(lane), -1), reader * chunk + index, axis=1)
        tokens = unmarked(tokens)
        token = by_group(jnp.where(rows.writes, rows.token, self.policy.text.pad_id))
        # a row that writes has its token at the next position; tokens of lanes that have nothing to read are behind
        # that, and unseen
        output: Any = model.apply(
            variables,
            jnp.concatenate([token, tokens], axis=1),
            slots,
            by_group(rows.spoken),
            read,
            layers,
            method=Llama.extend,
        )
        hidden, slots = output
        of_row = (lane[..., None] == jnp.arange(group)) & (read.length > 0)[..., None]
        end, taken = (jnp.sum(jnp.where(of_row, x[..., None], 0), axis=1) for x in (ends, read.length))
        last = jnp.where(taken > 0, group + end - 1, jnp.arange(group))
        hidden = jnp.take_along_axis(hidden, last[..., None], axis=1)
        return jnp.where(active & rows.writes, 1, taken.reshape(-1)), hidden.reshape(self.count, -1), slots

    @property
    def longest(self) -> int:
        """Tokens of a text, at most."""
        return self.policy.longest_text or self.size

    def first_slots(self, params: Any, frozen: Any) -> Slots:
        """Room for keys and values of as long texts as there may be, on the devices of the weights."""
        zeros = jnp.zeros(self.count, jnp.int32)
        return self._slots(self.policy.variables(params, frozen), zeros[:, None], zeros)

    def _read_again(self, variables: Any, rows: Rows) -> Slots:
        """Keys and values of each row's current text, by the present parameters."""
        if not self.held:
            model = self.policy.model
            cache = Cache.create(model.config, self.count, self.longest, model.dtype)
            return Slots.create(cache, self.group, self.chunk)
        places = jnp.arange(self.longest)
        index = (rows.length - rows.spoken)[:, None] + places
        tokens = rows.record.take(jnp.where(places < rows.spoken[:, None], index, -1)).token
        return self._slots(variables, tokens, rows.spoken)

    def _slots(self, variables: Any, tokens: Int[Array, "N L"], lengths: Int[Array, " N"]) -> Slots:
        """Keys and values of texts, and room for as long ones as there may be."""
        options: Any = {"lengths": lengths, "cache": self.longest, "logits": False}
        output: Any = self.policy.model.apply(variables, tokens, **options)
        return Slots.create(output.cache, self.group, self.chunk)

    def _advance(
        self,
        replies: Any,
        rows: Rows,
        playing: Bool[Array, " N"],
        taken: Int[Array, " N"],
        full: Bool[Array, " N"],
        logits: Float[Array, "N V"],
        value: Float[Array, " N"],
        world_key: jax.Array,
        write_keys: Key[Array, " N"],
        greedy: Any,
    ) -> tuple[Rows, Event]:
        """Apply the tokens that rows processed.

        **Arguments:** `playing`, rows that did not have all tokens yet; `taken`, how many each row processed; `full`,
        rows that have all now; `logits` and `value`, after the last one."""
        policy, replied, reads = self.policy, playing & rows.writes, playing & ~rows.writes
        state = jnp.where(replied, replies.step(rows.state, rows.token), rows.state)
        left = jnp.where(replied, rows.left - 1, rows.left)
        acts = replied & (replies.closed[state] | (left == 0))
        named = replies.action[state].astype(jnp.int32)
        read = jnp.where(replied, rows.read, rows.read + taken)
        end = reads & (taken > 0) & (read == rows.queued)
        ends, decides = end & rows.final, end & ~rows.final
        past = self._with_reply(rows, replied)

        # of rows that do not act, the environment's step is not used
        action = jnp.where(named < 0, policy.default_action, named)
        world, message = self._step_worlds(rows, acts, action, past, world_key)
        terminated, over = acts & world.terminated, acts & (world.done | world.cut)
        restarts, live, episodes = terminated | ends, rows.live, rows.episodes
        if self.follows:
            restarts = restarts | (playing & full)
            begins, episodes = episodes.next(restarts)
            world, live = self._next_episodes(episodes, begins, world), live & (begins | ~restarts)
        elif self.once:
            live = live & ~restarts
        opened = tracing.cond(
            jnp.any(restarts), self._opening, lambda obs: jax.tree.map(jnp.zeros_like, message), world.obs
        )
        message = select(restarts, opened, select(acts, message, ((rows.queue, rows.queued), past)))
        (queue, queued), past = message
        fresh = restarts | acts
        text_ends = restarts if self.appends else fresh

        state = jnp.where(decides, replies.start, state)
        left = jnp.where(decides, policy.reply_tokens, left)
        writes = (decides | (replied & ~acts)) & ~restarts
        written, log_prob, free = policy.write(replies, logits, state, left, write_keys, greedy)

        used = {"turn": decides | ends, "token": decides | ends | (replied & ~acts), None: jnp.zeros_like(acts)}
        record = Record(
            token=rows.token,
            role=jnp.zeros(self.count, jnp.int8),
            begins=jnp.zeros_like(acts),
            log_prob=jnp.where(replied, rows.log_prob, 0.0),
            free=replied & rows.free,
            state=jnp.where(replied, rows.state, 0),
            left=jnp.where(replied, rows.left, 0),
            value=jnp.where(used[self.values], value, 0.0),
            decides=decides,
            bootstraps=ends,
            acts=acts,
            reward=jnp.where(acts, world.reward, 0.0),
            valid=acts & (named >= 0),
            terminated=terminated,
            learned=jnp.zeros_like(acts),
        )
        anchor = number_of(rows.obs) if self.anchors else ()
        event = Event(record, replied, text_ends, world.info, acts & world.done, acts & world.cut, anchor)
        rows = rows.replace(
            env_state=world.env_state,
            obs=world.obs,
            token=jnp.where(writes, written, rows.token),
            writes=jnp.where(taken > 0, writes, rows.writes),
            log_prob=jnp.where(writes, log_prob, rows.log_prob),
            free=jnp.where(writes, free, rows.free),
            queue=queue,
            queued=queued,
            read=jnp.where(fresh, 0, read),
            waited=jnp.where(fresh | writes, 0, rows.waited + reads),
            state=state,
            left=left,
            spoken=jnp.where(text_ends, 0, rows.spoken + taken),
            final=jnp.where(fresh, over & ~restarts, rows.final),
            live=live,
            past=past,
            episodes=episodes,
        )
        rows = rows.replace(**{name: self.constrain(getattr(rows, name)) for name in ("obs", "token", "queue")})
        return rows, event

    def _next_episodes(self, episodes: Episodes, begins: Bool[Array, " N"], world: World) -> World:
        """The environments with new episodes in the rows that begin one."""

        def begin(_: Any) -> Any:
            obs, env = episodes.beginning()
            return select(begins, obs, world.obs), select(begins, env, world.env_state.env)

        obs, env = tracing.cond(jnp.any(begins), begin, lambda _: (world.obs, world.env_state.env), None)
        return world.replace(obs=obs, env_state=world.env_state.replace(env=env))

    def _step_worlds(
        self, rows: Rows, acts: Bool[Array, " N"], action: Int[Array, " N"], past: Any, key: jax.Array
    ) -> tuple[World, tuple[Pieces, Any]]:
        """The environments after the actions of the rows that act, and what these read next; in any order if none
        acts."""
        text, step_key, cut_key = self.policy.text, *jax.random.split(key)

        def step(_: Any) -> Any:
            obs, env_state, reward, terminated, truncated, info = self.env.step_rows(
                step_key, rows.env_state, action, rows.env_params, acts
            )
            final = info["final_observation"]
            message = self._following(final, past, rows.token)
            (_, queued), _ = message
            done = terminated | truncated
            # another turn, and the observation that a time-out ends with, have to fit
            room = self.policy.reply_tokens + text.sizes[1]
            cut = acts & ~done & (rows.spoken + 1 + queued + room > self.size) if self.appends else jnp.zeros_like(acts)
            if not self.once:
                fresh, restarted = self.env.restart(cut_key, env_state, cut, rows.env_params)
                obs, env_state = select(cut, fresh, obs), select_rows(cut, restarted, env_state)
            world = World(
                obs=select(acts, obs, rows.obs),
                env_state=select_rows(acts, env_state, rows.env_state),
                reward=jnp.asarray(reward, jnp.float32),
                terminated=terminated,
                done=done,
                cut=cut,
                info=episode_info(info),
            )
            return world, message

        shapes = jax.eval_shape(lambda: step(None))

        def nothing(_: Any) -> Any:
            (world, message), no = shapes, jnp.zeros_like(acts)
            info, message = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (world.info, message))
            return World(rows.obs, rows.env_state, jnp.zeros(acts.shape), no, no, no, info), message

        return tracing.cond(jnp.any(acts), step, nothing, None)
