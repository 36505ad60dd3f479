"""KALM (Pang et al., NeurIPS 2024, arXiv 2404.09248): offline RL from a language model's imagined rollouts.

The data's way. Recorded episodes with instructions become rows of text with slots for states and actions
(`patterns`), on which a language model is grounded (`world_model`, `grounding`). For instructions that no data show it
imagines episodes (`imagination`).
"""
