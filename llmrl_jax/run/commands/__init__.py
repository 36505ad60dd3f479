"""The groups of the command line: one module per group, see `llmrl_jax.run.cli`."""
