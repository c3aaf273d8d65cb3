"""`make soak`: a deployment under load and kills, observed by the clients of the tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "tests"))
