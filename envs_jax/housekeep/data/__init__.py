"""Files of the environment: preferences, and the four tasks."""
