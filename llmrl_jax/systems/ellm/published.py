"""Keys of ELLM's published configuration on our commands, as in `env_spec.threshold=.99` (2302.06692).

Values are ours where they are left out; `--preset published` has the published ones.
"""

from __future__ import annotations

from llmrl_jax.options.published import Choice, Instead, Meaning, Same, Table, switch


_PROGRAM = "ELLM's train.py"
_ENVS = {"CrafterTextEnv-v1": "CrafterText-v1"}
_HOUSEKEEP = "name the task: --env Housekeep-Task1-v0, or Task2, Task3, Task4 for the episodes 8, 12, 14"
_KEY = Instead("the server's key is never an argument: --chat.key-variable names the variable that holds it")
_PROMPT = Instead("the prompt has the published examples: --goals.shots, or those of --goals.examples")
_CAPTIONER = Choice({"false": ()}, "captions are made from the state, by rules; there are no learned captioners")
_FOLDER = Instead("the folder of the run is --run.out and --run.name")
_DOWNSTREAM = "train on one task with `llmrl ellm finetune`, or `llmrl ellm explore`: --task"

_LANGUAGE_MODEL: dict[str, Meaning] = {
    "lm_class": Choice(
        {
            "simpleoracle": ("--suggester", "oracle"),
            "gptlanguagemodel": ("--suggester", "chat"),
            "baselinemodel": ("--suggester", "novelty", "--gate", "none"),
        },
        "give --suggester",
    ),
    "lm": "chat.model",
    "temperature": "chat.temperature",
    "max_tokens": "chat.max-tokens",
    "budget": "chat.max-usd",
    "prob_threshold": "judge.share",
    "novelty_bonus": switch("once"),
    "prompt": _PROMPT,
    "openai_key": _KEY,
    "openai_org": _KEY,
    "all_goals": Instead("goals that are always the same are --suggester fixed and --fixed"),
    "max_num_goals": Instead("goals kept per state are --goals.per-state"),
    "dummy_lm": Instead("the scripted adviser is --chat.model scripted"),
}

_ENVIRONMENT: dict[str, Meaning] = {
    "name": Same("env", lambda name: _ENVS.get(name, name)),
    "threshold": "threshold",
    "use_sbert": Choice({"true": ()}, "captions are embedded by a sentence encoder: --encoder"),
    "action_space_type": Choice({"harder": ()}, "give the smaller one with --env 'CrafterText-v1?actions=27'"),
    "check_ac_success": Choice({"true": ("--gate", "lenient"), "false": ("--gate", "none")}, "give --gate"),
    "use_state_captioner": _CAPTIONER,
    "use_transition_captioner": _CAPTIONER,
    "env_reward": Instead("the weight of the world's own reward is --extrinsic"),
    "housekeep_task": Instead(_HOUSEKEEP),
    "housekeep_ep_num": Instead(_HOUSEKEEP),
    "dying": Choice({"true": ()}, "episodes end with the agent's death"),
    "length": Instead("it is an option of the environment, see the page of Crafter: --env"),
    "seed": "run.seed",
    "device": Instead("jax takes the accelerator; the variable JAX_PLATFORMS chooses another"),
    "max_seq_len": Instead("captions are phrases, which need no length: leave it out"),
    "use_language_state": Choice({"false": ()}, "what the agent observes is --observe"),
}

_AGENT: dict[str, Meaning] = {
    "_target_": Choice(
        {
            "dqn.dqnagent": (),
            "baselines.icm_apt.icmaptagent": ("--suggester", "none", "--bonus", "apt"),
            "baselines.rnd.rndagent": ("--suggester", "none", "--bonus", "rnd"),
        },
        "give --bonus",
    ),
    "noveld": Choice({"true": ("--bonus", "noveld"), "false": ()}, "give --bonus noveld", last=True),  # RNDAgent too
    "use_language": Instead("a bonus sees what the agent observes: --observe"),
    "critic_target_tau": "dqn.target-tau",
    "critic_target_update_every_steps": "dqn.target-steps",
    "train_eps_min": "dqn.epsilon-end",
    "train_eps_max": "dqn.epsilon-start",
    "train_eps_decay_steps": "dqn.epsilon-steps",
    "eval_eps": Instead("held-out episodes act at random as often as at the end of training: --dqn.epsilon-end"),
    "reward_scale": Instead("give the weights of rewards: --intrinsic, --extrinsic"),
    "update_every_steps": Instead(
        "an update has --dqn.num-steps steps of --dqn.num-envs environments and --dqn.gradient-steps gradient steps"
    ),
    "hidden_dim": "network.width",
    "goal_encoder_type": Choice({"sbert": ()}, "goals are embedded by a sentence encoder: --encoder"),
}

_TRAINING: dict[str, Meaning] = {
    "num_train_frames": "steps",
    "num_seed_frames": "dqn.learning-starts",
    "num_eval_episodes": "eval-episodes",
    "discount": "dqn.gamma",
    "nstep": "dqn.n-step",
    "batch_size": "dqn.batch-size",
    "lr": "dqn.learning-rate",
    "replay_buffer_size": "dqn.replay-size",
    "seed": "run.seed",
    "use_goal": switch("goal-conditioned"),
    "use_image": Choice({"true": ()}, "without pictures: --observe text"),
    "use_language_state": Choice(
        {"sbert": ("--observe", "pixels+text"), "null": ("--observe", "pixels")}, "what the agent observes is --observe"
    ),
    "use_extr_rew": Choice({"false": ()}, "give --extrinsic 1"),
    "clip_reward": Choice({"true": ("--dqn.reward-clip", "1"), "false": ("--dqn.reward-clip", "inf")}, "true or false"),
    "use_tb": switch("run.tensorboard"),
    "use_wandb": Choice({"false": ()}, "give the project with --run.wandb PROJECT"),
    "exp_name": "run.name",
    "eval_every_frames": Instead("give updates with --run.eval-every, of --dqn.num-envs times --dqn.num-steps steps"),
    "train_log_every": Instead("give updates with --run.log-every"),
    "save_snapshot": Instead("give updates with --run.checkpoint-every"),
    "save_buffer": Choice({"true": ()}, "checkpoints always have the replay buffer"),
    "resume_id": Instead("give --run.resume RUN"),
    "frame_stack": Choice({"4": ()}, "pictures are an option of the environment: --env"),
    "replay_buffer_num_workers": Instead("the replay buffer is on the device, without workers: leave it out"),
    "save_offline": Instead("steps are recorded by `llmrl ellm collect`"),
    "offline_buffer": Instead("give --buffer to `llmrl ellm offline`"),
    "use_offline_buffer": Instead("give --buffer to `llmrl ellm offline`"),
    "save_video": Instead("`llmrl ellm eval` writes one: --gif"),
    "eval_video_goals": Instead("`llmrl ellm eval` shows them: --goals"),
    "vocab_size": Instead("captions are embedded by a sentence encoder: --encoder"),
    "max_seq_tokens": Instead("captions are phrases, which need no length: leave it out"),
    "openai_key": _KEY,
    "openai_org": _KEY,
    "hydra.run.dir": _FOLDER,
}


def _keys(more: dict[str, Meaning], of_environment: dict[str, Meaning]) -> dict[str, Meaning]:
    """All keys by their places in the configuration. **Arguments:** `more`, of the top; `of_environment`."""
    return {
        **_TRAINING,
        **more,
        **{f"env_spec.{name}": meaning for name, meaning in (_ENVIRONMENT | of_environment).items()},
        **{f"env_spec.lm_spec.{name}": meaning for name, meaning in _LANGUAGE_MODEL.items()},
        **{f"agent.{name}": meaning for name, meaning in _AGENT.items()},
    }


PRETRAIN = Table(
    _PROGRAM,
    _keys(
        {
            "single_goal_eval": Instead(_DOWNSTREAM),
            "finetune_snapshot": Choice({"false": ()}, "give the run to `llmrl ellm finetune`: --from"),
            "snapshot_path": Instead("give the run to `llmrl ellm finetune`: --from"),
            "expl_agent_path": Instead("give the run to `llmrl ellm explore`: --from"),
            "train_after_reward": switch("dqn.learn-after-reward"),
            "decay_after_reward": switch("dqn.epsilon-after-reward"),
        },
        {
            "single_task": Instead(_DOWNSTREAM),
            "single_goal_hierarchical": Choice({"false": ()}, _DOWNSTREAM),
        },
    ),
    hydra=True,
)

_TASK: dict[str, Meaning] = {
    "single_goal_eval": Choice({"true": ()}, "an agent for all goals is trained by `llmrl ellm pretrain`"),
    "train_after_reward": switch("dqn.learn-after-reward"),
    "decay_after_reward": switch("dqn.epsilon-after-reward"),
}
_OF_TASK: dict[str, Meaning] = {
    "single_task": "task",
    "single_goal_hierarchical": Choice(
        {"false": (), "reward_last": ("--subgoals",)}, "only the last step of a task is rewarded: --subgoals"
    ),
}

FINETUNE = Table(
    _PROGRAM,
    _keys(
        {
            **_TASK,
            "finetune_snapshot": Choice({"true": ()}, "a new agent is trained by `llmrl ellm explore`"),
            "snapshot_path": "from",
            "expl_agent_path": Instead("give the run to `llmrl ellm explore`: --from"),
            "finetune_settings": Choice(
                {
                    "train_all": ("--tune", "all"),
                    "linear": ("--tune", "linear"),
                    "critic": ("--tune", "critic"),
                },
                "give --tune, and --reinit for weights that start at random",
            ),
        },
        _OF_TASK,
    ),
    hydra=True,
)

EXPLORE = Table(
    _PROGRAM,
    _keys(
        {
            **_TASK,
            "finetune_snapshot": Choice({"false": ()}, "give the run to `llmrl ellm finetune`: --from"),
            "snapshot_path": Instead("give the run to `llmrl ellm finetune`: --from"),
            "expl_agent_path": "from",
            "other_model_prob": "dqn.guide-fraction",
        },
        _OF_TASK,
    ),
    hydra=True,
)
