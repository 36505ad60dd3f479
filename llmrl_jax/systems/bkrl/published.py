"""Options of BK-RL's published programs on our commands."""

from __future__ import annotations

from llmrl_jax.options.published import Choice, Instead, Meaning, Same, Table, switch


_NAME = Instead("give the run's whole name with --run.name")
_WANDB = Instead("give the project with --run.wandb PROJECT")

_EXPERIMENT: dict[str, Meaning] = {
    "total_timesteps": "steps",
    "seed": "run.seed",
    "env_note": _NAME,
    "alg_note": _NAME,
    "eval_freq": Instead(
        "it counts environment steps; give updates with --run.eval-every, each of --ppo.num-envs times "
        "--ppo.num-steps steps"
    ),
    "wandb": Instead("give the project with --run.wandb PROJECT", bare=True),
    "wandb_project_name": _WANDB,
    "wandb_entity": Instead("the variable WANDB_ENTITY names it; the project is --run.wandb"),
    "num_envs": "ppo.num-envs",
    "num_steps": "ppo.num-steps",
    "learning_rate": "ppo.learning-rate",
    "gamma": "ppo.gamma",
    "gae_lambda": "ppo.gae-lambda",
    "num_minibatches": "ppo.minibatches",
    "update_epochs": "ppo.epochs",
    "clip_coef": "ppo.clip-eps",
    "ent_coef": "ppo.entropy-coef",
    "vf_coef": "ppo.value-loss-coef",
    "max_grad_norm": "ppo.max-grad-norm",
    "norm_adv": switch("ppo.normalize-advantages"),
    "anneal_lr": Choice({"false": ("--ppo.schedule", "constant")}, "give --ppo.schedule linear"),
    "clip_vloss": Instead("give the range with --ppo.value-clip"),
    "target_kl": "ppo.target-kl",
}

COLLECT = Table(
    "BK-RL's train_rnd.py",
    {
        **_EXPERIMENT,
        "num_eval_episodes": "episodes",
        "precollect": Choice({"true": ()}, "episodes are always written", bare="true"),
        "rnd_output_dim": "rnd.outputs",
        "update_proportion": "rnd.update-proportion",
        "int_coef": "rnd.coef",
        "ext_coef": "rnd.extrinsic-coef",
        "int_gamma": "rnd.gamma",
        "alg": Instead("episodes are collected with novelty as a bonus: leave it out"),
    },
)

TRAIN = Table(
    "BK-RL's train_rs.py",
    {
        **_EXPERIMENT,
        "num_eval_episodes": "eval-episodes",
        "pretrain_path": "potential",
        "ext_coef": "shaping.extrinsic-coef",
        "reward_model_horizon": Instead("the window is that of the potential: --window of the command that made it"),
        "subgoal_reward_threshold": Instead("it is an option of `llmrl bkrl goals`: --threshold"),
        "lm_model_name": Instead("it is an option of `llmrl bkrl goals`: --encoder"),
        "precollect": Instead("episodes are collected by `llmrl bkrl collect`", bare=True),
    },
)

_ENVS = {"minigrid": "BabyAI-Text-GoToLocal-Pretraining-S20", "crafter": "Crafter-Text-Reward"}
_LABELS: dict[str, Meaning] = {
    "dataset_path": "data",
    "env": Same("env", lambda name: _ENVS.get(name, name)),
    "model_name": "chat.model",
    "max_tokens": "chat.max-tokens",
    "sequence_length": "window",
    "output_path": Instead("results are in the folder of a run: give --run.out FOLDER and --run.name NAME"),
    "retry_times": Instead("requests to a server are always sent again; limits are --chat.max-calls, --chat.max-usd"),
}

CODE = Table(
    "BK-RL's label_code.py",
    {
        **_LABELS,
        "num_iterations": Instead(
            "give --rounds, each of which asks for --candidates programs, where theirs asks for one"
        ),
        "num_eval_samples": "shown",
        "retry_times": "repairs",
    },
)

PREFER = Table(
    "BK-RL's label_preference.py and train_preference_model.py",
    {
        **_LABELS,
        "dataset_size": "pairs",
        "inference_batch_size": "chat.concurrency",
        "sleep_between_queries": Instead("requests wait only where the server says so: give --chat.concurrency"),
        "data_size": Instead("all pairs are used: give --pairs"),
        "test_size": "validation-share",
        "epoch": "model.epochs",
        "batch_size": "model.batch-size",
        "n_embed": "model.width",
        "n_layers": Choice({"1": ()}, "the transformer has one layer; its widths are --model.width, --model.hidden"),
        "n_headers": Choice({"1": ()}, "attention has one head, of --model.width"),
        "log_interval": Instead("losses are written after each of --model.epochs"),
        "global_seed": "run.seed",
    },
)

GOALS = Table(
    "BK-RL's label_goals.py",
    {
        **_LABELS,
        "num_iterations": "situations",
        "embedding_model": "encoder",
        "sequence_length": Instead("give the actions of a window with --window"),
    },
)
