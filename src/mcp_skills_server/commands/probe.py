"""`probe`: how far any server of skills conforms to the specifications."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

import anyio
import click

from mcp_skills_server.authoring import reports
from mcp_skills_server.commands.fields import (
    Options,
    count,
    flag,
    output_format,
    seconds,
    takes,
    text,
)
from mcp_skills_server.commands.look import say_problem
from mcp_skills_server.commands.options import bearer_token
from mcp_skills_server.commands.printing import remark, say, say_json, say_lines
from mcp_skills_server.errors import UsageError, plural, quoted
from mcp_skills_server.model import Problem, printable
from mcp_skills_server.probe.connection import MAX_ANSWER, HttpConnection, PipeConnection
from mcp_skills_server.probe.prober import NotSpokenError, Prober
from mcp_skills_server.probe.rules import Verdicts, problems_of, rules
from mcp_skills_server.sources.addresses import shown
from mcp_skills_server.sources.kinds import COMMAND
from mcp_skills_server.sources.mcp import PREFIX, command_words, http_client, server_url

_URL: Final = re.compile(r"(?:mcp\+)?https?://")
_OF_A_RULE: Final = 5
"""The most findings of a rule that are printed as text."""
Form = Literal["text", "json", "junit", "sarif"]


class ProbeOptions(Options):
    form: Form = output_format(*get_args(Form))
    strict: bool = flag("Warnings, of rules with SHOULD, count as errors.")
    token_env: str | None = text("The variable with a bearer token for the URL.", "NAME")
    allow_http: bool = flag("Also send requests over plain http to other machines.")
    answer_timeout: float = seconds(10, "Time limit of one answer.", above=True)
    max_requests: int = count(1000, "The most requests in each era.")


@click.command()
@click.argument("target")
@takes(ProbeOptions)
def probe(options: ProbeOptions, target: str) -> int:
    """Judge the server of skills at TARGET by the specifications, in both eras of MCP.

    TARGET is the URL of streamable HTTP, or a command, which is started and speaks over its pipes.
    A finding names the rule that is broken, and what it says. A rule for which there was nothing to
    judge is "not seen". Nothing is written to the server. Exit code 1 when a rule with MUST is
    broken, 2 when no server of skills answers.

    \b
    Examples:
      mcp-skills-server probe https://skills.example/mcp --token-env SKILLS_TOKEN
      mcp-skills-server probe 'mcp-skills-server serve ./skills' --format json
    """
    if _URL.match(target):
        url = server_url(PREFIX + target.removeprefix(PREFIX), http=options.allow_http)
        label, words = shown(url), []
    else:
        url, words = "", command_words(target)
        label = COMMAND + os.path.basename(words[0])  # arguments may be secrets
        if shutil.which(words[0]) is None:
            raise UsageError(f"there is no program {quoted(words[0])}; install it")
    verdicts: dict[str, Verdicts] = {}
    silent: list[str] = []
    for era in ("modern", "legacy"):
        try:
            verdicts[era] = anyio.run(_probe, url, words, era == "modern", options)
        except NotSpokenError as error:
            silent.append(f"{era} era: {error}")
    if not verdicts:
        raise UsageError(f"{label}: no server of skills answers; {'; '.join(silent)}")
    problems = problems_of(verdicts, label)
    is_ok = not any(options.strict or problem.severity == "error" for problem in problems)
    _print(problems, verdicts, options.form, is_ok=is_ok)
    for era, own in verdicts.items():
        for reason in own.stopped:
            remark(f"{era} era: {reason}")
    for line in silent:
        remark(f"not spoken: {line}")
    return int(not is_ok)


async def _probe(
    url: str, words: Sequence[str], is_modern: bool, options: ProbeOptions
) -> Verdicts:
    timeout_s, most = options.answer_timeout, options.max_requests
    if url:
        token = bearer_token(options.token_env) if options.token_env else ""
        async with http_client(url, token, connect_s=timeout_s, max_bytes=MAX_ANSWER) as client:
            http = HttpConnection(client, url, is_modern=is_modern, timeout_s=timeout_s)
            prober = Prober(http, is_modern=is_modern, max_requests=most)
            await prober.run()
            await http.close()
        return prober.verdicts
    try:
        # stderr stays that of this process: it says why a command ends at once
        process = await anyio.open_process(words, stderr=None)
    except OSError as error:
        fault = f"{printable(words[0])} cannot be started ({error.strerror})"
        raise UsageError(f"{fault}; correct the command") from None
    pipes = PipeConnection(process, timeout_s)
    prober = Prober(pipes, is_modern=is_modern, max_requests=most)
    try:
        await prober.run()
    finally:
        with anyio.CancelScope(shield=True):
            fault = "it still ran 5 s after its stdin was closed"
            prober.verdicts.judge("MCP-51", await pipes.close(), fault)
    return prober.verdicts


def _print(
    problems: Sequence[Problem], verdicts: Mapping[str, Verdicts], form: Form, *, is_ok: bool
) -> None:
    broken = Counter(problem.code for problem in problems)
    judged = set[str]().union(*(own.judged for own in verdicts.values()))
    unseen = [id_ for id_ in rules() if id_ not in judged]
    if form == "json":
        known = {**dict.fromkeys(unseen, "not seen"), **dict.fromkeys(broken, "failed")}
        table = [
            {"id": id_, "verdict": known.get(id_, "passed")}
            | {key: rule[key] for key in ("level", "source", "says")}
            for id_, rule in rules().items()
        ]
        skills = {era: len(own.skills) for era, own in verdicts.items()}
        faults = [problem._asdict() for problem in problems]
        stopped = {era: own.stopped for era, own in verdicts.items()}
        said = {"ok": is_ok, "eras": skills, "stopped": stopped, "problems": faults, "rules": table}
        say_json(said)
    elif form == "sarif":
        say_json(reports.sarif(problems, {}))
    elif form == "junit":
        cases = [problem._replace(skill=problem.code) for problem in problems]
        say_lines(reports.junit(cases, rules(), skipped=unseen))
    else:
        printed: Counter[str] = Counter()
        for problem in problems:
            printed[problem.code] += 1
            if printed[problem.code] <= _OF_A_RULE:
                say_problem(problem)
        for id_ in [id_ for id_ in broken if broken[id_] > _OF_A_RULE]:
            say(f"{broken[id_] - _OF_A_RULE:,} more of {id_}; --format json has them")
        kept = len(rules()) - len(unseen) - len(broken)
        counts = f"{plural(len(broken), 'rule')} broken, {kept} kept, {len(unseen)} not seen"
        say(f"{counts}: {', '.join(unseen) or 'none'}")
        for era, own in verdicts.items():
            say(f"{era} era: {plural(len(own.skills), 'skill')}")
