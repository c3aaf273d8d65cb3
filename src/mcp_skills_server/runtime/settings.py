"""The settings of a `Runtime`, which the operator of a server chooses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mcp_skills_server.dialects import runtime


class RuntimeSettings(NamedTuple):
    """The settings of a `Runtime`.

    Attributes:
        max_loaded: the most skills that a session may have loaded at once.
        overview_characters: the limit of the instructions, without loaded skills, and of the load
            tool's description, each, in characters. None means 4,000, or more for hosts known not
            to truncate.
        result_characters: the most characters of a file, of instructions or of descriptions in
            the result of one call.
        media_bytes: the largest image or sound returned as an MCP media block, in bytes.
        absolute_paths: return locations as local paths instead of URIs, for agents on this disk.
        local_root_dirs: return the directory of a skill from a local folder as a path, for hosts
            on this machine whose shell runs its scripts; locations stay URIs.
        preferred_tags: tags of skills whose descriptions come first if not all fit.
        preferred_paths: paths of skills whose descriptions come next.
        load_dependencies: also load the skills in `dependencies.skills` of a loaded skill, and
            name their own dependencies.
    """

    max_loaded: int = 8
    overview_characters: int | None = None
    result_characters: int = runtime.RESULT_CHARACTERS
    media_bytes: int = 1 << 20
    absolute_paths: bool = False
    local_root_dirs: bool = False
    preferred_tags: Sequence[str] = ()
    preferred_paths: Sequence[str] = ()
    load_dependencies: bool = False
