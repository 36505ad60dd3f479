"""Fine-tuning runs: the model, its data, and the files that a run writes."""
