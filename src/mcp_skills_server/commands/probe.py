"""`probe`: how far any server of skills conforms to the specifications."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, get_args

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
from mcp_skills_server.errors import UsageError, plural
from mcp_skills_server.model import Problem
from mcp_skills_server.probe.connection import over_http, over_pipes
from mcp_skills_server.probe.prober import NotSpokenError, Prober
from mcp_skills_server.probe.report import Verdicts, not_seen, problems_of, rules
from mcp_skills_server.sources.addresses import shown
from mcp_skills_server.sources.kinds import COMMAND
from mcp_skills_server.sources.mcp import PREFIX, command_words, server_url

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
    verdicts, silent = anyio.run(_probe_eras, url, words, options)
    if not verdicts:
        reasons = "; ".join(f"{era} era: {reason}" for era, reason in silent.items())
        raise UsageError(f"{label}: no server of skills answers; {reasons}")
    problems = problems_of(verdicts, label)
    is_ok = not any(options.strict or problem.severity == "error" for problem in problems)
    _print(problems, verdicts, options.form, is_ok=is_ok)
    for era, own in verdicts.items():
        remark(f"{era} era: {plural(own.requests, 'request')}, {plural(own.skills, 'skill')}")
        if own.stopped:
            remark(f"{era} era: {own.stopped}")
    for era, reason in silent.items():
        remark(f"{era} era: not spoken ({reason})")
    return int(not is_ok)


async def _probe_eras(
    url: str, words: Sequence[str], options: ProbeOptions
) -> tuple[dict[str, Verdicts], dict[str, str]]:
    """Return the verdicts by era, and the reasons why others are not spoken."""
    token = bearer_token(options.token_env) if options.token_env else ""
    verdicts: dict[str, Verdicts] = {}
    silent: dict[str, str] = {}
    most, timeout_s = options.max_requests, options.answer_timeout
    for era in ("modern", "legacy"):
        is_modern = era == "modern"
        try:
            if url:
                connecting = over_http(url, token, is_modern=is_modern, timeout_s=timeout_s)
            else:
                connecting = over_pipes(words, timeout_s=timeout_s)
            async with connecting as connection:
                prober = Prober(connection, is_modern=is_modern, max_requests=most)
                await prober.run()
            if connection.ends_alone is not None:
                fault = "it still ran 5 s after its stdin was closed"
                prober.verdicts.judge("MCP-51", connection.ends_alone, fault)
            verdicts[era] = prober.verdicts
        except NotSpokenError as error:
            silent[era] = str(error)
    return verdicts, silent


def _print(
    problems: Sequence[Problem], verdicts: Mapping[str, Verdicts], form: Form, *, is_ok: bool
) -> None:
    broken, unseen = Counter(problem.code for problem in problems), not_seen(verdicts)
    if form == "json":
        said = {**dict.fromkeys(unseen, "not seen"), **dict.fromkeys(broken, "failed")}
        table: list[dict[str, Any]] = [
            {"id": id_, **rule._asdict(), "verdict": said.get(id_, "passed")}
            for id_, rule in rules().items()
        ]
        found = [problem._asdict() for problem in problems]
        say_json({"ok": is_ok, "eras": [*verdicts], "problems": found, "rules": table})
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
        for rule in [rule for rule in broken if broken[rule] > _OF_A_RULE]:
            say(f"{broken[rule] - _OF_A_RULE:,} more of {rule}; --format json has them")
        kept = len(rules()) - len(unseen) - len(broken)
        say(
            f"{plural(len(broken), 'rule')} broken, {kept} kept, {len(unseen)} not seen: {', '.join(unseen)}"
        )
