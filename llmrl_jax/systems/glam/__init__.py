"""GLAM (Carta et al., ICML 2023): the language model is the policy, improved by online RL."""
