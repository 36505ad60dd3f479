"""Offline RL in Hopper and HalfCheetah on data of our own, ours beside d3rlpy's on the same files.

    make .venv-d3rlpy/.peers
    python experiments/offline_mujoco.py
    python experiments/offline_mujoco.py --algorithms awac prdc bcq combo --sets medium-replay
    python experiments/offline_mujoco.py --stages policies --policies runs/offline_mujoco/policies

SAC makes policies; those that make data are committed as small files, from which the second and third lines start, so
they do not train SAC; the last does, into another folder. Then data are made from the policies, and each algorithm
learns from each set with both libraries: the same steps, networks, hyper-parameters, batch size and number of gradient
steps. The actors of both are played in the same way, by the modes of their actions in our world.

What is there is read, and the rest is made, so that it can be stopped at any time; what the committed table has counts
as there (`--known ''`: make everything). `<out>/results.json` has the table; `--stages` without a stage makes only
that.
"""

from __future__ import annotations

import datetime
import functools
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from commands import command
from finished import refuse_others
from offline_data import BEST, JUDGED, SETS, Set, make_data, policies, random_return, world_of
from offline_policies import layers_of

from llmrl_jax.agents.evaluate import make_evaluator
from llmrl_jax.core import config as configs
from llmrl_jax.core.files import write_whole
from llmrl_jax.data.reading import read_data
from llmrl_jax.options.command import parse
from llmrl_jax.rl.bc import BC, BCConfig
from llmrl_jax.rl.offline import Frozen, OfflinePolicy, make_offline
from llmrl_jax.rl.registry import algorithm
from llmrl_jax.rl.seeds import select_run, vmap_learners
from llmrl_jax.run import info
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.loop import train
from llmrl_jax.run.metrics import read as read_metrics


ROOT = Path(__file__).parents[1]
Stage = Literal["policies", "data", "ours", "peer"]

ALGORITHMS: dict[str, tuple[dict[str, Any], str, dict[str, str]]] = {
    "bc": ({}, "BC", {"learning_rate": "learning_rate"}),
    "td3_bc": (
        {},
        "TD3PlusBC",
        {
            "actor_learning_rate": "actor_learning_rate",
            "critic_learning_rate": "critic_learning_rate",
            "gamma": "gamma",
            "tau": "tau",
            "alpha": "alpha",
            "target_smoothing_sigma": "policy_noise",
            "target_smoothing_clip": "noise_clip",
            "update_actor_interval": "actor_every",
        },
    ),
    "iql": (
        {"actor_decay_steps": 0},
        "IQL",
        {
            "actor_learning_rate": "learning_rate",
            "critic_learning_rate": "learning_rate",
            "gamma": "gamma",
            "tau": "tau",
            "expectile": "expectile",
            "weight_temp": "beta",
            "max_weight": "max_weight",
        },
    ),
    "cql": (
        {},
        "CQL",
        {
            "actor_learning_rate": "actor_learning_rate",
            "critic_learning_rate": "critic_learning_rate",
            "temp_learning_rate": "temperature_learning_rate",
            "alpha_learning_rate": "alpha_learning_rate",
            "gamma": "gamma",
            "tau": "tau",
            "initial_temperature": "initial_temperature",
            "initial_alpha": "initial_alpha",
            "alpha_threshold": "threshold",
            "conservative_weight": "conservative_weight",
            "n_action_samples": "action_samples",
        },
    ),
    "awac": ({}, "", {}),
    "prdc": ({}, "", {}),
    "bcq": ({}, "", {}),
    "combo": ({"model_steps": 10_000}, "", {}),
}
"""Ours -> what differs from our defaults, d3rlpy's name (empty: ours alone is run), and its option -> ours."""
BESIDE = tuple(name for name, (_, theirs, _) in ALGORITHMS.items() if theirs)
SLOW = ("cql", "bcq", "combo")
AVERAGED = 1000
"""Gradient steps at the end whose losses are averaged."""
HELD_OUT = 0xE7A1  # the key of the episodes by which policies are compared


@dataclass(frozen=True)
class Experiment:
    """Ours beside d3rlpy, on the same files."""

    stages: tuple[Stage, ...] = ("policies", "data", "ours", "peer")
    """What is made, if it is not there: SAC's policies, the data, our runs, d3rlpy's runs."""
    worlds: tuple[str, ...] = ("Hopper-v5", "HalfCheetah-v5")
    """Worlds."""
    sets: tuple[Set, ...] = SETS
    """Sets of data."""
    algorithms: tuple[str, ...] = BESIDE
    """Algorithms; of `awac`, `prdc`, `bcq` and `combo` only ours is run."""
    sac_steps: int = 160_000
    """Gradient steps of SAC."""
    data_steps: int = 200_000
    """Steps of a set."""
    steps: int = 10_000
    """Gradient steps of all but CQL, BCQ and COMBO."""
    cql_steps: int = 3_000
    """Gradient steps of CQL, BCQ and COMBO's policy, which are ten times as expensive."""
    batch_size: int = 256
    """Steps of a batch."""
    seeds: int = 2
    """Our seeds, in one program."""
    peer_seeds: int = 2
    """d3rlpy's seeds, from 0, one after the other."""
    cql_seeds: int = 1
    """Seeds of CQL on each side."""
    episodes: int = 20
    """Episodes that each policy plays at the end."""
    policies: str = "experiments/results/offline_mujoco/policies"
    """Folder of the exported policies, one folder for each world."""
    known: str = "experiments/results/offline_mujoco/results.json"
    """A table, whose sides with enough seeds are not made again and enter the new one; empty: none."""
    out: str = "runs/offline_mujoco"
    """Folder of the runs, the data and the results."""


def config_of(x: Experiment, name: str) -> Any:
    """Our configuration of an algorithm, which d3rlpy's is made of too."""
    return replace(algorithm(name).config(), batch_size=x.batch_size, **ALGORITHMS[name][0])


def steps_of(x: Experiment, name: str) -> int:
    """The gradient steps of an algorithm; COMBO's begin with those of its model."""
    return (x.cql_steps if name in SLOW else x.steps) + getattr(config_of(x, name), "model_steps", 0)


def seeds_of(x: Experiment, name: str) -> tuple[int, int]:
    """Our seeds of an algorithm, and d3rlpy's."""
    if name == "cql":
        return x.cql_seeds, x.cql_seeds
    return x.seeds, x.peer_seeds if name in BESIDE else 0


def settings_of(x: Experiment, name: str) -> dict[str, Any]:
    """Settings of an algorithm in the table: those that both sides have, or, of ours alone, all."""
    config, shared = config_of(x, name), ALGORITHMS[name][2]
    return {of: getattr(config, of) for of in (*shared.values(), "normalize")} if shared else asdict(config)


def returns(world_id: str, policy: Any, episodes: int) -> Callable[[Any, Any], float]:
    """`(params, frozen) -> return`: the mean over the same episodes for every policy, of the modes of its actions."""
    world = world_of(world_id)
    play = make_evaluator(world.env, world.params, policy, episodes=episodes, lanes=episodes)
    key = jax.random.fold_in(jax.random.key(0), HELD_OUT)
    return lambda params, frozen: float(np.mean(play(params, frozen, key, greedy=True).episode_return))


def made_once(path: Path, settings: dict[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Contents of a JSON file, which `make` makes if it is not there. **Arguments:** `settings`, on which they depend
    beside what the path names. **Raises:** `ValueError` if they were made with others; files of earlier versions do
    not say."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        today = datetime.date.today().isoformat()
        made = make() | {"date": today, "commit": info.commit("experiments"), "device": info.device()}
        write_whole(path, json.dumps(made | {"settings": settings}, indent=1) + "\n")
    contents = json.loads(path.read_text())
    refuse_others(path, settings | contents.get("settings", {}), settings)
    return contents


@dataclass(frozen=True)
class Learning:
    """A run of ours, as its config.json has it."""

    settings: dict[str, Any]
    run: RunConfig


def depends_on(x: Experiment, data: Path, name: str) -> dict[str, Any]:
    """What the results of an algorithm depend on, on both sides, beside what their paths name."""
    digest = json.loads(data.with_suffix(".json").read_text())["sha256"]
    return {**configs.to_json(config_of(x, name)), "data": digest, "episodes": x.episodes}


def ours(x: Experiment, world_id: str, data: Path, name: str, run: str) -> dict[str, Any]:
    """All of our seeds in one program: the return of each."""
    config, actions, seeds = config_of(x, name), world_of(world_id).policy.actions, seeds_of(x, name)[0]
    learner = make_offline(algorithm(name).make(config, actions), config, read_data(data), actions)
    folder = Path(x.out) / run
    options = RunConfig(
        name=run, out=x.out, log_every=10, checkpoint_every=50, keep=1, resume=(folder / "config.json").exists()
    )
    result = train(
        vmap_learners(learner, seeds, jax.random.split),
        options,
        num_updates=steps_of(x, name) // config.gradient_steps,
        full_config=Learning(depends_on(x, data, name), options),
    )
    if result.stopped:
        raise SystemExit(f"{folder} was stopped: the same command goes on with it")
    play = returns(world_id, learner.policy, x.episodes)
    found = []
    for seed in range(seeds):
        state = select_run(result.state, seed)
        found.append(round(play(state.params, state.frozen.replace(given=())), 1))
    losses = [last_losses(folder / "metrics.jsonl", seed) for seed in range(seeds)]
    return {"returns": found, "losses": losses, "steps": result.steps, "seconds": round(result.seconds, 1)}


def last_losses(metrics: Path, seed: int) -> dict[str, float]:
    """The means of a seed's metrics over the last `AVERAGED` gradient steps."""
    lines = [line for line in read_metrics(metrics) if line["kind"] == "train"]
    last = [line for line in lines if line["steps"] > lines[-1]["steps"] - AVERAGED]
    names = [name for name in last[0] if name.startswith(f"{seed}/")]
    return {name.split("/")[1]: float(f"{np.mean([line[name] for line in last]):.4g}") for name in names}


def peer(x: Experiment, world_id: str, data: Path, name: str, seed: int, out: Path) -> dict[str, Any]:
    """One seed of d3rlpy: the return of its actor, played as ours are.

    **Raises:** `FileNotFoundError` without its environment; `ValueError` if the actor, as it is read here, acts
    differently than it does there.
    """
    python = ROOT / os.environ.get("LLMRL_D3RLPY", ".venv-d3rlpy") / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError(f"d3rlpy's environment {python.parents[1]} is missing: make .venv-d3rlpy/.peers")
    config, (_, theirs, options) = config_of(x, name), ALGORITHMS[name]
    asked = {
        "algorithm": theirs,
        "settings": {"batch_size": config.batch_size} | {to: getattr(config, of) for to, of in options.items()},
        "normalize": config.normalize,
        "data": str(data),
        "steps": steps_of(x, name),
        "averaged": AVERAGED,
        "seed": seed,
        "threads": len(os.sched_getaffinity(0)),
        "out": str(out),
    }
    script = Path(__file__).with_name("offline_d3rlpy.py")
    subprocess.run([str(python), str(script), json.dumps(asked)], check=True)
    actions = world_of(world_id).policy.actions
    policy = OfflinePolicy(BC(BCConfig(), actions), actions)
    with np.load(out, allow_pickle=False) as file:
        arrays = dict(file)
    params = {"actor": layers_of(arrays)}
    frozen = Frozen((), (), jnp.asarray(arrays["mean"]), jnp.asarray(arrays["std"]))
    acts = policy.step(params, frozen, jnp.asarray(arrays["probe"]), (), None)[0].mode()
    error = float(np.max(np.abs(np.asarray(acts) - arrays["probe_action"])))
    if error > 1e-4:
        raise ValueError(f"the actor of {out} acts differently than in d3rlpy, by {error:g}")
    found = returns(world_id, policy, x.episodes)(params, frozen)
    losses = {n.removeprefix("loss."): float(f"{v:.4g}") for n, v in arrays.items() if n.startswith("loss.")}
    return {
        "returns": [round(found, 1)],
        "losses": losses,
        "steps": asked["steps"],
        "seconds": round(float(arrays["seconds"]), 1),
    }


# --- the table --------------------------------------------------------------------------------------------------------


def summary(found: list[float], low: float, high: float) -> dict[str, Any]:
    """Mean and standard error over seeds, and the mean as a score: 0 is random, 100 the expert."""
    x = np.asarray(found)
    error = float(np.std(x, ddof=1) / np.sqrt(len(x))) if len(x) > 1 else None
    mean = float(np.mean(x))
    score = 100 * (mean - low) / (high - low)
    error = None if error is None else round(error, 1)
    return {"returns": found, "mean": round(mean, 1), "standard_error": error, "score": round(score, 1)}


def compared(own: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The difference of the means, in units of its standard error."""
    error = float(np.hypot(own["standard_error"], other["standard_error"]))
    difference = own["mean"] - other["mean"]
    return {
        "difference": round(difference, 1),
        "standard_error": round(error, 1),
        "within_two_standard_errors": bool(abs(difference) <= 2 * error),
    }


def cases(x: Experiment) -> Iterator[tuple[str, Set, str]]:
    """Worlds, sets and algorithms, in the order in which they are made."""
    for world in x.worlds:
        for data in x.sets:
            for name in x.algorithms:
                yield world, data, name


@functools.cache
def random_of(out: str, world_id: str) -> float:
    """The return of random actions, measured once."""
    path = Path(out) / "data" / f"{world_id}-random.json"
    return float(made_once(path, {"episodes": JUDGED}, lambda: {"mean_return": random_return(world_id)})["mean_return"])


def runs_of(x: Experiment, world: str, data: Set, name: str) -> dict[str, Path]:
    """The files with the results of both sides, by what was run: `ours`, and `d3rlpy 0` and so on."""
    base = f"{world}-{data}-{name}-{steps_of(x, name)}"
    folder, (own, others) = Path(x.out) / "runs", seeds_of(x, name)
    seeds = {f"d3rlpy {seed}": folder / f"{base}-d3rlpy-{seed}.json" for seed in range(others)}
    return {"ours": folder / f"{base}-ours-{own}.json", **seeds}


def known_worlds(x: Experiment) -> dict[str, Any]:
    """The worlds of the known table. **Raises:** `ValueError` if it was made with other settings."""
    if not x.known:
        return {}
    found = json.loads(Path(x.known).read_text())
    now = {name: getattr(x, name) for name in ("batch_size", "episodes")}
    saved = {name: found[name] for name in now}
    for name in x.algorithms:
        now[name] = configs.to_json(settings_of(x, name))
        saved[name] = now[name] | found["settings"].get(name, {})
    refuse_others(Path(x.known), saved, now, "give --known '' to make everything")
    return found["worlds"]


def check_folder(x: Experiment) -> None:
    """Note the settings that all files of a folder share. **Raises:** `ValueError` if it was made with others."""
    path = Path(x.out) / "settings.json"
    now = {name: getattr(x, name) for name in ("batch_size", "episodes", "data_steps", "sac_steps")}
    refuse_others(path, json.loads(path.read_text()) if path.exists() else now, now)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(now) + "\n")


def known_row(worlds: dict[str, Any], world: str, data: str, name: str) -> dict[str, Any]:
    """The row of a case in a table, empty if it has none."""
    sets = worlds.get(world, {}).get("sets", {})
    return sets.get(data, {}).get("algorithms", {}).get(name, {})


def is_known(x: Experiment, world: str, data: str, name: str, who: str) -> bool:
    """Return whether the known table has a side of a case, with as many seeds and gradient steps as are asked for."""
    side = known_row(known_worlds(x), world, data, name).get("ours" if who == "ours" else "d3rlpy", {})
    seeds = seeds_of(x, name)[0 if who == "ours" else 1]
    return len(side.get("returns", ())) >= seeds and side["gradient_steps"] == steps_of(x, name)


def to_make(x: Experiment) -> list[tuple[str, Set, str, str]]:
    """The cases and sides that are asked for and not known: world, set, algorithm, and `ours` or `d3rlpy <seed>`."""
    sides = [(*case, who) for case in cases(x) for who in runs_of(x, *case)]
    return [side for side in sides if not is_known(x, *side)]


def made_of(worlds: dict[str, Any]) -> set[str]:
    """The algorithms that a table has rows of."""
    return {name for world in worlds.values() for data in world["sets"].values() for name in data["algorithms"]}


def tabulate(x: Experiment) -> None:
    """Write what is there, and what was known, as `results.json`."""
    worlds = known_worlds(x)
    for world, data, name in cases(x):
        folder = Path(x.policies) / world
        about = Path(x.out) / "data" / f"{world}-{data}.json"
        if not about.exists():
            continue
        known = json.loads((folder / "policies.json").read_text())["policies"]
        low, high = random_of(x.out, world), known[BEST]["mode"]
        entry = worlds.setdefault(world, {"random": low, "expert": high, "policies": known, "sets": {}})
        made = json.loads(about.read_text())
        held = entry["sets"].setdefault(data, {"data": made, "algorithms": {}})
        if held["data"]["sha256"] != made["sha256"]:
            raise ValueError(
                f"{about} has other data than {x.known}, whose rows are of data with the SHA-256 "
                f"{held['data']['sha256']}: give --known '' and another --out to make everything from the new data"
            )
        done = {who: json.loads(p.read_text()) for who, p in runs_of(x, world, data, name).items() if p.exists()}
        theirs = [run for who, run in done.items() if who != "ours"]
        sides = held["algorithms"].get(name, {})
        both = {who: sides[who] for who in ("ours", "d3rlpy") if who in sides}
        row: dict[str, Any] = {who: s for who, s in both.items() if s["gradient_steps"] == steps_of(x, name)}
        for side, some in (("ours", [done["ours"]] if "ours" in done else []), ("d3rlpy", theirs)):
            found = [r for run in some for r in run["returns"]]
            if some and len(found) >= len(row.get(side, {}).get("returns", ())):
                row[side] = summary(found, low, high)
                row[side] |= {name: some[-1].get(name) for name in ("device", "date", "commit")}
                row[side] |= {"gradient_steps": some[0]["steps"], "seconds": [run["seconds"] for run in some]}
                kept = [run.get("losses") for run in some]  # of earlier versions: None
                row[side]["losses"] = kept[0] if side == "ours" else kept
        if all(row.get(side, {}).get("standard_error") is not None for side in ("ours", "d3rlpy")):
            row["compared"] = compared(row["ours"], row["d3rlpy"])
        if row:
            held["algorithms"][name] = row
    results = {
        "command": command(Path(__file__).name, x, ("out", "stages", "policies", "known")),
        "date": datetime.date.today().isoformat(),
        "batch_size": x.batch_size,
        "episodes": x.episodes,
        "settings": {name: settings_of(x, name) for name in ALGORITHMS if name in made_of(worlds)},
        "worlds": worlds,
        "machine": {**info.stamp("experiments"), "d3rlpy": "2.8.1", "torch": "2.13.0"},
    }
    write_whole(Path(x.out) / "results.json", json.dumps(results, indent=1) + "\n")


def line(world: str, data: str, name: str, who: str, found: dict[str, Any]) -> str:
    """A result as it is printed."""
    return f"{world} {data:13} {name:7} {who:9} {' '.join(f'{r:.0f}' for r in found['returns'])}"


def main() -> None:
    x = parse(Experiment, description=__doc__)
    if unknown := [name for name in x.algorithms if name not in ALGORITHMS]:
        raise ValueError(f"there is no algorithm {unknown[0]!r} here; there are {', '.join(ALGORITHMS)}")
    for name in x.algorithms:
        if steps_of(x, name) % config_of(x, name).gradient_steps:
            raise ValueError(f"{steps_of(x, name)} steps are asked for; a multiple of 100 is needed")
    out = Path(x.out)
    check_folder(x)
    if "policies" in x.stages:
        for world in x.worlds:
            policies(world, x.sac_steps, out, Path(x.policies) / world)
    if "data" in x.stages:
        for world, data in dict.fromkeys((world, data) for world, data, *_ in to_make(x)):
            random_of(x.out, world)
            make_data(world, data, x.data_steps, Path(x.policies) / world, out / "data")
            tabulate(x)
    for world, data, name, who in to_make(x):
        file, path = out / "data" / f"{world}-{data}.npz", runs_of(x, world, data, name)[who]
        if who == "ours" and "ours" in x.stages:
            made = functools.partial(ours, x, world, file, name, path.stem)
        elif who != "ours" and "peer" in x.stages:
            made = functools.partial(peer, x, world, file, name, int(who.split()[1]), path.with_suffix(".npz"))
        else:
            continue
        print(line(world, data, name, who, made_once(path, depends_on(x, file, name), made)), flush=True)
        tabulate(x)
    tabulate(x)
    known = sum(1 for case in cases(x) for _ in runs_of(x, *case)) - len(to_make(x))
    print(f"{out / 'results.json'} has the table; {known} of its sides are taken from {x.known or 'no other'}")


if __name__ == "__main__":
    main()
