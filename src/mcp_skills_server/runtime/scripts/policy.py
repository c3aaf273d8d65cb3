"""Whose scripts run, and with what: those of the operator's own folders, and of named origins what was approved as it
stands; the network and secrets by skill.

The one place that decides it, for every protocol. What is asked for is decided by the digests that the files are laid
out by, so that nothing can change between the answer and the run.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from mcp_skills_server.catalog.fetched import UNKNOWN
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.dialects.wellknown import DIRECTORY, is_site
from mcp_skills_server.errors import RequestError, UsageError
from mcp_skills_server.format import manifest as manifests
from mcp_skills_server.format.manifest import SKILL_TOML
from mcp_skills_server.format.uris import bare
from mcp_skills_server.model import Skill, printable
from mcp_skills_server.runtime.scripts import approvals
from mcp_skills_server.runtime.scripts.settings import ScriptSettings

logger = logging.getLogger(__name__)

_INDEX: Final = f"{DIRECTORY}index.json"
_PORTS: Final = {"https": ":443", "http": ":80"}


def canonical(origin: str) -> str:
    """An origin as it is compared: of a site its address without index, query and default port; of an archive its path.

    What else has a scheme (git, a registry) is spelled in one way only.

    "" for what no operator can name.
    """
    if origin == UNKNOWN:
        return ""
    if not is_site(origin):
        return origin if "://" in origin else os.path.realpath(origin)
    parts = urlsplit(bare(origin))
    scheme = parts.scheme.lower()
    host = parts.netloc.lower().removesuffix(_PORTS[scheme])
    return f"{scheme}://{host}{parts.path.removesuffix(_INDEX)}".rstrip("/")


def reference(skill: Skill) -> str:
    """How an operator names a skill so that no other source's skill of that path is meant: `[ORIGIN#]PATH`."""
    return skill.path if skill.origin is None else f"{canonical(skill.origin)}#{skill.path}"


class Policy:
    """Decides whether scripts of a skill run, and what they get.

    Args:
        registry: where files are read.
        settings: what the operator chose.
    """

    def __init__(self, registry: Registry, settings: ScriptSettings) -> None:
        self._registry = registry
        self._settings = settings
        self._origins = frozenset(settings.origins) - {""}
        self._roots = settings.roots
        file = settings.approvals
        self._file = approvals.default_file() if file is None else Path(file)
        if file is not None and not self._origins and not any(self._roots.values()):
            logger.warning("--approvals %s is not used: --allow-scripts-of says of which origins", printable(file))
        self._reported: set[tuple[str, str]] = set()

    def check(self, skills: Iterable[Skill]) -> None:
        """Prove that scripts of these skills may run as they are. Blocks: files are read for their digests.

        Raises:
            RequestError: they may not. The message says what the operator can do.
            StaleFileError: a file changed.
        """
        for skill in skills:
            root = self._registry.roots[skill.root]
            said = self._roots.get(root.given)
            if said is False:
                raise RequestError(
                    f"The scripts of {printable(skill.path)} are not run: whoever runs this server has excluded the "
                    "scripts of its source. Read the script and reach its result another way, or ask the user"
                )
            if skill.origin is not None:
                # What a folder of the operator's own holds of another origin is not what was said of the folder.
                self._check(skill, skill.origin, named=said is True and root.origin is not None)

    def network(self, skills: Collection[Skill]) -> bool:
        """Whether a run for which these skills are laid out may use the network: each of them must be allowed to."""
        named = self._settings.network_of
        return self._settings.network or (bool(skills) and all(reference(each) in named for each in skills))

    def secrets(self, skill: Skill) -> Mapping[str, str]:
        """The variables that the operator gave to this skill and to no other one, whether it declares them or not."""
        return self._settings.secrets.get(reference(skill), {})

    def declared_secrets(self, skill: Skill) -> Mapping[str, str]:
        """Those of them that the skill's `skill.toml` declares. Blocks.

        Raises:
            StaleFileError: the file changed.
        """
        own, file = self.secrets(skill), skill.files.get(SKILL_TOML)
        if not own or file is None:
            return {}
        found = manifests.read(self._registry.read(file), skill.frontmatter, skill.path, skill.files).manifest
        return {} if found is None else {name: own[name] for name in found.secrets if name in own}

    def _check(self, skill: Skill, shown: str, *, named: bool) -> None:
        name, origin = printable(skill.path), canonical(skill.origin or "")
        if origin not in self._origins and not named:
            raise RequestError(
                f"The scripts of {name} are not run: it comes from {printable(shown)}, and whoever runs this server "
                "has not allowed the scripts of that origin (--allow-scripts-of). Read the script and reach its result "
                "another way, or ask the user"
            )
        digest = self._registry.digest_over(skill)
        try:
            known = [each for each in approvals.read(self._file) if each.origin == origin]
        except UsageError as error:
            logger.warning("%s", error)
            raise RequestError(
                f"The scripts of {name} are not run: whoever runs this server must put the file of approvals in order"
            ) from None
        if any(each.digest == digest for each in known):
            return
        before = next((each for each in reversed(known) if each.skill == skill.path), None)
        state = "was never approved" if before is None else f"changed since it was approved on {before.day}"
        self._report(skill, digest, state)
        raise RequestError(
            f"The scripts of {name} are not run: it comes from {printable(shown)} and {state}. Whoever runs this "
            f"server must read it and run: mcp-skills-server approve ROOT {shlex.quote(name)} --digest {digest}"
        )

    def _report(self, skill: Skill, digest: str, state: str) -> None:
        if (skill.path, digest) not in self._reported:
            self._reported.add((skill.path, digest))
            root = self._registry.roots[skill.root].shown
            command = shlex.join(["approve", root, skill.path, "--digest", digest])
            logger.warning("%s %s, and its scripts are not run; mcp-skills-server %s", skill.path, state, command)
