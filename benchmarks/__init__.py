"""Speed of our code and of peers, measured in the same run on the same machine."""
