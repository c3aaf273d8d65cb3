"""A judge of outputs without a model or network: for a trial of `evaluate --outputs`, and as a pattern for your own.

    mcp-skills-server evaluate fixtures/skills --outputs --runs 1 --judge 'python3 examples/judges/scripted.py'

Its "model" writes commit messages in its own habits, and follows a rule only if the skill that it is given states it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any


def write_message(prompt: str, rules: str) -> str:
    """Return the commit message for the lines `Done`, `Why` and `Ticket` of a prompt."""
    done, why, ticket = (re.findall(rf"^{name}: (.*)", prompt, re.MULTILINE)[0] for name in ("Done", "Why", "Ticket"))
    if "imperative" in rules:
        verb, rest = done.split(" ", 1)
        done = f"{verb.removesuffix('ed')} {rest}"
    subject = done.capitalize()
    if "No full stop" not in rules:
        subject += "."
    if "Does the body say why?" in rules:
        return f"{subject}\n\n{why.capitalize()}.\n\nFixes: {ticket}"
    return f"{subject} ({ticket})"


CHECKS: dict[str, Callable[[str, str], bool]] = {  # what each assertion means for the subject and the body
    "The subject is in the imperative": lambda subject, _: not re.match(r"\w+ed\b", subject),
    "The subject has no full stop": lambda subject, _: not re.search(r"\.( \(\d+\))?$", subject),
    "The subject has at most 60 characters": lambda subject, _: len(subject) <= 60,
    "The body says why": lambda _, body: len(body.split()) > 3,
    "The message names the ticket": lambda subject, body: bool(re.search(r"\d{4}", subject + body)),
}


def main() -> None:
    """Do the prompt that stdin has, and print which of its assertions hold for the output."""
    question: dict[str, Any] = json.load(sys.stdin)
    rules = "\n".join(file.get("text", "") for file in question["skill"] or ())
    output = write_message(question["prompt"], rules)
    subject, _, body = output.partition("\n")
    graded = [
        {"text": text, "passed": CHECKS[text](subject, body), "evidence": output} for text in question["expectations"]
    ]
    print(json.dumps({"expectations": graded, "model": "a script", "cost_usd": 0}))


if __name__ == "__main__":
    main()
