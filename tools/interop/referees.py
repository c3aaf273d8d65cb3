"""The referees: the conformance suite, Inspector, the npm package `skills` and client libraries."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml
from tools.interop.setup import (
    BESIDE,
    BROKEN,
    CACHE,
    CLIENT,
    CONFORMANCE,
    ERAS,
    EXT_SKILLS,
    HERE,
    INSPECTOR,
    MAX_RUN_S,
    MODULES,
    NODE,
    PACKAGES,
    PYTHON_PACKAGES,
    ROOT,
    SERVE,
    SKILLS,
    TOOLS,
    VERCEL,
    RefereeError,
    bundles,
    call,
)
from tools.interop.verdicts import Check, all_there, parse_checks

from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.model import Standing

SCENARIOS: Final = {
    "sep-2640-skills-enumeration": 32,
    "sep-2640-skills-directory": 7,
    "sep-2640-skills-manifest": 6,
}
"""The conformance scenarios for skills, and the number of checks of each: fewer mean that it was aborted."""
MAY_SKIP: Final = {
    "legacy": frozenset({"sep-2640-skills-list-cache-attributes", "sep-2640-skills-get-cache-attributes"}),
    "modern": frozenset[str](),
}
"""The only checks for skills that may be skipped: these attributes exist since 2026-07-28."""
_RESULTS = re.compile(r"server-(.+)-\d{4}-\d\d-\d\dT[0-9-]+Z")


def scenario_of(directory: str) -> str | None:
    found = _RESULTS.fullmatch(directory)
    return found[1] if found else None


def required_scenarios(raw: Mapping[str, Any]) -> set[str]:
    extra = {each["scenario"] for each in raw.get("not_scored") or () if each["leg"] == "server"}
    return set(raw["server"]) | extra


def not_run(scenarios: Iterable[str], checks: Iterable[Check]) -> list[Check]:
    seen = {check.scenario for check in checks}
    return [Check(each, "ran", "FAILURE", "no result") for each in sorted(set(scenarios) - seen)]


def too_few(checks: Sequence[Check], scenario: str, least: int) -> list[Check]:
    seen = len({check.id for check in checks})
    return [Check(scenario, "every check", "FAILURE", f"{seen} of {least} checks")] if seen < least else []


def _conformance(url: str, *arguments: str) -> list[Check]:
    program = MODULES / CONFORMANCE / "dist" / "index.js"
    with tempfile.TemporaryDirectory() as directory:
        # 1 means that a check failed; the baseline decides whether it was expected.
        call([str(NODE), str(program), "server", "--url", url, "-o", directory, *arguments], good=(0, 1))
        checks: list[Check] = []
        for path in sorted(Path(directory).glob("*/checks.json")):
            if scenario := scenario_of(path.parent.name):
                checks += parse_checks(scenario, json.loads(path.read_text(encoding="utf-8")))
    return checks


def skills_scenarios(url: str, era: str) -> list[Check]:
    checks: list[Check] = []
    for scenario, least in SCENARIOS.items():
        seen = _conformance(url, "--scenario", scenario, "--spec-version", ERAS[era], "--force")
        checks += [*seen, *too_few(seen, scenario, least)]
    return checks


def base_suite(url: str, era: str) -> list[Check]:
    """Return the checks of every requirement of a protocol revision on a server."""
    path = MODULES / CONFORMANCE / "requirements" / f"{ERAS[era]}.yaml"
    wanted = required_scenarios(yaml.safe_load(path.read_text(encoding="utf-8")))
    checks = _conformance(url, "--requirements", ERAS[era])
    return [*checks, *not_run(wanted, checks)]


PROGRAM = MODULES / INSPECTOR / "clients" / "launcher" / "build" / "index.js"


def inspector_checks(scenario: str, output: str) -> list[Check]:
    """Parse the report of `--verify`: one line of JSON for each skill.

    Raises:
        ValueError: it is something else.
    """
    out: list[Check] = []
    for line in output.splitlines():
        report = json.loads(line)
        uri = report["uri"]
        faults = [*report["conformance"], *report["frontmatter"]]
        good = report["ok"] is True and report["outcome"] == "verified" and not faults
        out.append(
            Check(scenario, f"skill {uri}", "SUCCESS" if good else "FAILURE", "" if good else f"{report!r:.600}")
        )
        for file in report["files"]:
            status = "SUCCESS" if file["status"] == "verified" else "FAILURE"
            out.append(Check(scenario, f"file {uri} {file['uri']}", status, "" if status == "SUCCESS" else repr(file)))
    if not out:
        raise ValueError(f"{scenario}: no report")
    return out


def inspector(era: str, url: str | None) -> list[Check]:
    """Run Inspector's command line: verify every skill, then use resources, tools and prompts."""
    target = ["--server-url", url, "--transport", "http"] if url else ["--", *SERVE, str(SKILLS)]

    def run_inspector(*arguments: str, good: Iterable[int] = (0,)) -> str:
        options = ["--cli", "--protocol-era", era, "--format", "json", *arguments]
        return call([str(NODE), str(PROGRAM), *options, *target], good=good, home=True)

    def result(*arguments: str, good: Iterable[int] = (0,)) -> dict[str, Any]:
        return json.loads(run_inspector("--method", *arguments, good=good))["result"]

    def use(tool: str, **arguments: Any) -> dict[str, Any]:
        # 5 means a result with isError.
        options = ("--tool-name", tool, "--tool-args-json", json.dumps(arguments))
        return result("tools/call", *options, good=(0, 5))

    # 7, 8 and 9 mean that a skill failed or could not be verified; the report names it.
    report = run_inspector("--method", "skills/list", "--verify", "--require-digests", good=(0, 7, 8, 9))
    checks = inspector_checks(era, report)
    expected = bundles()
    checks.append(all_there(era, checks, {kind: expected[kind] for kind in ("skill", "file")}))

    def check(question: str, is_right: Callable[[], bool]) -> None:
        try:
            status, message = ("SUCCESS", "") if is_right() else ("FAILURE", "not what it should be")
        except (RefereeError, KeyError, ValueError) as error:
            status, message = "FAILURE", f"{type(error).__name__}: {error}"
        checks.append(Check(era, question, status, message))

    folder = SKILLS / "colour-palettes"
    icon = folder / "assets" / "icon.png"

    def read() -> bool:
        (content,) = result("resources/read", "--uri", "skill://colour-palettes/assets/icon.png")["contents"]
        return base64.b64decode(content["blob"]) == icon.read_bytes()

    def directory() -> bool:
        names = {
            each["uri"].rsplit("/", 1)[1]
            for each in result("resources/directory/read", "--uri", "skill://colour-palettes")["resources"]
        }
        return names == {path.name for path in folder.iterdir()}

    def one() -> bool:
        reports = inspector_checks(
            era, run_inspector("--method", "skills/get", "--uri", "skill://colour-palettes/SKILL.md", "--verify")
        )
        return all(each.good for each in reports)

    def search() -> bool:
        found = use("skills_search", query="word a commit")["structuredContent"]["skills"]
        return found[0]["name"] == "commit-messages"

    def load_and_read() -> bool:
        receipt = use("skills_load", names=["meeting-notes"])["structuredContent"]
        answer = use("skills_read", path="SKILL.md", session=receipt["session"])
        # Every run is a new connection, and over stdio a new server, which goes on by the handle.
        text = answer["content"][0]["text"]
        return text.encode() == (SKILLS / "meeting-notes" / "SKILL.md").read_bytes()

    def prompt() -> bool:
        got = result("prompts/get", "--prompt-name", "meeting-notes", "--prompt-args", "topic=budget")
        return "**budget** for everybody who took part" in got["messages"][0]["content"]["text"]

    check("initialize", lambda: result("initialize")["protocolVersion"] == ERAS[era])
    check("skills/get", one)
    check("resources/list", lambda: len(result("resources/list")["resources"]) == expected["skill"])
    check("resources/templates/list", lambda: bool(result("resources/templates/list")["resourceTemplates"]))
    check("resources/read", read)
    check("resources/directory/read", directory)
    # With --strict it exits with 6 if a schema is invalid for some model.
    check("tools/list", lambda: tuple(tool["name"] for tool in result("tools/list", "--strict")["tools"]) == TOOLS)
    check("tools/call skills_search", search)
    check("tools/call skills_load, skills_read", load_and_read)
    check("prompts/list", lambda: len(result("prompts/list")["prompts"]) == expected["prompt"])
    check("prompts/get", prompt)
    return checks


BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def installed_by_vercel(url: str | None) -> list[Check]:
    """Install every skill that a site publishes with the npm package `skills`, and compare every byte.

    The site is the live server, or without a URL a static tree behind Python's own web server. The client drops a byte
    order mark at the beginning of a SKILL.md, so the comparison ignores it.
    """
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        where = Path(scratch)
        site = urlsplit(url)._replace(path="").geturl() if url else stack.enter_context(_static_site(where / "site"))
        (where / "work").mkdir()
        program = MODULES / VERCEL / "bin" / "cli.mjs"
        options = ["--skill", "*", "--copy", "-a", "claude-code", "-y"]
        done = subprocess.run(
            [str(NODE), str(program), "add", site, *options],
            cwd=where / "work",
            env={**os.environ, "HOME": str(where / "home"), "DISABLE_TELEMETRY": "1"},
            capture_output=True,
            text=True,
            timeout=MAX_RUN_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode:
            raise RefereeError(f"skills add ended with {done.returncode}: {(done.stderr or done.stdout)[-600:]}")
        checks: list[Check] = []
        for source in sorted(path.parent for path in SKILLS.rglob("SKILL.md")):
            there = where / "work" / ".claude" / "skills" / source.name
            checks.append(Check("discovery", f"skill {source.name}", "SUCCESS" if there.is_dir() else "FAILURE"))
            for path in sorted(each for each in source.rglob("*") if each.is_file()):
                copy, raw = there / path.relative_to(source), path.read_bytes()
                same = copy.is_file() and copy.read_bytes() in {raw, raw.removeprefix(BYTE_ORDER_MARK)}
                if path.parent == source / "evals":  # discovery omits it
                    same = not copy.exists()
                name = f"file {source.name}/{path.relative_to(source)}"
                checks.append(Check("discovery", name, "SUCCESS" if same else "FAILURE", "" if same else "other bytes"))
    return [*checks, all_there("discovery", checks, {kind: bundles()[kind] for kind in ("skill", "file")})]


@contextmanager
def _static_site(output: Path) -> Iterator[str]:
    """Serve the output of `publish` with a plain web server; yield its URL."""
    call([sys.executable, "-m", "mcp_skills_server", "publish", str(SKILLS), "--output", str(output)])
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(output))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join(5)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


@dataclass(frozen=True, slots=True)
class Library:
    """A client library, driven by a small program in tests/interop/clients.

    Attributes:
        name: its name in the table.
        version: the installed version.
        suite: its name in the baseline.
        command: the program, which the protocol version and the target follow.
        kinds: the kinds of its checks: skill, file, tool, prompt, and use of a skill by tools.
        eras: the protocol eras that it supports.
        serve: the command of another server than ours, which a folder follows; it runs over stdio only.
        starts_often: over stdio it starts a server for each call.
    """

    name: str
    version: str
    suite: str
    command: Sequence[str]
    kinds: frozenset[str]
    eras: tuple[str, ...] = tuple(ERAS)
    serve: Sequence[str] = ()
    starts_often: bool = False


def client(library: Library, era: str, url: str | None, folder: Path = SKILLS) -> list[Check]:
    """Return a client library's checks of the server over HTTP, or without a URL over stdio on a folder."""
    program, *arguments = library.serve or SERVE
    target = {"url": url} if url else {"command": program, "args": [*arguments, str(folder)]}
    seconds = MAX_RUN_S * (4 if library.starts_often and url is None else 1)
    shown = call([*library.command, ERAS[era], json.dumps(target)], seconds=seconds, home=True)
    checks = parse_checks(era, json.loads(shown))
    if folder == SKILLS:
        # A refused list is one failure, not another for each skill and file in it.
        refused = {"skill", "file"} if any(check.id == "list" and not check.good for check in checks) else set[str]()
        wanted = {kind: count for kind, count in bundles().items() if kind in library.kinds - refused}
        checks.append(all_there(era, checks, wanted))
    return checks


def _typescript(library: str) -> list[str]:
    """Return the command for a TypeScript library. Node resolves packages beside the program, so copy it there."""
    program = CACHE / "typescript.mjs"
    shutil.copyfile(HERE / "clients" / "typescript.mjs", program)
    return [str(NODE), str(program), library]


def libraries(pythons: Mapping[str, Path]) -> Iterator[Library]:
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
    if "fastmcp-server" in pythons:  # in the legacy era it has only resources, and not all
        serve = [str(pythons["fastmcp-server"]), str(ROOT / "bench" / "servers" / "fastmcp_server.py")]
        version = PYTHON_PACKAGES["fastmcp-server"][1]
        yield Library("our client, FastMCP", version, "ours fastmcp", ours, frozenset({"skill"}), serve=serve)
    program = CACHE / "server.mjs"
    shutil.copyfile(ROOT / "bench" / "servers" / "typescript.mjs", program)
    for name, package in (("ext-skills", EXT_SKILLS), ("typescript-sdk", "@modelcontextprotocol/server")):
        serve = [str(NODE), str(program), name]
        yield Library(f"our client, {name}", PACKAGES[package], f"ours {name}", ours, skills, serve=serve)
    # These use only tools; the SDK of the first two chooses the era.
    for suite, eras in (
        ("langchain", ("legacy",)),
        ("openai-agents", ("modern",)),
        ("pydantic-ai", tuple(ERAS)),
        ("crewai", ("legacy",)),
        ("llama-index", ("legacy",)),
    ):
        if suite in pythons:
            command = python(suite, "tools_alone.py", suite)
            often = suite in {"crewai", "llama-index"}
            yield Library(suite, PYTHON_PACKAGES[suite][1], suite, command, tools, eras, starts_often=often)
    if "crewai" in pythons:
        version = BESIDE["crewai"][0].partition("==")[2]
        command = python("crewai", "tools_alone.py", "crewai-adapter")
        yield Library("crewai-adapter", version, "crewai-adapter", command, tools, ("legacy",))


_SKILLSAW_RULES: Final = ("agentskill-valid", "agentskill-name", "agentskill-description")
"""Its rules about what the specification demands. The others judge style, or files of other programs."""


def skillsaw(python: Path) -> list[Check]:
    """Compare the verdict of the validator `skillsaw` on each SKILL.md of the fixtures with ours."""
    checks: list[Check] = []
    for folder in (SKILLS, BROKEN):
        command = [str(python.with_name("skillsaw")), "lint", str(folder), "--format", "json", "--no-progress"]
        command += ["--no-plugins", "--no-custom-rules", "--no-baseline"]
        for rule in _SKILLSAW_RULES:
            command += ["--rule", rule]
        violations = json.loads(call(command, good=(0, 1), home=True))["violations"]
        refused = {each["file_path"].removesuffix("/SKILL.md"): each["message"] for each in violations}
        registry = Registry([folder])
        registry.load()
        for path, skill in registry.snapshot.skills.items():
            codes = ", ".join(problem.code for problem in skill.problems if problem.severity == "error")
            ours = "valid" if skill.standing is Standing.VALID else codes
            agrees = (ours == "valid") == (path not in refused)
            said = f"skillsaw: {refused.get(path, 'valid')}; here: {ours}"
            checks.append(Check(folder.name, path, "SUCCESS" if agrees else "FAILURE", said))
    return checks
