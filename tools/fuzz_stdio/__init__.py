"""What `make fuzz-stdio` is made of. It says what the tests say."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent.parent / "tests"))
