"""The Agent Skills Runtime: overview texts for models, and tools to load, read and run skills.

Pure functions. Every text depends on the skills alone, which keeps prompt caches valid. Text and
structure of a result are each complete, because some hosts give a model only one of the two.
"""

from mcp_skills_server.dialects.runtime import apps
from mcp_skills_server.dialects.runtime.definitions import (
    DEFAULT_HITS,
    DEFAULT_LISTED,
    argument_schemas,
    definitions,
    proposing,
)
from mcp_skills_server.dialects.runtime.overview import (
    OVERVIEW_CHARACTERS,
    Shown,
    available,
    groups,
    in_instructions,
    in_loading,
    instructions,
    round_robin,
    shown_part,
)
from mcp_skills_server.dialects.runtime.results import (
    RESULT_CHARACTERS,
    binary_file,
    change_notice,
    depends_on,
    entry,
    failure,
    listing,
    load_result,
    nothing_fits,
    output_file,
    proposal_list,
    proposal_stored,
    recall_notice,
    script_result,
    text_file,
    unread_notice,
    with_note,
)
from mcp_skills_server.dialects.runtime.words import (
    CONVERSATION,
    LIST,
    LIST_CHANGED,
    LOAD,
    PROPOSALS,
    PROPOSE,
    READ,
    RUN,
    SCRIPTS,
    SEARCH,
    SESSION,
    UNLOAD,
    WORKSPACE,
    Loaded,
    Offer,
    Overview,
    ToolResult,
    canonical,
    changed,
    hidden_remarks,
    in_workspace,
    is_offered,
    is_usable,
    problems,
    scripts_of,
)

__all__ = [
    "CONVERSATION", "DEFAULT_HITS", "DEFAULT_LISTED", "LIST", "LIST_CHANGED", "LOAD",
    "OVERVIEW_CHARACTERS", "PROPOSALS", "PROPOSE", "READ", "RESULT_CHARACTERS", "RUN", "SCRIPTS",
    "SEARCH", "SESSION", "UNLOAD", "WORKSPACE",
    "Loaded", "Offer", "Overview", "Shown", "ToolResult", "apps", "argument_schemas", "available",
    "binary_file", "canonical", "change_notice", "changed", "definitions", "depends_on", "entry",
    "failure", "groups", "hidden_remarks", "in_instructions", "in_loading", "in_workspace",
    "instructions", "is_offered", "is_usable", "listing", "load_result", "nothing_fits",
    "output_file", "problems", "proposal_list", "proposal_stored", "proposing", "recall_notice",
    "round_robin", "script_result", "scripts_of", "shown_part", "text_file", "unread_notice",
    "with_note",
]  # fmt: skip
