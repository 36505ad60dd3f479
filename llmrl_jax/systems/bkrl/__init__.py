"""BK-RL (Zhang et al., arXiv 2407.03964): a language model's background knowledge as a shaping potential.

The data's way. `collecting` plays an agent that seeks novelty, and writes whole episodes (`collected`; `published` is
the original layout). A chat model then says what is worth striving for, in one of three ways, about windows of these
episodes in words (`worlds`): it writes a program (`programs`), says which of two windows is better (`preferences`), or
names goals (`goals`). Each becomes a potential on disk (`manifest`) and on the device (`potentials`), in units of its
standard deviation on the collected data. `training` runs PPO with `llmrl_jax.rl.shaping.Shaping`, in which no language
model takes part.
"""
