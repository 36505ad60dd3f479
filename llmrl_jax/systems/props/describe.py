"""A description of the environment for ProPS+, rendered from its specification and the policy's layout.

Counts, ranges, ids and indices are read from the objects that the search uses, which rules out the errors of the
published descriptions; `DESCRIPTIONS` adds their meaning.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from envs_jax.env import Environment, Wrapper
from envs_jax.spaces import Box, Discrete
from llmrl_jax.agents.population import LONGEST
from llmrl_jax.core.checks import nearest
from llmrl_jax.systems.props.policies import Policy
from llmrl_jax.systems.props.prompts import fill, load, number


def description_of(env: Environment) -> EnvDescription:
    """The meaning of an environment's arrays. **Raises:** `KeyError`, with the nearest name, for an environment without
    texts."""
    id = env.id.partition("?")[0]
    id = ALIASES.get(id, id)
    if id not in DESCRIPTIONS:
        hint = nearest(id, list(DESCRIPTIONS))
        raise KeyError(f"there is no description of {env.id!r}{hint} (add one to DESCRIPTIONS, or hide it)")
    return DESCRIPTIONS[id]


def describe(
    env: Environment,
    env_params: Any,
    policy: Policy,
    *,
    hints: int = 0,
    hide: bool = False,
    max_steps: int | None = None,
) -> str:
    """The section of a prompt about the environment: goal, state, actions, policy, reward, ends, hints.

    **Arguments:** `env` and `env_params`, as evaluated; `policy`, of the same environment; `hints`, 0 none, 1 a rule of
    behavior, 2 also its meaning for the parameters, or a map; `hide`, whether to omit all meanings, so that shapes,
    ranges and the policy remain; `max_steps`, the evaluator's step limit, if it is not the environment's own.
    **Raises:** `ValueError` for another level of hints, hints together with `hide`, or texts or a policy whose size is
    not the environment's; `KeyError` for an environment without texts in `DESCRIPTIONS`.
    """
    if hints not in (0, 1, 2):
        raise ValueError(f"hints is {hints}; it is 0 (none), 1 (a rule) or 2 (a rule, and what it means here)")
    if hide and hints:
        raise ValueError(f"hints is {hints} and hide is true; a hint says what things mean, so let one of them go")
    texts = EnvDescription("") if hide else description_of(env)
    inner = env.unwrapped if isinstance(env, Wrapper) else env
    observations, actions = env.observation_space(env_params), env.action_space(env_params)
    discrete = isinstance(actions, Discrete)
    entries = _entries(observations, texts.observations, hide, "observation entries", env.id)
    components = [] if discrete else _entries(actions, texts.actions, hide, "action components", env.id)
    choices = list(env.action_names) if discrete else []
    sizes = (observations.n if isinstance(observations, Discrete) else len(entries), len(choices or components))
    if (policy.obs_size, policy.act_size, policy.discrete) != (*sizes, discrete):
        raise ValueError(
            f"the policy is for {policy.obs_size} observations and {policy.act_size} actions, but {env.id} has "
            f"{sizes[0]} and {sizes[1]}; make it of this world (make_policy)"
        )
    names = _Names(entries, choices, components, policy)
    table = getattr(inner, "table", None)
    words: dict[str, Any] = {"env": inner, "p": env_params, "act": names.act, "entry": names.entry}
    words |= {"weight": names.weight, "states": sizes[0], "actions": sizes[1]}
    if table is not None:
        possible = table.prob > 0
        words["rewards"] = sorted({float(r) for r in table.reward[possible]})
        chance = bool((possible.sum(-1) > 1).any())
        words["slip"] = " A move may go to one side of where it was meant to." if chance else ""

    def say(text: str) -> str:
        return fill(load(text), words)

    steps = getattr(env_params, "max_steps", None) if max_steps is None else max_steps
    limited = steps is not None and int(steps) <= LONGEST
    limit = f"It ends after {steps} steps at the latest." if limited else "There is no time limit."
    linear = policy.kind in ("linear", "linear_nobias", "sigmoid")
    levels = texts.hints[: hints if linear or "weight(" not in texts.hints[1] else min(hints, 1)]
    slots = {
        "hide": hide,
        "goal": say(texts.goal),
        "states": observations.n if isinstance(observations, Discrete) else None,
        "numbering": say(texts.states),
        "entries": entries,
        "choices": choices,
        "components": components,
        "formula": _formula(policy),
        "layout": _layout(policy, names.of_entries(hide), names.of_actions(hide)),
        "reward": say(texts.reward),
        "ends": say(texts.ends),
        "limit": limit,
        "hints": [say(hint) for hint in levels if hint],
    }
    return fill(load(name="environment.j2"), slots)


def _entries(space: Any, names: Sequence[str], hide: bool, label: str, id: str) -> list[dict[str, str]]:
    """The entries of a vector, with ranges; none for a discrete space."""
    if isinstance(space, Discrete):
        return []
    if not isinstance(space, Box):
        raise ValueError(f"{id} has {label} in {space}; only vectors and numbered ones can be described")
    size = math.prod(space.shape)
    if hide:
        names = [""] * size
    if len(names) != size:
        raise ValueError(f"{id} has {size} {label}, and its texts name {len(names)}: {list(names)}")
    low, high = (np.broadcast_to(np.asarray(b, np.float64), space.shape).ravel() for b in (space.low, space.high))
    return [{"name": name, "range": _range(a, b)} for name, a, b in zip(names, low, high)]


def _range(low: float, high: float) -> str:
    if math.isinf(low) and math.isinf(high):
        return "unbounded"
    if math.isinf(low) or math.isinf(high):
        return f"at least {number(low)}" if math.isinf(high) else f"at most {number(high)}"
    return f"in [{number(low)}, {number(high)}]"


class _Names:
    """Looks up ids by names, so that ids in texts agree with the lists above them."""

    def __init__(self, entries, choices, components, policy: Policy):
        self._entries = [entry["name"] for entry in entries]
        self._actions = choices or [component["name"] for component in components]
        self._policy = policy

    def act(self, words: str) -> str:
        """`2 (accelerate right)`."""
        index = _find(words, self._actions, "action")
        return f"{index} ({self._actions[index]})"

    def entry(self, words: str) -> str:
        """`state[1]`."""
        return f"state[{_find(words, self._entries, 'observation entry')}]"

    def weight(self, entry: str, action: str) -> str:
        """`params[5]`, the weight of that entry for that action."""
        s, a = _find(entry, self._entries, "observation entry"), _find(action, self._actions, "action")
        return f"params[{s * self._policy.act_size + a}]"

    def of_entries(self, hide: bool) -> list[str]:
        """Each entry with its name in the layout."""
        return [
            f"state[{i}]" + (f" ({name.partition(' (')[0]})" if not hide else "")
            for i, name in enumerate(self._entries)
        ]

    def of_actions(self, hide: bool) -> str:
        """The meaning of one number per action, in order."""
        if self._policy.discrete:
            return f"actions 0 to {len(self._actions) - 1}, in order"
        if len(self._actions) == 1:
            return "action[0]"
        return f"action[0] to action[{len(self._actions) - 1}], in order"


def _find(words: str, names: Sequence[str], label: str) -> int:
    """The index of the one name that equals the words or begins with them."""
    matches = [i for i, name in enumerate(names) if name == words] or [
        i for i, name in enumerate(names) if name.startswith(words)
    ]
    if len(matches) != 1:
        raise ValueError(f"a text speaks of the {label} {words!r}, which fits {len(matches)} of {list(names)}")
    return matches[0]


def _formula(policy: Policy) -> str:
    """The policy's formula, in one sentence."""
    if policy.kind == "table":
        return "a table. The action in state s is params[s]."
    if policy.kind == "q_table":
        return (
            f"a table of values. In state s the action a with the largest params[{policy.act_size} * s + a] is taken."
        )
    bias = "" if policy.kind == "linear_nobias" else " + b"
    product = f"state @ W{bias}"
    size = f"W is {policy.obs_size} x {policy.act_size}"
    note = f" {size}; W and b are the parameters below."
    if policy.kind == "projection":
        note = (
            f" {size}; W and b, {policy.full_size} numbers, are a fixed linear function, unknown to you, of the "
            f"{policy.rank} parameters."
        )
    elif policy.kind == "linear_nobias":
        note = f" {size}; it is the parameters below."
    if policy.kind == "sigmoid":
        return f"squashed. The action is sigmoid({product}), component by component.{note}"
    if policy.discrete:
        return f"linear. The action with the largest score in {product} is taken.{note}"
    return f"linear. The action is {product}.{note}"


def _layout(policy: Policy, entries: list[str], actions: str) -> list[str]:
    """The layout of the parameters."""
    if policy.kind not in ("linear", "linear_nobias", "sigmoid"):
        return []
    width = policy.act_size
    lines = [
        f"{_span(s * width, width)}: the weight{'s' * (width > 1)} of {name} for {actions}"
        for s, name in enumerate(entries)
    ]
    if policy.kind != "linear_nobias":
        lines.append(f"{_span(len(entries) * width, width)}: the bias{'es' * (width > 1)} of {actions}")
    return lines


def _span(start: int, count: int) -> str:
    return f"params[{start}]" + (f" to params[{start + count - 1}]" if count > 1 else "")


# --- the texts of the environments ------------------------------------------------------------------------------------

# The meaning of an environment's arrays: the part of a description that its specification does not contain. All texts
# are Jinja templates. Numbers defined by the environment are not repeated here: `p` is its `params`, `act(words)` an
# action with its id, `entry(words)` an observation entry, `weight(entry, action)` a policy parameter; each fails if the
# environment has no such element (`describe`).


@dataclass(frozen=True)
class EnvDescription:
    """The texts of one environment."""

    goal: str
    """The environment and its goal."""
    observations: tuple[str, ...] = ()
    """The entries of a vector, in order; empty for discrete states."""
    states: str = ""
    """The numbering of discrete states."""
    actions: tuple[str, ...] = ()
    """The components of a continuous action, in order; discrete actions have names of their own."""
    reward: str = ""
    ends: str = "The episode never ends early."
    """Ends of an episode before the time limit."""
    hints: tuple[str, str] = ("", "")
    """A rule of behavior (level 1); its meaning for the parameters, or the map (level 2). Empty: none."""


def _runner(reward: str) -> str:
    return f"Per step, {reward} minus a small cost of the squares of the torques."


def _figure(
    goal: str, joints: Sequence[str], reward: str, rule: str, *, height: str = "height of the torso (m)", **texts: str
) -> EnvDescription:
    """A figure of MuJoCo that moves in a plane, with these `joints`; `rule`, the hint of level 1."""
    return EnvDescription(
        goal,
        observations=(
            height,
            "angle of the torso (rad)",
            *(f"angle of the {joint} joint (rad)" for joint in joints),
            "velocity forward (m/s)",
            "velocity upward (m/s)",
            "angular velocity of the torso (rad/s)",
            *(f"angular velocity of the {joint} joint (rad/s)" for joint in joints),
        ),
        actions=tuple(f"torque on the {joint} joint" for joint in joints),
        reward=_runner(reward),
        hints=(rule, ""),
        **texts,
    )


DESCRIPTIONS: dict[str, EnvDescription] = {
    "CartPole-v1": EnvDescription(
        goal="A pole stands on a cart that runs on a track. Keep it upright by pushing the cart to either side.",
        observations=(
            "position of the cart (m)",
            "velocity of the cart (m/s)",
            "angle of the pole from upright (rad, positive to the right)",
            "angular velocity of the pole (rad/s)",
        ),
        reward="{% if env.sutton_barto_reward %}-1 for the step in which the pole falls or the cart leaves the track, "
        "0 otherwise.{% else %}1 per step.{% endif %}",
        ends="The episode ends early when the pole is more than {{ p.theta_limit|num }} rad from upright, or the cart "
        "more than {{ p.x_limit|num }} m from the middle.",
        hints=(
            "Push to the side to which the pole leans and falls: {{ act('push right') }} where it falls to the right, "
            "{{ act('push left') }} where it falls to the left.",
            "So let {{ weight('angle of the pole', 'push right') }} and {{ weight('angular velocity', 'push right') "
            "}} be well above {{ weight('angle of the pole', 'push left') }} and {{ weight('angular velocity', 'push "
            "left') }}.",
        ),
    ),
    "MountainCar-v0": EnvDescription(
        goal="A car stands in a valley and is too weak to climb the right hill at once. Reach the goal at position "
        "{{ p.goal_position|num }} on that hill in as few steps as possible, by swinging back and forth.",
        observations=("position", "velocity (positive to the right)"),
        reward="-1 per step.",
        ends="The episode ends early when the car reaches the goal.",
        hints=(
            "Always accelerate in the direction in which the car moves: {{ act('accelerate right') }} where its "
            "velocity is positive, {{ act('accelerate left') }} where it is negative. That gains energy on every "
            "swing.",
            "So let {{ weight('velocity', 'accelerate right') }} be far above {{ weight('velocity', 'accelerate "
            "left') }}; the velocity is a small number.",
        ),
    ),
    "MountainCarContinuous-v0": EnvDescription(
        goal="A car stands in a valley and is too weak to climb the right hill at once. Reach the goal at position "
        "{{ p.goal_position|num }} on that hill, by swinging back and forth, with as little throttle as possible.",
        observations=("position", "velocity (positive to the right)"),
        actions=("throttle (positive to the right)",),
        reward="100 for reaching the goal; per step, minus 0.1 times the square of the throttle.",
        ends="The episode ends early when the car reaches the goal.",
        hints=(
            "Always accelerate in the direction in which the car moves. A throttle of 0 costs nothing and gains "
            "nothing.",
            "So let {{ weight('velocity', 'throttle') }} be large and positive, and the other parameters near 0; the "
            "velocity is a small number.",
        ),
    ),
    "Pendulum-v1": EnvDescription(
        goal="A pendulum hangs from a fixed point. Swing it up and keep it upright, with a torque that is too small "
        "to lift it at once.",
        observations=("cosine of the angle from upright", "sine of the angle from upright", "angular velocity (rad/s)"),
        actions=("torque (N m)",),
        reward="Per step, minus (angle^2 + 0.1 * angular velocity^2 + 0.001 * torque^2); the angle is measured from "
        "upright, in radians between -pi and pi.",
        hints=(
            "Where it hangs, push with the motion to gain energy; near the top, push against the lean and the motion.",
            "Near the top a negative {{ weight('sine of the angle', 'torque') }} works against the lean, and a "
            "negative {{ weight('angular velocity', 'torque') }} against the motion.",
        ),
    ),
    "Acrobot-v1": EnvDescription(
        goal="Two links hang from a fixed point. Swing the free end above the height of one link over that point, "
        "with a torque on the joint between the links.",
        observations=(
            "cosine of the first link's angle (0: hanging down)",
            "sine of the first link's angle",
            "cosine of the second link's angle (relative to the first)",
            "sine of the second link's angle",
            "angular velocity of the first link (rad/s)",
            "angular velocity of the second link (rad/s)",
        ),
        reward="-1 per step, 0 for the last.",
        ends="The episode ends early when the free end is high enough.",
        hints=(
            "Gain energy by swinging: choose the torque's sign by the sign of the links' velocities, as one does on a "
            "swing.",
            "So let {{ weight('angular velocity of the first', 'torque 1') }} and "
            "{{ weight('angular velocity of the first', 'torque -1') }} be of opposite signs.",
        ),
    ),
    "NavigationTrack-v0": EnvDescription(
        goal="A robot with five range finders drives along a closed track between walls. Go as far as possible "
        "without a collision.",
        observations=(
            "range to the left (m, -90 degrees)",
            "range to the front left (m, -45 degrees)",
            "range to the front (m)",
            "range to the front right (m, 45 degrees)",
            "range to the right (m, 90 degrees)",
        ),
        reward="{{ p.forward_reward|num }} for a step forward, {{ p.turn_reward|num }} for a turn, and "
        "{{ p.collision_reward|num }} for a collision.",
        ends="The episode ends early with a collision: a range below {{ p.collision|num }} m.",
        hints=(
            "Drive {{ act('forward') }} while the front is free. Turn away from the nearer wall: {{ act('turn right') "
            "}} where the ranges to the left are smaller, {{ act('turn left') }} where those to the right are.",
            "So let {{ weight('range to the front (', 'forward') }} be positive, and let the ranges to the right "
            "speak for {{ act('turn right') }}, those to the left for {{ act('turn left') }}.",
        ),
    ),
    "Pong-v0": EnvDescription(
        goal="A game of Pong. Move the paddle on the left so that it meets the ball; the paddle on the right follows "
        "the ball.",
        observations=(
            "row of the paddle's middle (pixels, counted downwards)",
            "column of the ball (pixels)",
            "row of the ball (pixels, counted downwards)",
            "velocity of the ball along the columns (negative: it comes)",
            "velocity of the ball along the rows",
        ),
        reward="1 for each return.",
        ends="The episode ends early when the ball is out on either side.",
        hints=(
            "Follow the ball: {{ act('down') }} where its row is greater than the paddle's, {{ act('up') }} where it "
            "is smaller.",
            "So let {{ weight('row of the ball', 'down') }} be positive and {{ weight('row of the paddle', 'down') }} "
            "as negative, and the reverse for {{ act('up') }}.",
        ),
    ),
    "InvertedPendulum-v5": EnvDescription(
        goal="A pole stands on a cart that slides on a rail. Keep it upright by pushing the cart.",
        observations=(
            "position of the cart (m)",
            "angle of the pole from upright (rad)",
            "velocity of the cart (m/s)",
            "angular velocity of the pole (rad/s)",
        ),
        actions=("force on the cart",),
        reward="1 for each step after which the pole still stands.",
        ends="The episode ends early when the pole is more than 0.2 rad from upright.",
        hints=(
            "Push to the side to which the pole leans and falls, and a little away from the middle of the rail to "
            "come back to it.",
            "So let {{ weight('angle of the pole', 'force') }} and {{ weight('angular velocity', 'force') }} be "
            "positive, and larger than the weights of the cart.",
        ),
    ),
    "InvertedDoublePendulum-v5": EnvDescription(
        goal="Two poles, one on top of the other, stand on a cart that slides on a rail. Keep them upright by pushing "
        "the cart.",
        observations=(
            "position of the cart (m)",
            "sine of the angle of the lower pole",
            "sine of the angle between the poles",
            "cosine of the angle of the lower pole",
            "cosine of the angle between the poles",
            "velocity of the cart (m/s)",
            "angular velocity of the lower pole (rad/s)",
            "angular velocity of the upper pole, relative to the lower (rad/s)",
            "constraint force on the cart",
        ),
        actions=("force on the cart",),
        reward="Per step, 10 where the poles still stand, minus a penalty for the tip's distance from where it is "
        "when both are upright, minus a small penalty for the angular velocities.",
        ends="The episode ends early when the tip is at a height of 1 or below.",
        hints=("Small corrections, early: push so that the cart stays below the tip.", ""),
    ),
    "Reacher-v5": EnvDescription(
        goal="An arm of two links lies in a plane. Move its fingertip to a target, which is elsewhere in each episode.",
        observations=(
            "cosine of the first joint's angle",
            "cosine of the second joint's angle",
            "sine of the first joint's angle",
            "sine of the second joint's angle",
            "x of the target",
            "y of the target",
            "angular velocity of the first joint (rad/s)",
            "angular velocity of the second joint (rad/s)",
            "x of the fingertip minus x of the target",
            "y of the fingertip minus y of the target",
        ),
        actions=("torque on the first joint", "torque on the second joint"),
        reward="Per step, minus the distance of the fingertip from the target, minus a cost of the squares of the "
        "torques.",
        hints=("Small torques that work against the velocities keep the arm calm.", ""),
    ),
    "Swimmer-v5": EnvDescription(
        goal="A swimmer of three links lies in a fluid. Swim forward, along x, as fast as possible, by bending the "
        "joints.",
        observations=(
            "angle of the front link (rad)",
            "angle of the first joint (rad)",
            "angle of the second joint (rad)",
            "velocity along x (m/s)",
            "velocity along y (m/s)",
            "angular velocity of the front link (rad/s)",
            "angular velocity of the first joint (rad/s)",
            "angular velocity of the second joint (rad/s)",
        ),
        actions=("torque on the first joint", "torque on the second joint"),
        reward=_runner("the velocity forward"),
        hints=("Waves along the body drive it: bend the second joint a quarter of a period after the first.", ""),
    ),
    "Hopper-v5": _figure(
        "A figure of one leg stands in a plane. Hop forward as fast as possible without falling.",
        ("thigh", "leg", "foot"),
        "1 for standing, plus the velocity forward,",
        "Stay upright first: lean against the torso's angle and angular velocity. Then hop.",
        ends="The episode ends early when the hopper falls: the torso below 0.7 m, or more than 0.2 rad from upright.",
    ),
    "Walker2d-v5": _figure(
        "A figure of two legs stands in a plane. Walk forward as fast as possible without falling.",
        [f"{side} {part}" for side in ("right", "left") for part in ("thigh", "leg", "foot")],
        "1 for standing, plus the velocity forward,",
        "Stay upright first: lean against the torso's angle and angular velocity. Then move the legs in turn.",
        ends="The episode ends early when the walker falls: the torso below 0.8 m or above 2 m, or more than 1 rad "
        "from upright.",
    ),
    "HalfCheetah-v5": _figure(
        "A figure with a back leg and a front leg stands in a plane. Run forward as fast as possible.",
        [f"{side} {part}" for side in ("back", "front") for part in ("thigh", "shin", "foot")],
        "the velocity forward",
        "The legs push in turn: let each joint's torque follow its own angle and velocity.",
        height="height of the torso's tip (m)",
    ),
    "FrozenLake-v1": EnvDescription(
        goal="A frozen lake is a board of {{ env.desc|length }} rows and {{ env.desc[0]|length }} columns. Walk from "
        "the start to the goal in the last cell without falling into a hole.{{ slip }}",
        states="Cell (row r, column c) is state {{ env.desc[0]|length }} * r + c; row 0 is at the top.",
        reward="{{ rewards|max|num }} for reaching the goal.",
        ends="The episode ends early at the goal and in a hole.",
        hints=(
            "Find out from the episodes where the holes are, and move away from them, also where the ice may carry "
            "you aside.",
            "The map, with S the start, F frozen, H a hole, G the goal:{% for row in env.desc %}"
            "{{ '\n' ~ row }}{% endfor %}",
        ),
    ),
    "CliffWalking-v1": EnvDescription(
        goal="A board of 4 rows and 12 columns, with a cliff along the bottom. Walk from the start, in the bottom row "
        "on the left, to the goal, in the bottom row on the right, without falling.{{ slip }}",
        states="Cell (row r, column c) is state 12 * r + c; row 0 is at the top.",
        reward="-1 per step, and {{ rewards|min|num }} for a step that ends in a fall, which leads back to the start.",
        ends="The episode ends early at the goal.",
        hints=(
            "Get away from the cliff first with {{ act('up') }}, then walk to the right, then come down at the goal.",
            "The cliff is the states 37 to 46; the start is 36 and the goal 47.",
        ),
    ),
    "Taxi-v3": EnvDescription(
        goal="A taxi drives in a town of 5 rows and 5 columns with four stops: red, green, yellow and blue. Fetch a "
        "passenger at one of them, and drop him at another.{{ slip }}",
        states="The state is ((5 * row + column) * 5 + passenger) * 4 + destination; row 0 is at the top. The "
        "passenger's place is 0 red, 1 green, 2 yellow, 3 blue, or 4 in the taxi; the destination one of the four "
        "stops.",
        reward="-1 per step, 20 instead for dropping the passenger at his destination, -10 instead for picking up or "
        "dropping off where that is impossible.",
        ends="The episode ends early when the passenger is at his destination.",
        hints=(
            "Drive to the passenger, {{ act('pick up') }}, drive to the destination, {{ act('drop off') }}.",
            "Red is at (0, 0), green at (0, 4), yellow at (4, 0), blue at (4, 3). There are walls between some "
            "neighbors in a row; a move against a wall changes nothing.",
        ),
    ),
    "Blackjack-v1": EnvDescription(
        goal="A game of cards against a dealer. Come closer to 21 than he does, but not beyond. An ace counts 1 or "
        "11, pictures count 10. The dealer draws up to 17.",
        observations=(
            "sum of your cards",
            "the dealer's open card (1: an ace)",
            "whether you have an ace that counts 11 (1) or not (0)",
        ),
        reward="{{ rewards|max|num }} for winning at the most, 0 for a draw, -1 for losing.",
        ends="The episode ends when you stick, or are beyond 21.",
        hints=(
            "{{ act('hit') }} on a small sum, {{ act('stick') }} on a large one.",
            "So let {{ weight('sum of your cards', 'stick') }} be above {{ weight('sum of your cards', 'hit') }}, and "
            "the biases make up for it on small sums.",
        ),
    ),
    "Nim-v0": EnvDescription(
        goal="{{ env.initial_sticks }} sticks lie on a table. You and an opponent, who plays well, take sticks in "
        "turn, and you begin. Who takes the last stick loses.",
        states="State s means that s sticks are left and it is your turn.",
        reward="1 where the opponent takes the last stick; -1 where you do, or where you take a number that is not "
        "allowed.",
        ends="The episode ends when the last stick is taken, or a number that is not allowed.",
        hints=(
            "Think of the number of sticks that you leave to the opponent.",
            "Leave one more than a multiple of four wherever you can.",
        ),
    ),
    "maze-sample-3x3-v0": EnvDescription(
        goal="A maze of {{ env.shape[0] }} rows and {{ env.shape[1] }} columns, with walls between some cells. "
        "Walk from the first cell, at the top left, to the last, at the bottom right, in as few steps as possible. "
        "A move against a wall changes nothing.",
        states="Cell (row y, column x) is state {{ env.shape[1] }} * y + x; row 0 is at the top.",
        reward="{{ rewards|max|num }} for reaching the goal, {{ rewards|min|num }} for every other step.",
        ends="The episode ends early at the goal.",
        hints=(
            "Where an action left the state as it was there is a wall; choose another one there.",
            "Open passages:{% for s in range(states) %}{% for a in range(actions) %}{% if env.walk(s, a) != s %}"
            "{{ '\n' }}from state {{ s }} by {{ act(env.action_names[a]) }} to state {{ env.walk(s, a) }}"
            "{% endif %}{% endfor %}{% endfor %}",
        ),
    ),
}

ALIASES = {"CliffWalkingSlippery-v1": "CliffWalking-v1", "FrozenLake8x8-v1": "FrozenLake-v1", "Taxi-v4": "Taxi-v3"}
"""Ids that share the texts of another; differences are read from the environment."""
