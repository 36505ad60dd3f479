"""`python -m llmrl_jax` is `llmrl`."""

import sys

from llmrl_jax.cli.main import main


if __name__ == "__main__":
    sys.exit(main())
