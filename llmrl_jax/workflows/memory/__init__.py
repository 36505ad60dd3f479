"""Does a run fit into memory? The memory of a step on each device, compiled ahead of time."""
