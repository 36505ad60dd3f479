"""The run: the outer loop over jitted updates, checkpoints, metrics, pictures, and the command line."""
