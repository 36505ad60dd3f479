"""Fine-tuning as a run: the model, its data, and what is left in the folder."""
