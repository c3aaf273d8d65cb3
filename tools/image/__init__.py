"""`make image`: the container image is built and tried out, without a Docker engine, by the clients of the tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "tests"))
