"""Options of KALM's published programs on our commands."""

from __future__ import annotations

from llmrl_jax.options.published import Choice, Instead, Same, Table


_DEVICE = Instead("jax takes the accelerator; the variable JAX_PLATFORMS chooses another, as in JAX_PLATFORMS=cpu")
_FOLDER = Instead("results are in the folder of a run: give --run.out FOLDER and --run.name NAME")
_OF_DATA = Instead("sizes and kinds of states and actions are those of --data: leave it out")
_NO_EFFECT = Instead("it has no effect there: leave it out")
_WORDS = Instead("rows have the length of --length, and each instruction is tokenized whole: leave it out")
_ROWS = Instead("batches are of all devices: give --sft.batch-size")

GROUND = Table(
    "KALM's train_t2t.py",
    {
        "dataset_path": "data",
        "pretrained_path": "model",
        "pattern_num": "patterns",
        "validation_ratio": "held-out",
        "learning_rate": "sft.learning-rate",
        "num_train_epochs": "epochs",
        "weight_decay": "sft.weight-decay",
        "warmup_ratio": "sft.warmup",
        "lr_scheduler_type": Choice(
            {name: ("--sft.schedule", name) for name in ("linear", "cosine", "constant")}, "give --sft.schedule"
        ),
        "adam_beta1": "sft.adam-b1",
        "adam_beta2": "sft.adam-b2",
        "adam_epsilon": "sft.adam-eps",
        "max_grad_norm": "sft.max-grad-norm",
        "logging_steps": "run.log-every",
        "eval_steps": "run.eval-every",
        "save_steps": "run.checkpoint-every",
        "save_total_limit": "run.keep",
        "seed": "run.seed",
        "per_device_train_batch_size": _ROWS,
        "gradient_accumulation_steps": Instead("give --sft.batch-size, and in how many parts: --sft.microbatches"),
        "bf16": Instead("give --dtype mixed"),
        "fp16": Instead("give --dtype mixed"),
        "deepspeed": Instead("give the devices with --mesh, as in --mesh fsdp=4"),
        "output_dir": _FOLDER,
        "resume_from_checkpoint": Instead("give --run.resume RUN"),
        "max_traj_len": _OF_DATA,
        "observation_dim": _OF_DATA,
        "action_dim": _OF_DATA,
        "observation_type": _OF_DATA,
        "action_type": _OF_DATA,
        "inst_token_trunc": _WORDS,
        "inst_token_max_len": _WORDS,
        "preprocess_inst_token": _WORDS,
        "pad_token_id": _WORDS,
        "include_last_observation": Choice({"true": ()}, "the last state is always a part of an episode"),
        "split_by": Choice({"index": ()}, "episodes drawn at random are held out: give --held-out"),
        "plot_loss": Instead("losses are in the folder of the run: `llmrl runs compare` draws them"),
        "load_full": Instead("sizes of the model are those of --model: leave it out"),
        "traj_ln": _NO_EFFECT,
        "pretrain_dir": _NO_EFFECT,
        "do_load_embedding": _NO_EFFECT,
        "scale_loss_ratio": Instead("it has no effect there; weights of errors are --weights.state, --weights.action"),
        "traj_start_layer": _NO_EFFECT,
    },
)

IMAGINE = Table(
    "KALM's clevr_generate.py and meta_generate.py",
    {
        "model_path": "grounded",
        "prompt_path": "data",
        "batch_size": "together",
        "seed": "run.seed",
        "output_path": _FOLDER,
        "max_trajectory_length": Instead("episodes have at most the steps of the world, 50 or 100 as published"),
        "early_stopping": Choice({"true": ()}, "episodes always end where the goal is reached", bare="true"),
        "num_tau": Instead("it counts episodes of each task: give all with --episodes"),
        "pad_token_id": Instead("padding is the tokenizer's: leave it out"),
    },
)

TRAIN = Table(
    "KALM's clevr_offline_train.py and meta_offline_train.py",
    {
        "agent_name": "agent",
        "dataset_path": "data",
        "seed": "run.seed",
        "cql_alpha": Instead(
            "the weight is an option of the algorithm: --cql.conservative-weight, or --discrete-cql.alpha"
        ),
        "ds_type": Choice(
            {"baseline": ()},
            "it names the run there; give the folder of `llmrl kalm imagine` for this level with --imagined, and a "
            "name with --run.name",
        ),
        "device": _DEVICE,
    },
)

TEST = Table(
    "KALM's clevr_offline_test.py and meta_offline_test.py",
    {
        "model_path": Same(""),
        "level": "levels",
        "agent_name": Instead("the folder of the run has its algorithm: leave it out"),
        "max_traj_len": Instead("episodes have at most the steps of the world, 50 or 100 as published"),
        "device": _DEVICE,
    },
)
