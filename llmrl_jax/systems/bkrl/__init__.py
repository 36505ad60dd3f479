"""BK-RL (Zhang et al., arXiv 2407.03964): a language model's background knowledge as a shaping potential.

Data flow. `collect` plays an agent that seeks novelty, and writes whole episodes (`episodes`). A chat model then judges
behaviour, in one of three ways, about windows of these episodes in words (`prompts`, `advice`): it writes a program
(`programs`), says which of two windows is better (`preferences`), or names goals (`goals`). Each becomes a potential on
disk and on the device (`potentials`), in units of its standard deviation on the collected data. `train` runs PPO with
`llmrl_jax.rl.shaping.Shaping`, in which no language model takes part.
"""
