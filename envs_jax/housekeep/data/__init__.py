"""Files of the world: preferences, and the four tasks."""
