"""Programs that a language model wrote (`llmrl_jax.advice.sandbox`)."""
