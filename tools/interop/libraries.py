"""Client libraries, which small programs of tests/interop/clients drive."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.interop.checks import Check, all_there, parse_checks
from tools.interop.installation import CLIENT, EXT_SKILLS, PACKAGES, PYTHON_PACKAGES
from tools.interop.places import CACHE, HERE, NODE, ROOT, SKILLS
from tools.interop.processes import call
from tools.interop.server import ERAS, SERVE, bundles


@dataclass(frozen=True, slots=True)
class Library:
    """A client library, which a small program of tests/interop/clients drives.

    Attributes:
        name: what the table calls it.
        version: as installed.
        suite: its name in the baseline.
        command: the program, to be followed by the protocol version and the target.
        kinds: what it sees: each skill, file, tool and prompt, and each use of a skill by tools.
        eras: those that it can be made to speak.
        serve: starts another server than ours, to be followed by a folder; that one is driven over stdio alone.
    """

    name: str
    version: str
    suite: str
    command: Sequence[str]
    kinds: frozenset[str]
    eras: tuple[str, ...] = tuple(ERAS)
    serve: Sequence[str] = ()


def client(library: Library, era: str, url: str | None, folder: Path = SKILLS) -> list[Check]:
    """Have a client library judge the server over HTTP, or without a URL over stdio on a folder."""
    program, *arguments = library.serve or SERVE
    target = {"url": url} if url else {"command": program, "args": [*arguments, str(folder)]}
    checks = parse_checks(era, json.loads(call([*library.command, ERAS[era], json.dumps(target)], home=True)))
    if folder == SKILLS:
        # A list that was refused has its own failure; what would have been in it is not counted.
        refused = {"skill", "file"} if any(check.id == "list" and not check.good for check in checks) else set[str]()
        wanted = {kind: count for kind, count in bundles().items() if kind in library.kinds - refused}
        checks.append(all_there(era, checks, wanted))
    return checks


def _typescript(library: str) -> list[str]:
    """The command for a TypeScript library. Node looks for packages beside the program, so it is put there."""
    program = CACHE / "typescript.mjs"
    shutil.copyfile(HERE / "clients" / "typescript.mjs", program)
    return [str(NODE), str(program), library]


def libraries(pythons: Mapping[str, Path]) -> Iterator[Library]:
    """The client libraries that are there."""
    skills, tools, prompts = frozenset({"skill", "file"}), frozenset({"tool", "use"}), frozenset({"prompt"})
    all_kinds = skills | tools | prompts
    yield Library("TypeScript SDK", PACKAGES[CLIENT], "sdk", _typescript("sdk"), all_kinds)
    yield Library("TypeScript ext-skills", PACKAGES[EXT_SKILLS], "ext-skills", _typescript("ext-skills"), skills)

    def python(suite: str, program: str, *arguments: str) -> list[str]:
        return [str(pythons[suite]), str(HERE / "clients" / program), *arguments]

    if "fastmcp" in pythons:
        command = python("fastmcp", "fastmcp_client.py")
        yield Library("FastMCP client", PYTHON_PACKAGES["fastmcp"][1], "fastmcp", command, all_kinds)
    if "fastmcp-server" in pythons:
        name, version = "FastMCP with attach()", PYTHON_PACKAGES["fastmcp-server"][1]
        command, serve = (python("fastmcp-server", f"fastmcp_{each}.py") for each in ("client", "server"))
        yield Library(name, version, "fastmcp-server", command, all_kinds, serve=serve)
    ours = [sys.executable, str(HERE / "clients" / "ours.py")]
    if "fastmcp-server" in pythons:  # in the legacy era it has resources alone, and not all
        serve = [str(pythons["fastmcp-server"]), str(ROOT / "bench" / "servers" / "fastmcp_server.py")]
        version = PYTHON_PACKAGES["fastmcp-server"][1]
        yield Library("our client, FastMCP", version, "ours fastmcp", ours, frozenset({"skill"}), serve=serve)
    program = CACHE / "server.mjs"
    shutil.copyfile(ROOT / "bench" / "servers" / "typescript.mjs", program)
    for name, package in (("ext-skills", EXT_SKILLS), ("typescript-sdk", "@modelcontextprotocol/server")):
        serve = [str(NODE), str(program), name]
        yield Library(f"our client, {name}", PACKAGES[package], f"ours {name}", ours, skills, serve=serve)
    # These know tools alone, and the first two have their SDK choose the era.
    for suite, eras in (("langchain", ("legacy",)), ("openai-agents", ("modern",)), ("pydantic-ai", tuple(ERAS))):
        if suite in pythons:
            command = python(suite, "tools_alone.py", suite)
            yield Library(suite, PYTHON_PACKAGES[suite][1], suite, command, tools, eras)
