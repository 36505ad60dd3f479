"""ProPS: a language model, or a numeric method instead, searches for the parameters of a small policy."""
