"""Where the repository and the recorded data of tests are."""

from pathlib import Path


ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests" / "data"
