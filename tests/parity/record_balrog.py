"""Record episodes of the reference implementation of BALROG into tests/data/balrog.npz.

`python tests/parity/record_balrog.py FOLDER`, where FOLDER has a checkout of balrog-ai/BALROG for each version
(`2024-11` at 04f8a21, `2025-04` at ec49c9b, `2025-08` at af7d1f1) and its fork of Minigrid (`minigrid` at cf73dd1); in
an environment with this project's requirements, crafter 1.8.3, gym 0.23, omegaconf and scipy. Minutes on one core.

The reference's own evaluator plays, with its agents, prompts and worlds; only the client is a stand-in, which replies
by chance: valid and invalid actions, empty texts, thoughts. Crafter's state is changed in between, so that borders,
sleep, death and items occur. Kept are the state of every step as our code needs it (images of BabyAI, views of
Crafter), the reply, the reward, and a hash of the messages; of every episode its log, and a hash of its CSV file; of
every agent the summaries.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import namedtuple
from pathlib import Path
from unittest import mock

import numpy as np


ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "balrog.npz"
BABYAI = ("goto", "pickup", "open", "putnext", "pick_up_seq_go_to")
AGENTS = ("naive", "cot", "robust_naive", "robust_cot")
CRAFTER_STEPS = 70

# version -> (agent, tasks with repetitions, options of the reference)
PLANS = {
    "2025-08": [
        *((agent, (*BABYAI, "crafter", "crafter"), {}) for agent in AGENTS),
        ("naive", ("goto", "crafter"), {"feedback": False, "max_text_history": 3}),
        ("cot", ("pickup", "crafter"), {"max_cot_history": 3, "max_text_history": 6}),
    ],
    "2025-04": [(agent, ("goto", "open", "crafter"), {}) for agent in AGENTS],
    "2024-11": [(agent, ("goto", "pickup", "crafter"), {}) for agent in AGENTS[:2]],
}
THOUGHTS = (
    "The object is far away, so I walk. ",
    "1. I see a wall.\n2. I turn.\n",
    "Nothing changed; ACTION: toggle did not help. ",
    "<think>Où est la clé?</think>\n",
    "",
)


def reply_of(rng: random.Random, agent: str, actions: list[str]) -> str:
    """A reply of a mediocre model."""
    action = rng.choice(actions)
    kind = rng.random()
    if kind < 0.07:
        return rng.choice(["", "  \n", "...", "ACTION:", "<|ACTION|><|END|>"])
    if kind < 0.15:
        action = rng.choice([action.upper(), f"{action} twice", "dance", "go  forward", f"{action}\n{action}"])
    elif kind < 0.3:
        action = rng.choice([f" {action}.", f"'{action}'", f"**{action}**!\n"])
    if agent == "naive":
        return action
    thought = rng.choice(THOUGHTS)
    if agent == "cot":
        return f"{thought}ACTION: {action}" if rng.random() < 0.95 else thought + action
    tags = f"<|ACTION|>{action}<|END|>" if rng.random() < 0.9 else f"<|ACTION|>{action}"
    return (thought if agent == "robust_cot" else "") + tags + (tags if rng.random() < 0.1 else "")


def tamper(env, step: int, rng: random.Random, last: int) -> str | None:
    """Change a world of Crafter so that something happens. Returns the action to take next, or None.

    The player stays within columns up to `last`, where one version fails beyond."""
    world, player = env._world, env._player
    if step % 9 == 4 or player.pos[0] >= last:  # near a border, or in a corner
        x, y = (rng.choice([0, 1, 3, 4, 60, 62, 63, rng.randrange(64)]) for _ in range(2))
        x = min(x, last - 2)
        if world[(x, y)][1] is None:
            world[(x, y)] = "grass"
            world.move(player, np.array([x, y]))
        player.facing = rng.choice([(-1, 0), (1, 0), (0, -1), (0, 1)])
    if step % 12 == 6:
        name = rng.choice(["wood", "stone", "coal", "iron", "diamond", "sapling", "wood_pickaxe", "iron_sword"])
        player.inventory[name] = rng.choice([1, 5, 9])
    if step in (20, 45):
        player.inventory["energy"] = 3
        return "Sleep"
    if step == 30:
        player.sleeping = False
    if step == CRAFTER_STEPS - 8 and rng.random() < 0.5:
        for vital in ("food", "drink", "energy"):
            player.inventory[vital] = 0
        player.inventory["health"], player._recover = 1, -15
    return None


def child(version: str, folder: Path, target: Path) -> None:
    """Play the plan of one version, in a process that imports its checkout."""
    sys.path[:0] = [str(folder / version), str(folder / "minigrid")]
    for name in (
        "google",
        "google.genai",
        "google.generativeai",
        "anthropic",
        "openai",
        "nle",
        "nle.env",
        "nle.env.base",
    ):
        sys.modules[name] = mock.MagicMock(__path__=[])
    import balrog.agents as agents
    import balrog.evaluator as evaluation
    from balrog.utils import collect_and_summarize_results
    from omegaconf import OmegaConf

    import envs_jax
    from envs_jax import babyai, crafter

    dists = 8 if version == "2024-11" else 0  # which ignores the setting
    ours = {
        "babyai": envs_jax.make("BabyAI-Text/MixedTrainLocal-v0", num_dists=dists),
        "crafter": envs_jax.make("CrafterReward-v1", image="none", view=True, slots=254),
    }
    Response = namedtuple("Response", "model_id completion stop_reason input_tokens output_tokens reasoning")
    rows: dict[str, list] = {name: [] for name in ("hash", "reply", "reward", "done", "steps")}
    scenes: dict[str, list] = {name: [] for name in ("image", "view", "position", "inventory", "facing", "sleeping")}
    live: dict[str, object] = {}
    make_env = evaluation.make_env

    def watched(*args, **kwargs):
        env = live["env"] = make_env(*args, **kwargs)
        step = env.step

        def stepped(action):
            result = step(action)
            rows["reward"].append(float(result[1]))
            rows["done"].append(bool(result[2] or result[3]))
            return result

        env.step = stepped
        return env

    evaluation.make_env = watched

    def unwrapped(world: str):
        return live["env"].env.gym_env.env if world == "crafter" else live["env"].unwrapped

    def keep_scene(world: str) -> None:
        env, params = ours[world]
        if world == "babyai":
            obs, _ = babyai.import_state(unwrapped(world), env, params)
            scenes["image"].append(np.asarray(obs["image"]))
            return
        obs, state = crafter.import_state(unwrapped(world), env, params)
        for name, value in (("view", obs["view"]), ("inventory", obs["inventory"])):
            scenes[name].append(np.asarray(value).astype(np.uint8))
        for name in ("position", "facing", "sleeping"):
            scenes[name].append(np.asarray(getattr(state, name)).astype(np.uint8))

    class Client:
        def generate(self, messages):
            turns = [[message.role, message.content] for message in messages]
            rows["hash"].append(hashlib.sha256(json.dumps(turns).encode()).digest()[:8])
            keep_scene(live["world"])
            rng = live["rng"]
            action = None
            if live["world"] == "crafter":
                action = tamper(unwrapped("crafter"), live["step"], rng, 62 if version == "2025-04" else 65)
            live["step"] += 1
            reply = reply_of(rng, live["agent"], list(live["env"].env.language_action_space))
            if action:
                tagged = f"<|ACTION|>{action}<|END|>"
                reply = {"naive": action, "cot": f"ACTION: {action}"}.get(live["agent"], tagged)
            rows["reply"].append(reply)
            return Response("x", reply.strip(), "stop", len(turns), len(reply), None)

    agents.create_llm_client = lambda config: Client
    episodes, summaries = [], []
    for number, (agent, tasks, options) in enumerate(PLANS[version]):
        config = OmegaConf.load(folder / version / "balrog" / "config" / "config.yaml")
        config.agent.type = agent
        history = "max_text_history" if "max_text_history" in config.agent else "max_history"
        config.agent[history] = options.get("max_text_history", 16)
        config.agent.max_cot_history = options.get("max_cot_history", 1)
        config.eval.feedback_on_invalid_action = options.get("feedback", True)
        with tempfile.TemporaryDirectory() as output:
            counts: dict[str, int] = {}
            for task in tasks:
                world = "crafter" if task == "crafter" else "babyai"
                config.eval.max_steps_per_episode = CRAFTER_STEPS if world == "crafter" else None
                index, seed = counts.get(task, 0), 1000 * number + len(episodes)
                counts[task] = index + 1
                live.update(world=world, agent=agent, step=0, rng=random.Random(f"{version}/{seed}"))
                config.envs.env_kwargs.seed = seed
                np.random.seed(seed)  # noqa: NPY002 (the source of Crafter's seed)
                evaluator = evaluation.Evaluator(world, config, output_dir=output)
                player = agents.AgentFactory(config).create_agent()
                name = "default" if world == "crafter" else f"BabyAI-MixedTrainLocal-v0/{task}"
                log = evaluator.run_episode(name, player, episode_idx=index)
                keep_scene(world)
                path = Path(output) / world / name / f"{name}_run_{index:02d}.csv"
                log = json.loads(path.with_suffix(".json").read_text())
                kept = {k: v for k, v in log.items() if k not in ("process_num", "seed", "agent", "client", "task")}
                about = {"version": version, "agent": agent, "task": task, "number": index, "options": options}
                checksum = hashlib.sha256(path.read_bytes()).hexdigest()
                episodes.append({**about, "group": number, "log": kept, "csv": checksum})
                print(version, agent, task, log["num_steps"], log["progression"], flush=True)
            summary = collect_and_summarize_results(output)
            worlds = {
                w: json.loads((Path(output) / w / f"{w}_summary.json").read_text()) for w in ("babyai", "crafter")
            }
            summaries.append({"group": number, "summary": summary, "worlds": worlds})
    replies = sorted(set(rows["reply"]))
    arrays = {
        "hash": np.frombuffer(b"".join(rows["hash"]), np.uint64),
        "reply": np.array([replies.index(reply) for reply in rows["reply"]], np.uint16),
        "reward": np.array(rows["reward"]),
        "done": np.array(rows["done"]),
        **{name: np.array(value) for name, value in scenes.items()},
    }
    about = json.dumps({"episodes": episodes, "summaries": summaries, "replies": replies})
    np.savez_compressed(target, about=np.frombuffer(about.encode(), np.uint8), **arrays)


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    if len(sys.argv) > 2:
        child(sys.argv[2], folder, Path(sys.argv[3]))
        return
    parts: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as output:
        for version in PLANS:
            target = Path(output) / f"{version}.npz"
            path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
            command = [sys.executable, __file__, str(folder), version, str(target)]
            subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path})
            parts |= {f"{version}/{name}": value for name, value in np.load(target).items()}
    np.savez_compressed(DATA, **parts)
    print(f"{DATA}: {DATA.stat().st_size} bytes")


if __name__ == "__main__":
    main()
