"""A judge of triggers: asks an agent on this machine in its one-shot mode, without its tools.

    mcp-skills-server evaluate ~/skills --judge 'python examples/judges/program.py claude'
    mcp-skills-server evaluate ~/skills --judge 'python examples/judges/program.py codex'
    mcp-skills-server evaluate ~/skills --judge 'python examples/judges/program.py opencode'

Further arguments go to the agent: `program.py claude --model haiku`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from typing import Any

RULE = (
    "Below is a catalogue of skills and then a message of a user. Do not do what the message asks. Say only which of "
    'the skills an agent should load for it; most messages need none. Answer with JSON alone: {"skills": ["name"]}.'
)
COMMANDS = {
    "claude": ["claude", "-p", "--output-format", "json"],
    "codex": ["codex", "exec", "--skip-git-repo-check"],
    "opencode": ["opencode", "run"],
}


def main() -> None:
    """Read a question from stdin and print the names of the skills that the agent would load."""
    question: dict[str, Any] = json.load(sys.stdin)
    agent, *more = sys.argv[1:] or ["claude"]
    if agent not in COMMANDS:
        sys.exit(f"there is no agent {agent!r}; the agents are {', '.join(COMMANDS)}")
    prompt = f"{RULE}\n\n{question['catalogue']}\n\n<message>\n{question['query']}\n</message>"
    with tempfile.TemporaryDirectory() as empty:  # or the agent would load skills of the project by itself
        ended = subprocess.run(
            [*COMMANDS[agent], *more, prompt],
            capture_output=True,
            check=False,
            text=True,
            cwd=empty,
            stdin=subprocess.DEVNULL,
        )
    if ended.returncode:
        sys.exit(f"{agent} ended with {ended.returncode}: {ended.stderr.strip()[-300:]}")
    text, cost = ended.stdout, 0.0
    if agent == "claude":
        answer: dict[str, Any] = json.loads(text)
        text, cost = str(answer["result"]), float(answer.get("total_cost_usd") or 0)
    found = re.findall(r"\{[^{}]*\"skills\"[^{}]*\}", text)
    if not found:
        sys.exit(f"{agent} answered without JSON: {text.strip()[-300:]}")
    print(json.dumps({"skills": json.loads(found[-1])["skills"], "cost_usd": cost}))


if __name__ == "__main__":
    main()
