"""A judge of triggers: asks any endpoint that speaks OpenAI's chat completions.

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


def main() -> None:
    """Read a question from stdin and print the names of the skills that the model would load."""
    question: dict[str, Any] = json.load(sys.stdin)
    model = sys.argv[1] if len(sys.argv) > 1 else "gpt-5.5"
    base = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1").rstrip("/")
    body = {
        "model": model,
        "messages": [
            {"role": "system", "content": f"{RULE}\n\n{question['catalogue']}"},
            {"role": "user", "content": question["query"]},
        ],
        "response_format": {"type": "json_object"},
    }
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '')}"}
    request = urllib.request.Request(f"{base}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=100) as answer:
        found: dict[str, Any] = json.load(answer)
    chosen = json.loads(found["choices"][0]["message"]["content"]).get("skills", [])
    usage = found.get("usage") or {}
    cost = usage.get("prompt_tokens", 0) * float(os.environ.get("PRICE_IN", "0"))
    cost += usage.get("completion_tokens", 0) * float(os.environ.get("PRICE_OUT", "0"))
    print(json.dumps({"skills": chosen, "cost_usd": cost / 1e6}))


if __name__ == "__main__":
    main()
