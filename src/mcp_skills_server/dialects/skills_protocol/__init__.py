"""The Skills Protocol: the names of its methods. What they take is in `requests`, what they answer in `results`."""

from __future__ import annotations

from typing import Final

LIST: Final = "list_skills"
DESCRIBE: Final = "describe_skill"
READ: Final = "read_skill_file"
EXECUTE: Final = "execute_skill"
RUN_CODE: Final = "run_code"
CREATE_BLOB: Final = "create_blob"
READ_BLOB: Final = "read_blob"
GUIDE: Final = "load_skills_protocol_guide"
METHODS: Final = (LIST, DESCRIBE, READ, EXECUTE, RUN_CODE, CREATE_BLOB, READ_BLOB, GUIDE)

GUIDE_SKILL: Final = "skills.protocol.guide"
"""The name of the built-in skill."""
DISABLED: Final = "execution_disabled"
