"""Commands whose options are the fields of a dataclass."""
