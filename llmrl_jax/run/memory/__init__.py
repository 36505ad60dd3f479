"""Will a run fit? The memory of a step on each device, compiled ahead of time."""
