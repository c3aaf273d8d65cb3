"""The Agent Client Protocol's skills: what a client is sent, and what is read of its conversation with an agent.

Plain values in, plain values out.
"""

from mcp_skills_server.dialects.acp.fields import (
    COMMANDS_UPDATE,
    DETAILS,
    EXTENSION_METHOD,
    NESTED,
    NOTIFICATION,
    OURS,
    SKILLS_UPDATE,
    UPDATE,
)
from mcp_skills_server.dialects.acp.messages import (
    Answer,
    Ending,
    Hello,
    Key,
    Setup,
    answered,
    asked,
    may_answer,
    may_ask,
    may_update,
    opened,
    spoken,
    starts_servers,
)
from mcp_skills_server.dialects.acp.setup import server, with_server
from mcp_skills_server.dialects.acp.skills import (
    AvailableSkill,
    available,
    entry,
    read_skills,
    refusal,
    split_tools,
)
from mcp_skills_server.dialects.acp.updates import (
    Takes,
    capability,
    kinds,
    message,
    notifications,
    takes,
    updated,
)

__all__ = [
    "COMMANDS_UPDATE",
    "DETAILS",
    "EXTENSION_METHOD",
    "NESTED",
    "NOTIFICATION",
    "OURS",
    "SKILLS_UPDATE",
    "UPDATE",
    "Answer",
    "AvailableSkill",
    "Ending",
    "Hello",
    "Key",
    "Setup",
    "Takes",
    "answered",
    "asked",
    "available",
    "capability",
    "entry",
    "kinds",
    "may_answer",
    "may_ask",
    "may_update",
    "message",
    "notifications",
    "opened",
    "read_skills",
    "refusal",
    "server",
    "split_tools",
    "spoken",
    "starts_servers",
    "takes",
    "updated",
    "with_server",
]
