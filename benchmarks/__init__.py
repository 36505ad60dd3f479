"""Our speed and that of peers, measured in the same run on the same machine."""
