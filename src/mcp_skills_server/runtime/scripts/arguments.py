"""Validation of the arguments and environment variables that a client gives to a script.

Many programs execute the value of a variable (`TAR_OPTIONS`, `PYTHONPATH`), and no deny-list of
those is complete. So there is an allow-list: a client sets only variables that the skill declares
(`metadata.env` of its frontmatter) or that the operator allows.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from mcp_skills_server.errors import RequestError, UsageError, listed
from mcp_skills_server.format.fields import items, mapping
from mcp_skills_server.model import Json, printable
from mcp_skills_server.runtime.scripts.processes import TOKEN

_MAX_ARGS: Final = 256
_MAX_ARG_BYTES: Final = 16 << 10
_MAX_VARIABLES: Final = 256
_MAX_NAME_BYTES: Final = 256
_MAX_VALUE_BYTES: Final = 32 << 10
_MAX_ENV_BYTES: Final = 256 << 10

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED: Final = frozenset((
    "PATH", "HOME", "TMPDIR", "TMP", "TEMP", "PWD", "SKILL_DIR", "SKILL_WORKSPACE", TOKEN,
    "GCONV_PATH", "GETCONF_DIR", "GLIBC_TUNABLES", "LOCPATH", "MALLOC_TRACE", "NLSPATH",
))  # fmt: skip
_LOADER: Final = ("LD_", "DYLD_")
"""Prefixes of the dynamic loader's variables. These and `_RESERVED` are compared in upper case."""
_WHY_RESERVED: Final = "is set by the server, or read by the programs that start the sandbox"
_BETWEEN: Final = re.compile(r"[\s,]+")


def checked_args(args: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments; raise RequestError if there are too many, or one is not valid."""
    if len(args) > _MAX_ARGS:
        most = f"at most {_MAX_ARGS} are passed on"
        raise RequestError(f"args has {len(args)} elements, and {most}; put them in a file")
    for number, argument in enumerate(args):
        if len(checked_text(argument, f"args[{number}]").encode()) > _MAX_ARG_BYTES:
            words = f"is longer than {_MAX_ARG_BYTES:,} bytes; put its text in a file"
            raise RequestError(f"args[{number}] {words}")
    return tuple(args)


def declared_env(frontmatter: Mapping[str, Json]) -> list[str]:
    """Return the variables in a skill's `metadata.env`, a list or a string of names.

    Spaces or commas separate names in a string. Invalid names, and names beyond the limit of a
    call, are ignored.
    """
    declared = mapping(frontmatter.get("metadata")).get("env")
    words = items(declared)
    if isinstance(declared, str):
        words = _BETWEEN.split(declared)
    names = (word for word in words if isinstance(word, str) and _is_name(word))
    return list(dict.fromkeys(names))[:_MAX_VARIABLES]


def allowed_env(names: Sequence[str]) -> tuple[str, ...]:
    """Return the operator's list of variables that callers may set; raise UsageError if invalid."""
    for name in names:
        shown = printable(name[:80])
        if not _is_name(name):
            raise UsageError(f"{shown!r} is not a valid variable name; use letters, digits and _")
        if _is_reserved(name):
            raise UsageError(f"{shown} {_WHY_RESERVED}; leave it out of --script-env")
    return tuple(names)


def checked_env(env: Mapping[str, str], allowed: Collection[str] | None) -> dict[str, str]:
    """Return the variables of a run after validation.

    Args:
        allowed: the names that may be set; None allows all, for the operator's secrets.

    Raises:
        RequestError: too many, too long, badly named, or not allowed.
    """
    if len(env) > _MAX_VARIABLES:
        most = f"at most {_MAX_VARIABLES} are passed on"
        raise RequestError(f"env has {len(env)} variables, and {most}")
    total = 0
    for name, value in env.items():
        shown = printable(checked_text(name, "a name in env")[:80])
        if not _is_name(name):
            raise RequestError(
                f"env: {shown!r} is not a valid variable name; use letters, digits and _, at most "
                f"{_MAX_NAME_BYTES}"
            )
        if _is_reserved(name):
            raise RequestError(f"env: {shown} {_WHY_RESERVED}; leave it out")
        if allowed is not None and name not in allowed:
            raise RequestError(
                f"env: {shown} is not passed on; this skill takes {listed(allowed)}. A skill "
                "declares its variables as metadata.env in its SKILL.md, and the operator of "
                "this server allows others with --script-env"
            )
        size = len(checked_text(value, f"env: {shown}").encode())
        if size > _MAX_VALUE_BYTES:
            words = f"is longer than {_MAX_VALUE_BYTES:,} bytes; use a file"
            raise RequestError(f"env: {shown} {words}")
        total += len(name) + size
    if total > _MAX_ENV_BYTES:
        most = f"at most {_MAX_ENV_BYTES:,} are passed on"
        raise RequestError(f"env takes {total:,} bytes, and {most}; use a file")
    return dict(env)


def _is_name(name: str) -> bool:
    return len(name) <= _MAX_NAME_BYTES and _VARIABLE.fullmatch(name) is not None


def _is_reserved(name: str) -> bool:
    return name.upper() in _RESERVED or name.upper().startswith(_LOADER)


def checked_text(text: str, what: str) -> str:
    """Return the text; raise RequestError if it has a NUL or a lone surrogate."""
    if "\0" in text:
        raise RequestError(f"{what} has a NUL character; leave it out")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestError(f"{what} has a lone surrogate; leave it out") from None
    return text
