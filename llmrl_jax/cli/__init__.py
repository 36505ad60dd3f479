"""The command line: `llmrl <group> <command>`."""
