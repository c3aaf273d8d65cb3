"""The methods of requests about skills, and the faults that errors become, whatever the transport. No SDK here."""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping
from typing import Any, Final, NamedTuple

from mcp_skills_server.catalog.view import View
from mcp_skills_server.dialects.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, QUOTA_EXCEEDED
from mcp_skills_server.errors import REPEATS, NotServedError, RequestError, SkillsServerError
from mcp_skills_server.format.dependencies import Served
from mcp_skills_server.runtime.quota import Owner, QuotaError
from mcp_skills_server.server import prompts, resources, skills
from mcp_skills_server.server.attachment import Attachment
from mcp_skills_server.server.notify import Peer
from mcp_skills_server.server.requests import Caller, Handler, Params, Result, Settings
from mcp_skills_server.telemetry.events import Outcome

logger = logging.getLogger(__name__)

MODERN_VERSIONS: Final = ("2026-07-28",)
"""Revisions of the protocol in which every request carries its own envelope."""
LEGACY_NOT_FOUND: Final = -32002
"""The code of an unknown resource in the legacy era."""


async def complete(view: View, settings: Settings, caller: Caller, params: Params) -> Result:
    """`completion/complete`: of a prompt's argument, or of the template of skill files."""
    of_prompt = settings.prompts and params["ref"].get("type") == "ref/prompt"
    return await (prompts.complete_argument if of_prompt else resources.complete)(view, settings, caller, params)


SKILLS: Final[Mapping[str, Handler]] = {
    "skills/list": skills.list_skills,
    "skills/get": skills.get_skill,
    "resources/directory/read": resources.read_directory,
}
"""Methods that MCP itself does not have."""
RESOURCES: Final[Mapping[str, Handler]] = {
    "resources/list": resources.list_resources,
    "resources/templates/list": resources.list_templates,
    "resources/read": resources.read_resource,
    "completion/complete": complete,
}
PROMPTS: Final[Mapping[str, Handler]] = {"prompts/list": prompts.list_prompts, "prompts/get": prompts.get_prompt}


def served(
    attachment: Attachment,
    view: View,
    tools: frozenset[str] = frozenset(),
    others: Container[str] = (),
    uris: Container[str] = (),
) -> Served:
    """Return what a server has beside skills: our tools and prompts, and what it is given.

    Args:
        attachment: the skills of the server.
        view: what the request sees of them.
        tools: names of its own tools.
        others: names of its own prompts.
        uris: of its own resources.
    """
    settings = attachment.settings
    if settings.tools:
        tools |= {str(each["name"]) for each in attachment.tools.definitions(view.skill_set)}
    names = others
    if settings.prompts:
        names = prompts.Names(view, settings, others)
    return Served(tools=tools, prompts=names, resources=uris)


async def subscribe(attachment: Attachment, peer: Peer, uri: str, owner: Owner) -> None:
    """`resources/subscribe`, which only the legacy era has.

    Raises:
        NotServedError: there is no such resource.
        RequestError: the client watches too many.
    """
    await attachment.ready()
    canonical = resources.canonical(attachment.view(peer.principal), attachment.settings, uri)
    if canonical is None:
        raise NotServedError(uri)
    attachment.notifier.watch(peer, canonical, owner)


def unsubscribe(attachment: Attachment, peer: Peer, uri: str) -> None:
    """`resources/unsubscribe`. A URI that is not watched is passed over."""
    canonical = resources.canonical(attachment.view(peer.principal), attachment.settings, uri)
    attachment.notifier.unwatch(peer, uri if canonical is None else canonical)


class Fault(NamedTuple):
    """The error that answers a request.

    Attributes:
        code: of JSON-RPC.
        message: for people, one line.
        data: beside it; None for nothing.
    """

    code: int
    message: str
    data: Any = None


class FaultError(SkillsServerError):
    """A request is refused with a fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def outcome_of_error(code: int) -> Outcome:
    """Return the outcome, in events, of a request that is answered by an error of this code."""
    if code == INTERNAL_ERROR:
        return "failed"
    return "refused"


def outcome_of_result(result: Mapping[str, Any]) -> Outcome | None:
    """Return the outcome, in events, of a request with this result; None where the result decides nothing."""
    if result.get("isError"):
        return "refused"
    return None


def fault_of(error: Exception, method: str, *, modern: bool) -> Fault:
    """Return the fault of a handler's error: the client's by its code, a bug as -32603 without internals."""
    if isinstance(error, FaultError):
        return error.fault
    if isinstance(error, NotServedError):
        return Fault(INVALID_PARAMS if modern else LEGACY_NOT_FOUND, str(error), {"uri": error.uri})
    if isinstance(error, QuotaError):
        return Fault(QUOTA_EXCEEDED, str(error), {"quota": error.quota})
    if isinstance(error, RequestError):
        return Fault(INVALID_PARAMS, str(error))
    logger.error("%s failed", method, exc_info=error, extra=REPEATS)
    return Fault(INTERNAL_ERROR, "Internal error")
