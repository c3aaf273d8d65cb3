"""What `make soak` is made of. It asks with the clients of the tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "tests"))
