"""BK-RL (Zhang et al., arXiv 2407.03964): a language model's background knowledge as a shaping potential.

Data flow. `collect` plays an agent that seeks novelty, and writes whole episodes. A chat model then judges behaviour in
windows of these episodes, which it reads in words (`prompts`, `advice`), in one of three ways: it writes a program
(`programs`), says which of two windows is better (`preferences`), or names goals (`goals`). Each becomes a potential on
disk and on the device (`potentials`), in units of its standard deviation on the collected data. `train` runs PPO with
`llmrl_jax.rl.shaping.Shaping`, in which no language model takes part.
"""
