"""`make image`: build the container image without a Docker engine, and test it with the clients of the tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "tests"))
