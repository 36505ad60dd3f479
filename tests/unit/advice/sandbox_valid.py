"""Valid programs for the sandbox's tests, for the observation of BabyAI (`image`, `direction`) unless they say so."""

from __future__ import annotations

from tests.unit.advice.sandbox_programs import body, value


VALID = {
    "front": body(
        '''
        """A ball in front."""
        front = obs["image"][3, 5]
        ball = (front[0] == 6) & (front[2] == 0)
        return jnp.where(ball, 1.0, 0.0), {"ball": ball}
        '''
    ),
    "constants and a helper": '''
"""Constants, a helper with annotations and a default."""
BALL = 6
RED = 0
WEIGHTS = jnp.array([1.0, 0.5])

def distance(mask: jnp.ndarray, row: int = 3) -> jnp.ndarray:
    """Steps to the nearest cell of a mask."""
    y, x = jnp.arange(7), jnp.arange(7)
    steps = jnp.abs(y[:, None] - row) + jnp.abs(x[None, :] - 6)
    return jnp.min(jnp.where(mask, steps, 14))

def compute_potential(obs, past_obs, past_actions):
    image = obs["image"]
    near = 1.0 - distance((image[..., 0] == BALL) & (image[..., 1] == RED)) / 14.0
    turns = jnp.mean((past_actions <= 1).astype(jnp.float32))
    components = {"near": near, "turns": turns}
    return jnp.dot(WEIGHTS, jnp.stack([near, -turns])), components
''',
    "loop over the window": body(
        """
        moved = 0.0
        for i in range(4):
            moved += jnp.any(past_obs["image"][i] != past_obs["image"][i + 1]).astype(jnp.float32)
        return moved / 4, {"moved": moved}
        """
    ),
    "comprehension": body(
        """
        seen = [jnp.sum(obs["image"][:, :, 0] == kind) for kind in (5, 6, 7)]
        total = sum(seen)
        return total / 49.0, {"keys": seen[0], "balls": seen[1], "boxes": seen[2]}
        """
    ),
    "generator expression": value("sum(jnp.sum(past_actions == a) * w for a, w in ((0, 0.1), (2, 0.5)))"),
    "enumerate and zip": body(
        """
        weights = [0.5, 0.3, 0.2]
        score = 0.0
        for i, (weight, kind) in enumerate(zip(weights, (5, 6, 7))):
            score = score + weight * jnp.any(obs["image"][..., 0] == kind) * (i + 1)
        return score, {}
        """
    ),
    "update in place": body(
        """
        counts = jnp.zeros(7)
        for i in range(5):
            counts = counts.at[past_actions[i]].add(1.0)
        entropy = -jnp.sum(counts / 5 * jnp.log(counts / 5 + 1e-6))
        return entropy, {"entropy": entropy}
        """
    ),
    "one hot": value("jnp.mean(jax.nn.one_hot(past_actions, 7)[:, 2])"),
    "static if": body(
        """
        size = obs["image"].shape[0]
        if size == 7 and len(past_actions.shape) == 1:
            middle = size // 2
        else:
            middle = 0
        return obs["image"][middle, 5, 0] / 10, {}
        """
    ),
    "conditional expression": value("past_actions[-1] * (1.0 if past_actions.shape[0] > 3 else 2.0)"),
    "select and clamp": value("lax.clamp(0.0, lax.select(past_actions[0] > 2, 1.0, 0.5) + obs['direction'], 2.0)"),
    "jax.numpy spelled out": value("jax.numpy.tanh(jax.numpy.sum(obs['image']) / 100.0) + jax.lax.rsqrt(4.0)"),
    "methods": value("obs['image'].astype(float).mean(axis=(0, 1))[0].clip(0, 3) - past_actions.max()"),
    "boolean algebra": value("jnp.any((obs['image'][..., 0] == 6) & ~(obs['image'][..., 1] == 2)) * 1.0"),
    "sorting": value("jnp.sort(obs['image'].ravel())[-1] + jnp.argsort(past_actions)[0] * 0.1"),
    "cumulative": value("jnp.cumsum(past_actions == 2)[-1] / 5"),
    "take": value("jnp.take(jnp.array([0.0, 0.1, 0.5, 0.2, 0.0, 0.0, 0.0]), past_actions).sum()"),
    "dict of scalars by item": body(
        """
        parts = {}
        parts["near"] = jnp.max(obs["image"]) / 10
        parts["faced"] = obs["direction"] == 0
        return parts["near"] + parts["faced"], parts
        """
    ),
    "dict by call": value("obs['direction'] + 0.5, dict(a=1.0, b=obs['direction'])")[: -len(", {}")],
    "a plain number as component": body("return obs['direction'] * 1.0, {'constant': 3, 'flag': True}"),
    "slices": value("jnp.mean(obs['image'][::2, 1:6, :1]) - jnp.mean(past_obs['image'][-1, ..., 0])"),
    "distance by norm": body(
        """
        rows, columns = jnp.arange(7), jnp.arange(7)
        grid = jnp.stack([rows[:, None] * jnp.ones((1, 7)), jnp.ones((7, 1)) * columns[None, :]], axis=-1)
        steps = jnp.linalg.norm(grid - jnp.array([3.0, 6.0]), axis=-1)
        return -jnp.min(jnp.where(obs["image"][..., 0] == 6, steps, 10.0)), {}
        """
    ),
    "softmax": value("jnp.max(jax.nn.softmax(obs['image'][..., 0].ravel().astype(jnp.float32)))"),
    "integer power and remainder": value("(obs['direction'] % 3) ** 2 / 4 + 0.9 ** 3"),
    "bit operations": value("((obs['direction'] & 1) | (past_actions[0] ^ 1)) * 0.5"),
    "matrix product": value("jnp.sum(obs['image'][..., 0] @ jnp.eye(7)) / 100"),
    "chained assignment": body("a = b = obs['direction'] + 0.0\na, c = b, a\nreturn a + c, {}"),
    "literals in brackets": body(
        "table = [[0.0, 1.0], [2.0, 3.0]]\nreturn jnp.array(table)[obs['direction'] % 2, 1], {}"
    ),
    "average and spread": value("jnp.std(past_actions) + jnp.median(obs['image'][..., 0]) + jnp.var(past_actions)"),
    "guarded division": value("jnp.sum(past_actions) / jnp.maximum(jnp.sum(past_actions > 2), 1)"),
    "nan to num": value("jnp.nan_to_num(jnp.log(jnp.sum(obs['image'] == 6).astype(jnp.float32)), neginf=0.0)"),
    "flood of where": body(
        """
        kinds = obs["image"][..., 0]
        worth = jnp.where(kinds == 6, 1.0, jnp.where(kinds == 5, 0.7, jnp.where(kinds == 7, 0.5, 0.0)))
        return jnp.max(worth), {"mean": jnp.mean(worth)}
        """
    ),
    "min and max of numbers": value("max(1, 2, 3) * obs['direction'] + min([0.1, 0.2]) + abs(-1) + round(0.7)"),
    "unused arguments of helpers": "def f(a, b=0.5): return a * b\n" + value("f(obs['direction']) + f(1, b=2)"),
    "a comment in another script": "# \u4e2d\u6587\n" + value("obs['direction'] * 1.0"),
}
