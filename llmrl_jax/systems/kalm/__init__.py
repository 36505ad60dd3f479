"""KALM (Pang et al., NeurIPS 2024, arXiv 2404.09248): offline RL from a language model's imagined rollouts.

Data flow. Recorded episodes with instructions (`collect`) become rows of text with slots for states and actions
(`prompts`), on which a language model is grounded (`world_model`, `ground`). It imagines episodes for
instructions that no data show (`imagine`); offline RL learns from both (`train`), and is tested on all levels (`eval`).
"""
