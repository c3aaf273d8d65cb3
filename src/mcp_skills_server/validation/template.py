"""Template of a new skill for `new`, and detection of its placeholders in a skill.

`new` and the rules share these texts, so that they cannot diverge.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

DESCRIPTION: Final = (
    "Replace this with one or two sentences that say what the skill does. Use when a user asks for it "
    "in the words that you list here."
)
DETAILS: Final = "references/details.md"
SKILL: Final = f"""\
---
name: {{name}}
description: {{description}}
metadata:
  version: "0.1.0"
---

# {{title}}

Write here what the reader of this skill must know to do the work. The reader is a language model that has read the
description and nothing else. Say what to do, step by step, and how to tell that it was done well.

## Steps

1. Say what to look at first.
2. Say what to do with it, and in which order.
3. Say what the result looks like.

## Example

Show one request as a user would type it, and the answer that you want.

## When something is missing

Say what to ask the user, and what never to guess.

Keep this file below 500 lines. What is needed only now and then belongs into files of its own, such as
[the details]({DETAILS}), which are read when the work calls for them.
"""
REFERENCE: Final = """\
# Details of {title}

Move tables, long examples and rare cases here, and link to this file from SKILL.md where they are needed. Delete the
file and its link if you do not need them.
"""
_FIRST_SENTENCE: Final = DESCRIPTION.split(". ")[0]
_FIRST_WORD: Final = DESCRIPTION.split()[0]
_BODY: Final = SKILL.split("---\n", 2)[2]
_TO_REPLACE: Final = frozenset(line for line in _BODY.split("\n") if line and line[0] not in "#[")
_TO_DO: Final = re.compile(r"\s*+(?:[\[<({]\s*+TODO\b|TODO\s*+(?::|\Z))")


def is_placeholder(description: str) -> bool:
    """Tell whether a description is the placeholder of `new`, or a TODO of another generator."""
    is_ours = _FIRST_WORD in description and _FIRST_SENTENCE in " ".join(description.split())
    return is_ours or _TO_DO.match(description) is not None


def placeholders(body: str) -> Iterator[int]:
    """Return the 0-based numbers of body lines that are unchanged from the template."""
    return (number for number, line in enumerate(body.split("\n")) if line in _TO_REPLACE)
