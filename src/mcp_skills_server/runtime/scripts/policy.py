"""The execution policy: authorization of script runs, with their network access and secrets.

A run needs the caller's grant, if there are grants, and a trusted source. The operator's own
folders are trusted, and so is a skill of an allowed origin whose exact content was approved.
Network and secrets are per skill. Decisions use the digests that the runner verifies again when it
lays out the files, which prevents a TOCTOU race.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple
from urllib.parse import urlsplit

from mcp_skills_server.access.grants import Permissions
from mcp_skills_server.catalog.fetched import UNKNOWN
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.errors import RequestError, UsageError, listed
from mcp_skills_server.format import identity
from mcp_skills_server.format import manifest as manifests
from mcp_skills_server.format.manifest import SKILL_TOML
from mcp_skills_server.format.uris import bare
from mcp_skills_server.model import Skill, printable
from mcp_skills_server.runtime.scripts import approvals
from mcp_skills_server.runtime.scripts.settings import ScriptSettings

logger = logging.getLogger(__name__)

_PORTS: Final = {"https": ":443", "http": ":80"}
_INSTEAD: Final = "Read the script and reach its result another way, or ask the user"


class RunRefusedError(RequestError):
    """A refusal to run a script or code; the message has the reason, for a model.

    `by` is the missing condition: a "grant", a trusted "source", or a "secret".
    """

    def __init__(self, message: str, by: Literal["grant", "source", "secret"]) -> None:
        super().__init__(message)
        self.by: Final = by


class RunRights(NamedTuple):
    """The rights of a run: network access, and the secrets that `skill.toml` declares."""

    network: bool
    secrets: Mapping[str, str]


def canonical(origin: str) -> str:
    """Return the canonical form of an origin for comparison; "" for an unknown origin.

    The form of a site is its URL without index, query and default port; that of an archive is its
    real path. Other origins with a scheme (git, a registry) are canonical already.
    """
    if origin == UNKNOWN:
        return ""
    if "://" not in origin:
        return os.path.realpath(origin)
    # late: a slow import that is rarely needed
    from mcp_skills_server.dialects.wellknown import DIRECTORY, INDEX, is_site

    if not is_site(origin):
        return origin
    parts = urlsplit(bare(origin))
    scheme = parts.scheme.lower()
    host = parts.netloc.lower().removesuffix(_PORTS[scheme])
    return f"{scheme}://{host}{parts.path.removesuffix(DIRECTORY + INDEX)}".rstrip("/")


def reference(skill: Skill) -> str:
    """Return the unambiguous name of a skill in an operator's options: `[ORIGIN#]PATH`."""
    return skill.path if skill.origin is None else f"{canonical(skill.origin)}#{skill.path}"


class ExecutionPolicy:
    """The authorization of script runs, with their network access and secrets."""

    def __init__(self, registry: Registry, settings: ScriptSettings) -> None:
        self._registry = registry
        self._settings = settings
        self._origins = frozenset(settings.origins) - {""}
        self._roots = settings.roots
        file = settings.approvals
        self._file = approvals.default_file() if file is None else Path(file)
        if file is not None and not self._origins and not any(self._roots.values()):
            logger.warning(
                "--approvals %s is not used without --allow-scripts-of ORIGIN", printable(file)
            )
        self._reported: set[tuple[str, str]] = set()

    def decide(
        self,
        skill: Skill | None,
        laid_out: Collection[Skill],
        *,
        permissions: Permissions | None = None,
        needs: Collection[str] = (),
    ) -> RunRights:
        """Return the rights of a run. Blocks, because it reads files to digest them.

        Args:
            skill: the skill of the script; None for code from a call.
            laid_out: all skills whose files the run can read, including `skill`.
            permissions: those of the caller; None if there are no grants.

        Raises:
            RunRefusedError: the run is not allowed. The message says what can be done.
            OSError: a file changed, or cannot be read.
        """
        if permissions is not None:
            _check_grants(permissions, skill, laid_out)
        for laid in laid_out:
            self._check_source(laid)
        given: Mapping[str, str] = {}
        if skill is not None:
            given = self._settings.secrets.get(reference(skill), {})
        missing = [name for name in needs if name not in given]
        if missing and skill is not None:
            raise RunRefusedError(
                f"{printable(skill.path)} needs {listed(missing)}, which the operator of this "
                "server has not given to it",
                "secret",
            )
        named = self._settings.network_of
        network = bool(laid_out) and all(reference(laid) in named for laid in laid_out)
        return RunRights(self._settings.network or network, self._declared(skill, given))

    def _declared(self, skill: Skill | None, given: Mapping[str, str]) -> Mapping[str, str]:
        """Return the given secrets that the skill declares in its `skill.toml`."""
        if not given or skill is None or SKILL_TOML not in skill.files:
            return {}
        raw = self._registry.read(skill.files[SKILL_TOML])
        manifest = manifests.read(raw, skill.frontmatter, skill.path, skill.files).manifest
        if manifest is None:
            return {}
        return {name: given[name] for name in manifest.secrets if name in given}

    def _check_source(self, skill: Skill) -> None:
        root = self._registry.roots[skill.root]
        is_allowed = self._roots.get(root.given)  # None if the operator did not name this root
        if is_allowed is False:
            raise _untrusted(
                skill,
                "the operator of this server has excluded the scripts of its source. " + _INSTEAD,
            )
        if skill.origin is not None:
            # Trust in one of the operator's own folders does not extend to a skill of another
            # origin in it.
            is_named = is_allowed is True and root.origin is not None
            self._check_origin(skill, skill.origin, named=is_named)

    def _check_origin(self, skill: Skill, given: str, *, named: bool) -> None:
        origin, shown = canonical(given), printable(identity.shown_origin(given))
        if origin not in self._origins and not named:
            raise _untrusted(
                skill,
                f"it comes from {shown}, and the operator of this server has not allowed the "
                f"scripts of that origin (--allow-scripts-of). {_INSTEAD}",
            )
        digest = self._registry.digest_over(skill)
        try:
            known = [
                approval for approval in approvals.read(self._file) if approval.origin == origin
            ]
        except UsageError as error:
            logger.warning("%s", error)
            why = "the operator of this server must repair the approvals file"
            raise _untrusted(skill, why) from None
        if any(approval.digest == digest for approval in known):
            return
        earlier = [approval for approval in known if approval.skill == skill.path]
        state = "was never approved"
        if earlier:
            state = f"changed since it was approved on {earlier[-1].day}"
        self._report(skill, digest, state)
        command = f"scripts approve ROOT {shlex.quote(printable(skill.path))} --digest {digest}"
        raise _untrusted(
            skill,
            f"it comes from {shown} and {state}. The operator of this server must read it and run: "
            f"mcp-skills-server {command}",
        )

    def _report(self, skill: Skill, digest: str, state: str) -> None:
        if (skill.path, digest) not in self._reported:
            self._reported.add((skill.path, digest))
            root = self._registry.roots[skill.root].shown
            command = shlex.join(["scripts", "approve", root, skill.path, "--digest", digest])
            words = "%s %s, and its scripts are not run; mcp-skills-server %s"
            logger.warning(words, skill.path, state, command)


def _untrusted(skill: Skill, why: str) -> RunRefusedError:
    return RunRefusedError(f"The scripts of {printable(skill.path)} are not run: {why}", "source")


def _check_grants(
    permissions: Permissions, skill: Skill | None, laid_out: Collection[Skill]
) -> None:
    """Raise RunRefusedError without a grant for the script's skill, or for all skills of code."""
    if skill is not None:
        if permissions.permits("scripts", skill.path):
            return
        thing = f"A script of {printable(skill.path)}"
    elif not permissions.permits_any("code"):
        thing = "Code"
    else:
        withheld = next(
            (laid for laid in laid_out if not permissions.permits("code", laid.path)), None
        )
        if withheld is None:
            return
        thing = f"Code with the files of {printable(withheld.path)}"
    raise RunRefusedError(
        f"{thing} is not run for you: the operator of this server has not granted it. Reach the "
        "result another way, or ask the user",
        "grant",
    )
