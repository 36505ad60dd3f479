"""Our speed beside that of others, measured in the same run on the same machine."""
