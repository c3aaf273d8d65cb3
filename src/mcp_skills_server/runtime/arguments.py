"""What a client may hand to a script: arguments and variables, within limits, and none that smuggles code in.

The script is the operator's choice; what the client adds is data. The list of refused names is a guard rail against
the known ways to turn a variable into code, not a proof that there are no others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from mcp_skills_server.errors import RequestError
from mcp_skills_server.model import printable
from mcp_skills_server.runtime.processes import TOKEN

_MAX_ARGS: Final = 256
_MAX_ARG_BYTES: Final = 16 << 10
_MAX_VARIABLES: Final = 256
_MAX_NAME_BYTES: Final = 256
_MAX_VALUE_BYTES: Final = 32 << 10
_MAX_ENV_BYTES: Final = 256 << 10

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OWN: Final = frozenset(("PATH", "HOME", "TMPDIR", "TMP", "TEMP", "PWD", "SKILL_DIR", "SKILL_WORKSPACE", TOKEN))
_LOADS: Final = frozenset((
    "ENV", "IFS", "SHELLOPTS", "BASHOPTS", "ZDOTDIR", "FPATH", "CDPATH", "PS4", "PROMPT_COMMAND", "LOCPATH",
    "NLSPATH", "GCONV_PATH", "GLIBC_TUNABLES", "NODE_OPTIONS", "NODE_PATH", "NODE_REPL_EXTERNAL_MODULE",
    "PHPRC", "PHP_INI_SCAN_DIR", "CLASSPATH", "PSMODULEPATH", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS",
    "_JAVA_OPTIONS", "OPENSSL_CONF", "OPENSSL_MODULES", "OPENSSL_ENGINES", "EDITOR", "VISUAL", "PAGER",
    "MANPAGER", "LESSOPEN", "LESSCLOSE", "BROWSER", "SSH_ASKPASS", "SUDO_ASKPASS",
))  # fmt: skip
"""Variables by which a program can be made to load or run something else (compared in upper case)."""
_LOADING: Final = (
    "LD_", "DYLD_", "PYTHON", "PERL", "RUBY", "GEM_", "BUNDLE_", "BASH_", "GIT_", "BUN_", "DENO_", "TSX_",
    "NPM_CONFIG_", "PIP_", "UV_", "LUA_", "DOTNET_", "COMPLUS_", "CORECLR_",
)  # fmt: skip
"""What the names of more of them begin with."""


def checked_args(args: Sequence[str]) -> tuple[str, ...]:
    """The arguments, if they can be passed on (RTI-8).

    Raises:
        RequestError: too many, too long, or no text that a program can be given.
    """
    if len(args) > _MAX_ARGS:
        raise RequestError(f"args has {len(args)} elements, and at most {_MAX_ARGS} are passed on; put them in a file")
    for number, each in enumerate(args):
        if len(checked_text(each, f"args[{number}]").encode()) > _MAX_ARG_BYTES:
            raise RequestError(f"args[{number}] is longer than {_MAX_ARG_BYTES:,} bytes; put what it says in a file")
    return tuple(args)


def checked_env(env: Mapping[str, str]) -> dict[str, str]:
    """The variables, if they can be passed on (RTI-8).

    Raises:
        RequestError: too many, too long, badly named, or by their name able to make an interpreter run other code.
    """
    if len(env) > _MAX_VARIABLES:
        raise RequestError(f"env has {len(env)} variables, and at most {_MAX_VARIABLES} are passed on")
    total = 0
    for name, value in env.items():
        shown = printable(checked_text(name, "a name in env")[:80])
        if not _VARIABLE.fullmatch(name) or len(name) > _MAX_NAME_BYTES:
            raise RequestError(
                f"env: {shown!r} is no name for a variable; use letters, digits and _, at most {_MAX_NAME_BYTES}"
            )
        if name.upper() in _OWN:
            raise RequestError(f"env: {name} is set by the server; leave it out")
        if name.upper() in _LOADS or name.upper().startswith(_LOADING):
            raise RequestError(
                f"env: {shown} is not passed on, because it can make programs run other code; use another name, or args"
            )
        size = len(checked_text(value, f"env: {shown}").encode())
        if size > _MAX_VALUE_BYTES:
            raise RequestError(f"env: {shown} is longer than {_MAX_VALUE_BYTES:,} bytes; use a file")
        total += len(name) + size
    if total > _MAX_ENV_BYTES:
        raise RequestError(f"env takes {total:,} bytes, and at most {_MAX_ENV_BYTES:,} are passed on; use a file")
    return dict(env)


def checked_text(text: str, what: str) -> str:
    """The text, if it can be given to a program.

    Raises:
        RequestError: it has a NUL, or a surrogate that no UTF-8 stands for.
    """
    if "\0" in text:
        raise RequestError(f"{what} has a NUL character, which no program can be given; leave it out")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestError(f"{what} has half a character (a lone surrogate); leave it out") from None
    return text
