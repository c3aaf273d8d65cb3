"""Rewrite tests/golden, tests/web/recorded.json and what docs/ has from the code; review the difference."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "server")]

from test_golden import CASES, GOLDEN  # noqa: E402
from tools.reference import man, pages  # noqa: E402

from commands.test_fields import GOLDEN_OPTIONS, bounds_and_defaults  # noqa: E402
from dialects.test_runtime_overview import SIZES, golden_file, golden_text  # noqa: E402
from mcp_skills_server.dialects import runtime  # noqa: E402
from test_documents import MANUAL  # noqa: E402
from web import recorded  # noqa: E402
from web.test_protocols import PAGE, page  # noqa: E402
from wire import serving  # noqa: E402


def main() -> None:
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8", newline="")
    MANUAL.write_text(man(), encoding="utf-8", newline="")
    for name, text in pages().items():
        (ROOT / "docs" / name).write_text(text, encoding="utf-8", newline="")
    GOLDEN_OPTIONS.write_text(bounds_and_defaults(), encoding="utf-8", newline="")
    recorded.FILE.write_text(recorded.record(), encoding="utf-8", newline="")
    for name, root, options, extension, method, params in CASES:
        with serving(root, *options, era="modern", extension=extension) as wire:
            result = wire.request(method, params)
        del result["_meta"]
        text = json.dumps(result, indent=2, ensure_ascii=False) + "\n"
        (GOLDEN / f"{name}.json").write_text(text, encoding="utf-8", newline="")
    proposing = json.dumps(runtime.proposing(), indent=2) + "\n"
    (GOLDEN / "tools.proposals.json").write_text(proposing, encoding="utf-8", newline="")
    for size in SIZES:
        golden_file(size).write_text(golden_text(size), encoding="utf-8", newline="")


if __name__ == "__main__":
    main()
