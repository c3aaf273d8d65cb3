"""Inspector's command line."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable
from typing import Any

from tools.interop.checks import Check, all_there
from tools.interop.installation import INSPECTOR
from tools.interop.places import MODULES, NODE, SKILLS
from tools.interop.processes import RefereeError, call
from tools.interop.server import ERAS, SERVE, TOOLS, bundles

PROGRAM = MODULES / INSPECTOR / "clients" / "launcher" / "build" / "index.js"


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


def inspector(era: str, url: str | None) -> list[Check]:
    """Inspector's command line: verify every skill, then its other questions about resources, tools and prompts."""
    target = ["--server-url", url, "--transport", "http"] if url else ["--", *SERVE, str(SKILLS)]

    def ask(*arguments: str, good: Iterable[int] = (0,)) -> str:
        options = ["--cli", "--protocol-era", era, "--format", "json", *arguments]
        return call([str(NODE), str(PROGRAM), *options, *target], good=good, home=True)

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
