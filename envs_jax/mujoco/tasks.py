"""The seven tasks, with the observations, rewards, terminations and starts of Gymnasium 1.3's v5 environments."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs_jax.mujoco.env import MujocoEnv, uniform
from envs_jax.physics.interface import Backend


@struct.dataclass
class PendulumParams:
    """Parameters of the inverted pendulum."""

    reset_noise_scale: Any = 0.01
    """Initial positions lie within this distance of the model's own, initial velocities within this distance of 0."""
    max_steps: Any = 1000
    """Steps until truncation."""


@struct.dataclass
class DoublePendulumParams:
    """Parameters of the inverted double pendulum."""

    healthy_reward: Any = 10.0
    """Reward for each step without a fall."""
    reset_noise_scale: Any = 0.1
    """Initial positions lie within this distance of the model's own; also the standard deviation of initial
    velocities."""
    max_steps: Any = 1000
    """Steps until truncation."""


@struct.dataclass
class ReacherParams:
    """Parameters of the reacher."""

    reward_dist_weight: Any = 1.0
    """Weight of the distance between fingertip and target."""
    reward_control_weight: Any = 1.0
    """Weight of the squared action."""
    max_steps: Any = 50
    """Steps until truncation."""


@struct.dataclass
class RunnerParams:
    """Parameters of the locomotion tasks."""

    forward_reward_weight: Any = 1.0
    """Weight of the velocity along x."""
    ctrl_cost_weight: Any = 1e-3
    """Weight of the squared action."""
    reset_noise_scale: Any = 5e-3
    """The scale of the noise that is added to the model's initial pose."""
    max_steps: Any = 1000
    """Steps until truncation."""


@struct.dataclass
class WalkerParams(RunnerParams):
    """Parameters of the locomotion tasks that can fall."""

    healthy_reward: Any = 1.0
    """Reward for each step without a fall."""
    healthy_z_range: Any = (0.8, 2.0)
    """Healthy range of the height of the torso, in metres."""
    healthy_angle_range: Any = (-1.0, 1.0)
    """Healthy range of the angle of the torso, in radians."""
    terminate_when_unhealthy: Any = True
    """Whether a fall ends the episode."""


@struct.dataclass
class HopperParams(WalkerParams):
    """Parameters of the hopper."""

    healthy_z_range: Any = (0.7, np.inf)
    healthy_angle_range: Any = (-0.2, 0.2)
    healthy_state_range: Any = (-100.0, 100.0)
    """Healthy range of all positions except x and z, and of all velocities."""


class InvertedPendulum(MujocoEnv):
    """Keep a pole upright on a cart, by a force on the cart.

    Observation `[4]`: position and angle, and their velocities. Reward: 1 for each step. Terminated when the angle
    exceeds 0.2.
    """

    xml_file, frame_skip, fewest = "inverted_pendulum.xml", 2, 2
    camera = {"distance": 2.04}

    @property
    def default_params(self):
        return PendulumParams()

    def start(self, key, params):
        qpos_key, qvel_key = jax.random.split(key)
        scale = params.reset_noise_scale
        return self.pose(qpos_key, scale), uniform(qvel_key, self.model.nv, scale)

    def observe(self, xp, now):
        return xp.concatenate([now.qpos, now.qvel], axis=-1)

    def judge(self, xp, before, after, action, params):
        finite = xp.isfinite(self.observe(xp, after)).all(axis=-1)
        terminated = ~finite | (xp.abs(after.qpos[..., 1]) > 0.2)
        reward = xp.where(terminated, 0.0, 1.0)
        return reward, terminated, {"reward_survive": reward}


class InvertedDoublePendulum(MujocoEnv):
    """Keep two poles upright, one on the other, by a force on the cart below.

    Observation `[9]`: the cart's position, sines and cosines of the two angles, all velocities clipped to 10, and the
    constraint force on the cart, clipped to 10. Reward: `healthy_reward`, minus penalties for the distance of the tip
    from its highest position and for the angular velocities. Terminated when the tip is no higher than 1.
    """

    xml_file, frame_skip, fewest = "inverted_double_pendulum.xml", 5, 3
    read = ("site_xpos", "qfrc_constraint")
    camera = {"distance": 4.1225, "lookat": (0.0, 0.0, 0.1225)}

    @property
    def default_params(self):
        return DoublePendulumParams()

    def start(self, key, params):
        qpos_key, qvel_key = jax.random.split(key)
        scale = params.reset_noise_scale
        return self.pose(qpos_key, scale), jax.random.normal(qvel_key, (self.model.nv,), jnp.float32) * scale

    def observe(self, xp, now):
        cart, angles = now.qpos[..., :1], now.qpos[..., 1:]
        rail = now.read["qfrc_constraint"][..., :1]
        parts = [cart, xp.sin(angles), xp.cos(angles), xp.clip(now.qvel, -10, 10), xp.clip(rail, -10, 10)]
        return xp.concatenate(parts, axis=-1)

    def judge(self, xp, before, after, action, params):
        x, z = (after.read["site_xpos"][..., 0, axis] for axis in (0, 2))
        terminated = z <= 1
        info = {
            "reward_survive": params.healthy_reward * ~terminated,
            "distance_penalty": -(0.01 * x**2 + (z - 2) ** 2),
            "velocity_penalty": -(1e-3 * after.qvel[..., 1] ** 2 + 5e-3 * after.qvel[..., 2] ** 2),
        }
        return sum(info.values()), terminated, info


class Reacher(MujocoEnv):
    """Bring the tip of a two-jointed arm to a target, in the plane.

    Observation `[10]`: cosines and sines of the two angles, the target's position, the angular velocities, and the
    vector from the target to the fingertip. Reward: minus their distance and the squared action, weighted. Never
    terminated.
    """

    xml_file, frame_skip, fewest, read = "reacher.xml", 2, 4, ("xpos",)

    @property
    def default_params(self):
        return ReacherParams()

    def start(self, key, params):
        angles, speeds, radius, direction = jax.random.split(key, 4)
        # uniform in a disc of radius 0.2; Gymnasium draws from a square until the point is in the disc
        radius = 0.2 * jnp.sqrt(jax.random.uniform(radius, (), jnp.float32))
        direction = jax.random.uniform(direction, (), jnp.float32, 0.0, 2 * np.pi)
        goal = radius * jnp.stack([jnp.cos(direction), jnp.sin(direction)])
        # the last two positions and velocities are the target's; all others are the arm's
        arm = jnp.asarray(self.model.qpos0[:-2], jnp.float32) + uniform(angles, self.model.nq - 2, 0.1)
        speeds, target_speeds = uniform(speeds, self.model.nv - 2, 0.005), jnp.zeros(2, jnp.float32)
        return jnp.concatenate([arm, goal]), jnp.concatenate([speeds, target_speeds])

    def _fingertip_offset(self, now):
        fingertip, target = (self.model.body(name).id for name in ("fingertip", "target"))
        positions = now.read["xpos"]
        return positions[..., fingertip, :] - positions[..., target, :]

    def observe(self, xp, now):
        angles = now.qpos[..., :2]
        parts = [
            xp.cos(angles),
            xp.sin(angles),
            now.qpos[..., 2:],
            now.qvel[..., :2],
            self._fingertip_offset(now)[..., :2],
        ]
        return xp.concatenate(parts, axis=-1)

    def judge(self, xp, before, after, action, params):
        distance = xp.linalg.norm(self._fingertip_offset(after), axis=-1)
        info = {
            "reward_dist": -distance * params.reward_dist_weight,
            "reward_ctrl": -xp.square(action).sum(axis=-1) * params.reward_control_weight,
        }
        return sum(info.values()), xp.zeros_like(distance, dtype=bool), info


class Runner(MujocoEnv):
    """The base class of the locomotion tasks: the reward is the velocity along x minus the squared action, weighted."""

    hidden = 1
    """The number of leading positions that are not observed, as the dynamics are invariant along them."""
    fastest = np.inf
    """The bound to which observed velocities are clipped."""

    def __init__(
        self,
        exclude_current_positions_from_observation: bool = True,
        physics: Backend = "auto",
        xml_file: str | None = None,
        frame_skip: int | None = None,
        threads: int | None = None,
    ):
        """**Arguments:** `exclude_current_positions_from_observation`, as Gymnasium's option of the same name; the
        others as of `MujocoEnv`."""
        super().__init__(physics, xml_file, frame_skip, threads)
        self.exclude_current_positions_from_observation = exclude_current_positions_from_observation

    def start(self, key, params):
        qpos_key, qvel_key = jax.random.split(key)
        scale = params.reset_noise_scale
        return self.pose(qpos_key, scale), uniform(qvel_key, self.model.nv, scale)

    def observe(self, xp, now):
        first = self.hidden if self.exclude_current_positions_from_observation else 0
        speeds = now.qvel if self.fastest == np.inf else xp.clip(now.qvel, -self.fastest, self.fastest)
        return xp.concatenate([now.qpos[..., first:], speeds], axis=-1)

    def judge(self, xp, before, after, action, params):
        speed = (after.qpos[..., 0] - before.qpos[..., 0]) / self.dt
        rewards = {
            "reward_forward": params.forward_reward_weight * speed,
            "reward_ctrl": -params.ctrl_cost_weight * xp.square(action).sum(axis=-1),
        }
        info = {"x_position": after.qpos[..., 0], "x_velocity": speed, **rewards}
        return sum(rewards.values()), xp.zeros_like(speed, dtype=bool), info


class Swimmer(Runner):
    """A chain of three links in a viscous plane. Observation `[8]`: angles and all velocities. Never terminated."""

    xml_file, frame_skip, fewest, hidden = "swimmer.xml", 4, 2, 2

    @property
    def default_params(self):
        return RunnerParams(ctrl_cost_weight=1e-4, reset_noise_scale=0.1)

    def judge(self, xp, before, after, action, params):
        reward, terminated, info = super().judge(xp, before, after, action, params)
        position = after.qpos[..., :2]
        info["y_position"] = position[..., 1]
        info["y_velocity"] = (position[..., 1] - before.qpos[..., 1]) / self.dt
        info["distance_from_origin"] = xp.linalg.norm(position, axis=-1)
        return reward, terminated, info


class HalfCheetah(Runner):
    """A two-legged runner in the plane. Observation `[17]`: height, angles and all velocities. Never terminated."""

    xml_file, frame_skip, camera = "half_cheetah.xml", 5, {"distance": 4.0}

    @property
    def default_params(self):
        return RunnerParams(ctrl_cost_weight=0.1, reset_noise_scale=0.1)

    def start(self, key, params):
        qpos_key, qvel_key = jax.random.split(key)
        scale = params.reset_noise_scale
        return self.pose(qpos_key, scale), jax.random.normal(qvel_key, (self.model.nv,), jnp.float32) * scale


class Walker2d(Runner):
    """Two legs in the plane. Observation `[17]`: height, angles, and all velocities clipped to 10.

    Besides the reward of `Runner`, `healthy_reward` while height and angle of the torso are in range; terminated when
    not.
    """

    xml_file, frame_skip, fewest, fastest = "walker2d_v5.xml", 4, 3, 10.0

    @property
    def default_params(self):
        return WalkerParams()

    def healthy(self, xp: Any, now: Any, params: Any) -> Any:
        """Return whether the walker has not fallen: bool `[...]`."""
        height, angle = now.qpos[..., 1], now.qpos[..., 2]
        (low, high), (left, right) = params.healthy_z_range, params.healthy_angle_range
        return (low < height) & (height < high) & (left < angle) & (angle < right)

    def judge(self, xp, before, after, action, params):
        reward, _, info = super().judge(xp, before, after, action, params)
        healthy = self.healthy(xp, after, params)
        info["z_distance_from_origin"] = after.qpos[..., 1] - self.model.qpos0[1]
        info["reward_survive"] = healthy * params.healthy_reward
        terminated = ~healthy & (params.terminate_when_unhealthy != 0)
        return reward + info["reward_survive"], terminated, info


class Hopper(Walker2d):
    """One leg in the plane. Observation `[11]`: height, angles, and all velocities clipped to 10.

    As `Walker2d`, with narrower ranges, and with one for every other position and velocity.
    """

    xml_file = "hopper.xml"

    @property
    def default_params(self):
        return HopperParams()

    def healthy(self, xp, now, params):
        low, high = (xp.asarray(bound)[..., None] for bound in params.healthy_state_range)
        values = xp.concatenate([now.qpos[..., 2:], now.qvel], axis=-1)
        return super().healthy(xp, now, params) & ((low < values) & (values < high)).all(axis=-1)
