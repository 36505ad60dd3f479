"""ProPS: a language model, or a numeric method in its place, searches for the parameters of a small policy."""
