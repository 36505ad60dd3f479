"""The keys and names of the two published YAML schemas (props reference, section 4)."""

from __future__ import annotations


RELEASE_TASKS = {
    "cont_space_llm_num_optim": "props",
    "cont_space_llm_num_optim_rndm_proj": "props",
    "dist_state_llm_num_optim": "props",
    "cont_state_llm_num_optim_semantics": "props+",
    "dist_state_llm_num_optim_semantics": "props+",
}
"""Dispatch keys of the release, with their methods."""

FINETUNE_TASKS = (
    "mountaincar", "pendulum", "blackjack", "cartpole", "grid_world", "hopper", "mc_continuous", "inverted_pendulum",
    "pong", "swimmer", "walker", "reacher", "double_pendulum", "inverted_double_pendulum", "half_cheetah", "maze",
    "nim", "cliff_walking", "navigation",
)  # fmt: skip
"""Dispatch keys of the fine-tuning repository; the environment is given by `gym_env_name`."""

MUJOCO = ("InvertedPendulum", "InvertedDoublePendulum", "Reacher", "Swimmer", "Hopper", "Walker2d", "HalfCheetah")

SHARED = {
    "task", "num_episodes", "gym_env_name", "render_mode", "env_kwargs", "logdir", "max_traj_count", "max_traj_length",
    "template_dir", "llm_si_template_name", "llm_output_conversion_template_name", "env_desc_file", "llm_model_name",
    "num_evaluation_episodes", "warmup_episodes", "warmup_dir", "bias", "rank", "optimum",
}  # fmt: skip
RELEASE = SHARED | {
    "dim_actions", "dim_states", "search_step_size", "ollama_num_ctx", "include_trajectories", "feedback_interval",
    "param_min", "param_max", "buffer_top_k", "buffer_recent_j",
}  # fmt: skip
FINETUNE = SHARED | {
    "experiments", "continuous", "num_position_bins", "num_theta_bins", "grid_size", "actions", "states",
    "llm_ui_template_name", "model_type", "base_model", "record_video", "use_replay_buffer", "reset_llm_conversation",
    "step_size", "print_episode", "max_limit", "title",
}  # fmt: skip

ROWS = ("hopper", "mc_continuous")
"""Dispatch keys whose dialogue shows `max_traj_length` rows of the replay buffer; the others show 100."""

WORLDS = {
    "CliffWalking-v0": "CliffWalking-v1",
    "FrozenLake-v0": "FrozenLake-v1",
    "gym_navigation:NavigationTrack-v0": "NavigationTrack-v0",
    "gym_examples/Maze-v0": "maze-sample-3x3-v0",
}
"""Older or other spellings of environment ids."""
