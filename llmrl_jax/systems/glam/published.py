"""Options of GLAM's published programs on our commands (2302.02662): keys of the
configuration, as in `rl_script_args.lr=1e-6`, and flags of Symbolic-PPO and of behavioural cloning."""

from __future__ import annotations

from llmrl_jax.options.published import Choice, Instead, Meaning, Same, Table


def _environment(name: str) -> str:
    """The id of a published environment, such as `BabyAI-GoToLocal-v0`, with texts."""
    return name.replace("BabyAI-", "BabyAI-Text/", 1) if name.startswith("BabyAI-") else name


_ENV = Same("env", _environment)
_NAME = Instead("give the run's whole name with --run.name")
_FOLDER = Instead("the folder of the run is --run.out and --run.name")
_NO_EFFECT = Instead("it has no effect there: leave it out")
_CONFIG = Instead("a file of options has our names: --config FILE, as --print-config prints it")
_PROCESSES = Instead("one program uses all devices: --mesh, as in --mesh data=4")
_INIT = Instead("initial weights are --init pretrained, random, or embeddings (pretrained embeddings only)")
_TESTS = Instead("other actions are tests of `llmrl glam test`: --tests")

_LAUNCHER: dict[str, Meaning] = {
    "config-path": _CONFIG,
    "config-name": _CONFIG,
    "lamorel_args.llm_args.model_path": "model",
    "lamorel_args.llm_args.minibatch_size": "score-rows",
    "lamorel_args.llm_args.model_type": Choice({"causal": ()}, "models are decoders, as those of --model"),
    "lamorel_args.llm_args.pre_encode_inputs": Instead("prompts share what they begin with: leave it out"),
    "lamorel_args.llm_args.parallelism.use_gpu": Instead("jax takes the accelerator: leave it out"),
    "lamorel_args.llm_args.parallelism.model_parallelism_size": Instead("give --mesh tensor=2"),
    "lamorel_args.distributed_setup_args.n_rl_processes": _PROCESSES,
    "lamorel_args.distributed_setup_args.n_llm_processes": _PROCESSES,
    "lamorel_args.log_level": Instead("what the terminal shows is --run.progress"),
    "lamorel_args.allow_subgraph_use_whith_gradient": _NO_EFFECT,
    "rl_script_args.path": Instead("the command is the program: leave it out"),
}

_SCRIPT: dict[str, Meaning] = {
    "seed": "run.seed",
    "number_envs": "ppo.num-envs",
    "num_steps": "steps",
    "frames_per_proc": "ppo.num-steps",
    "discount": "ppo.gamma",
    "gae_lambda": "ppo.gae-lambda",
    "lr": "ppo.learning-rate",
    "beta1": "ppo.adam-b1",
    "beta2": "ppo.adam-b2",
    "adam_eps": "ppo.adam-eps",
    "entropy_coef": "ppo.entropy-coef",
    "value_loss_coef": "ppo.value-loss-coef",
    "max_grad_norm": "ppo.max-grad-norm",
    "clip_eps": "ppo.clip-eps",
    "epochs": "ppo.epochs",
    "nbr_obs": "history",
    "name_environment": _ENV,
    "use_action_heads": Choice({"true": ("--policy", "heads"), "false": ("--policy", "scoring")}, "give --policy"),
    "pretrained": Choice({"true": ("--init", "pretrained")}, _INIT.remedy),
    "load_embedding": _INIT,
    "reward_shaping_beta": Choice({"0": ()}, "only the factor of rewards is there: --reward-scale"),
    "max_episode_steps": _NO_EFFECT,
    "batch_size": Instead("give the number of minibatches of an update: --ppo.minibatches"),
    "action_space": Instead("give their number, in the published order: --num-actions"),
    "template_test": Instead("variants of the prompt are tests of `llmrl glam test`: --variants"),
    "spm_path": Instead("the tokenizer of --agent drrn is made of the environment's words: leave it out"),
    "name_experiment": _NAME,
    "name_model": _NAME,
    "saving_path_logs": _FOLDER,
    "saving_path_model": _FOLDER,
}

_SYMBOLIC: dict[str, Meaning] = {
    "procs": "ppo.num-envs",
    "frames-per-proc": "ppo.num-steps",
    "frames": "steps",
    "lr": "ppo.learning-rate",
    "beta1": "ppo.adam-b1",
    "beta2": "ppo.adam-b2",
    "optim-eps": "ppo.adam-eps",
    "recurrence": "symbolic.recurrence",
    "entropy-coef": "ppo.entropy-coef",
    "discount": "ppo.gamma",
    "gae-lambda": "ppo.gae-lambda",
    "value-loss-coef": "ppo.value-loss-coef",
    "max-grad-norm": "ppo.max-grad-norm",
    "clip-eps": "ppo.clip-eps",
    "ppo-epochs": "ppo.epochs",
    "image-dim": "symbolic.image-dim",
    "memory-dim": "symbolic.memory-dim",
    "instr-dim": "symbolic.instr-dim",
    "number-actions": "num-actions",
    "save-interval": "run.checkpoint-every",
    "log-interval": "run.log-every",
    "seed": "run.seed",
    "batch-size": Instead("give the number of minibatches of an update: --ppo.minibatches"),
    "arch": Choice({"expert_filmcnn": ()}, "--agent symbolic has the network expert_filmcnn"),
    "instr-arch": Choice({"gru": ()}, "--agent symbolic reads instructions with a GRU"),
    "hrl": Choice({"vanilla": ()}, "--agent symbolic has no hierarchy"),
    "sampling-temperature": Choice({"1": ()}, "actions are sampled with their probabilities"),
}

TRAIN = Table(
    "GLAM's train_language_agent.py and train_symbolic_ppo.py",
    {**_LAUNCHER, **{f"rl_script_args.{name}": meaning for name, meaning in _SCRIPT.items()}, **_SYMBOLIC},
    hydra=True,
)

_OF_RUN = Instead("the run has its own settings: name its folder")
_TEST: dict[str, Meaning] = {
    **dict.fromkeys(_SCRIPT, _OF_RUN),
    "seed": "seed",
    "number_episodes": "episodes",
    "name_environment": _ENV,
    "random_agent": Choice({"true": ("--random",), "false": ()}, "give --random"),
    "bot": Choice({"true": ("--bot",), "false": ()}, "give --bot"),
    "language": Choice({"english": ()}, "French is a test: --tests go_to+french"),
    "zero_shot": Instead("a model without RL is --model MODEL; a trained one is the folder of its run"),
    "modified_action_space": Choice({"false": ()}, _TESTS.remedy),
    "new_action_space": _TESTS,
    "get_example_trajectories": Choice({"false": ()}, "`llmrl envs demos` writes them, or `llmrl glam clone`: --from"),
    "im_learning": Choice({"false": ()}, "a model of `llmrl glam clone` is --model RUN/model"),
    "im_path": Instead("a model of `llmrl glam clone` is --model RUN/model"),
    "saving_path_logs": Instead("results are in the runs' folders; others are in --out"),
    "saving_path_model": _OF_RUN,
}
_TEST_LAUNCHER = {name: meaning for name, meaning in _LAUNCHER.items() if isinstance(meaning, Instead)}
TEST = Table(
    "GLAM's post-training_tests.py",
    {
        **_TEST_LAUNCHER,
        **{name: Instead("options are those of the run: leave it out") for name in ("config-path", "config-name")},
        "lamorel_args.llm_args.model_path": "model",
        "lamorel_args.llm_args.parallelism.model_parallelism_size": Instead("agents are tested on the run's --mesh"),
        "lamorel_args.log_level": Instead("leave it out"),
        **{f"rl_script_args.{name}": meaning for name, meaning in _TEST.items()},
    },
    hydra=True,
)

CLONE = Table(
    "GLAM's clm_behavioral-cloning.py",
    {
        "model_dir": "model",
        "seed": "run.seed",
        "data_dir": Instead("give a file of `llmrl envs demos`: --demos"),
        "file_name": Instead("give a file of `llmrl envs demos`: --demos"),
        "file_id": Instead("give a file of `llmrl envs demos`: --demos"),
        "output_dir": _FOLDER,
        "per_device_batch_size": Instead("batches are of all devices: --sft.batch-size"),
        "gradient_accumulation_steps": Instead("give --sft.batch-size, and in how many parts: --sft.microbatches"),
    },
)
