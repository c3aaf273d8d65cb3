"""Whether an entry of a host's file starts this server. Only the program counts, never what it is given to work on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, cast

_PROGRAM: Final = "mcp-skills-server"
_MODULE: Final = "mcp_skills_server"
_PYTHON: Final = re.compile(r"(?:python|pypy|py)[0-9.]*t?w?")
_SUFFIX: Final = re.compile(r"\.(?:exe|cmd|bat)\Z")
_REQUIREMENT: Final = re.compile(r"[A-Za-z0-9_.-]+")
_RUNNERS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "uvx": ((),),
    "uv": (("tool", "run"), ("run",)),
    "pipx": (("run",),),
}
"""Programs that run another one, and the words between the two."""
_TAKE_A_VALUE: Final = frozenset(
    {
        "--allow-insecure-host", "--backend", "--cache-dir", "--color", "--config-file", "--constraint",
        "--constraints", "--default-index", "--directory", "--env-file", "--exclude-newer", "--extra",
        "--extra-index-url", "--find-links", "--from", "--group", "--index", "--index-strategy", "--index-url",
        "--only-group", "--override", "--overrides", "--package", "--pip-args", "--project", "--python",
        "--python-platform", "--refresh-package", "--resolution", "--spec", "--upgrade-package", "--with",
        "--with-editable", "--with-requirements", "-P", "-b", "-c", "-f", "-i", "-p", "-w",
    }
)  # fmt: skip
"""Options of the runners that stand before the program and whose value is the next word."""


def words_of(entry: object) -> list[str]:
    """The words that an entry starts, in each form that hosts have; nothing for one that starts no program."""
    if not isinstance(entry, Mapping):
        return []
    fields = cast("Mapping[str, object]", entry)
    words: list[object] = []
    for key in ("command", "args"):
        value = fields.get(key)
        words += cast("list[object]", value) if isinstance(value, list) else [] if value is None else [value]
    return [word for word in words if isinstance(word, str)] if all(isinstance(word, str) for word in words) else []


def starts_this_server(words: Sequence[str], command: Sequence[str]) -> bool:
    """Whether these words start this server: the command that is meant now, or our program however it was installed."""
    return list(words[: len(command) + 1]) == [*command, "serve"] or _is_this_program(words)


def _is_this_program(words: Sequence[str]) -> bool:
    while words:
        name, rest = _base(words[0]), words[1:]
        if name == _PROGRAM:
            return True
        if _PYTHON.fullmatch(name):
            return _python_runs_this(rest)
        between = next((each for each in _RUNNERS.get(name, ()) if tuple(rest[: len(each)]) == each), None)
        if between is None:
            return False
        words = _behind_options(rest[len(between) :])
        # What a runner is asked for may be a requirement: a version or an extra behind the name.
        asked = _REQUIREMENT.match(words[0]) if words else None
        if asked is not None and asked[0] == _PROGRAM:
            return True
    return False


def _python_runs_this(words: Sequence[str]) -> bool:
    """Whether Python, given these words, runs our module or our script."""
    position = 0
    while position < len(words):
        word = words[position]
        if not word.startswith("-"):
            return _base(word) == _PROGRAM
        if word in {"-X", "-W"}:
            position += 1
        elif not word.startswith("--") and "m" in word:
            # `-m name`, `-mname`, and with other letters before it, as in `-Im name`.
            module = word[word.index("m") + 1 :] or "".join(words[position + 1 : position + 2])
            return module == _MODULE or module.startswith(f"{_MODULE}.")
        elif not word.startswith("--") and "c" in word:
            return False
        position += 1
    return False


def _behind_options(words: Sequence[str]) -> Sequence[str]:
    position = 0
    while position < len(words) and words[position].startswith("-"):
        if words[position] == "--":
            position += 1
            break
        position += 2 if words[position] in _TAKE_A_VALUE else 1
    return words[position:]


def _base(word: str) -> str:
    """A program's name without its folder and what Windows puts behind it."""
    return _SUFFIX.sub("", re.split(r"[\\/]", word)[-1].lower())
