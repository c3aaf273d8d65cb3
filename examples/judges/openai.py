"""A judge of triggers and of outputs: asks any endpoint that speaks OpenAI's chat completions.

    OPENAI_API_KEY=... mcp-skills-server evaluate ~/skills --judge 'python examples/judges/openai.py gpt-5.5'

OPENAI_BASE_URL names another endpoint than OpenAI's, PRICE_IN and PRICE_OUT the dollars of a million tokens.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from typing import Any

RULE = (
    "You are an agent. The user sends you the message below. Decide which of these skills you would load before you "
    'answer; most messages need none. Answer with a JSON object and nothing else: {"skills": ["name"]}.'
)


GRADING = (
    "Grade the output of an agent. Say of each expectation, in its exact words, whether the output meets it. "
    'Answer with a JSON object alone: {"expectations": [{"text": "...", "passed": true, "evidence": "..."}]}.'
)


def ask(system: str, user: str, *, as_json: bool) -> tuple[str, int, float]:
    """Return the model's answer, its tokens, and its cost in dollars."""
    model = sys.argv[1] if len(sys.argv) > 1 else "gpt-5.5"
    base = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1").rstrip("/")
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    body: dict[str, Any] = {"model": model, "messages": messages}
    if as_json:
        body["response_format"] = {"type": "json_object"}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '')}"}
    request = urllib.request.Request(f"{base}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=100) as answer:
        found: dict[str, Any] = json.load(answer)
    usage = found.get("usage") or {}
    sent, written = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    cost = sent * float(os.environ.get("PRICE_IN", "0")) + written * float(os.environ.get("PRICE_OUT", "0"))
    return found["choices"][0]["message"]["content"], sent + written, cost / 1e6


def outputs(question: dict[str, Any]) -> dict[str, Any]:
    """Do the prompt, with the skill if there is one, and grade the output."""
    system = "Do what the user asks. Answer with the result alone."
    if question["skill"]:
        system += f"\n\nFollow this skill, given as its files:\n{json.dumps(question['skill'])}"
    user = question["prompt"]
    if question["inputs"]:
        user += f"\n\nThe files:\n{json.dumps(question['inputs'])}"
    output, tokens, cost = ask(system, user, as_json=False)
    shown = {key: question[key] for key in ("prompt", "expected_output", "expectations")}
    graded, _, more = ask(GRADING, json.dumps(shown | {"output": output}), as_json=True)
    return {**json.loads(graded), "timing": {"total_tokens": tokens}, "cost_usd": cost + more}


def main() -> None:
    """Read a question from stdin and print the names of the skills that the model would load, or its graded output."""
    question: dict[str, Any] = json.load(sys.stdin)
    if "expectations" in question:
        print(json.dumps(outputs(question)))
        return
    text, _, cost = ask(f"{RULE}\n\n{question['catalogue']}", question["query"], as_json=True)
    print(json.dumps({"skills": json.loads(text).get("skills", []), "cost_usd": cost}))


if __name__ == "__main__":
    main()
