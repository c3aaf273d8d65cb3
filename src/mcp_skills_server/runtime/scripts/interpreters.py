"""Selection of a script's interpreter by its file extension, else by its shebang line.

Programs are looked up on the server's PATH at their first use. Version managers put shim scripts
there, which fail in the minimal environment and in a sandbox. So a probe runs the interpreter once,
to get its real path and the folders that it must read.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from mcp_skills_server.errors import RequestError, UsageError
from mcp_skills_server.model import printable
from mcp_skills_server.runtime.scripts.processes import query

_FIRST_LINE: Final = b"#!"
_PROGRAMS: Final = (_FIRST_LINE, b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
"""Magic numbers of programs: scripts, and the executables of Linux and macOS."""
_PYTHON_PLACES: Final = "import sys; print(sys.executable, sys.prefix, sys.base_prefix, sep='\\n')"
_PYTHON: Final = ("-I", "-c", _PYTHON_PLACES)
_NODE: Final = ("-p", "process.execPath")
_NODE_TYPES: Final = ("-p", "process.features.typescript ? process.execPath : ''")
_RUBY: Final = ("-e", "puts RbConfig.ruby, RbConfig::CONFIG['prefix']")
_PERL: Final = ("-MConfig", "-e", r'print join "\n", $^X, @Config{qw(privlibexp archlibexp)}')
_PROBES: Final = {"python": _PYTHON, "node": _NODE, "ruby": _RUBY, "perl": _PERL}
"""Probe arguments by prefix of a program's name: they print its own path, then the folders that
it needs."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A program that may run scripts."""

    program: str
    options: tuple[str, ...] = ()  # before the script's path
    probe: tuple[str, ...] = ()  # the arguments of its probe; without output it is not used


_JAVASCRIPT: Final = (_Candidate("node", probe=_NODE),)
_TYPESCRIPT: Final = (
    _Candidate("bun", ("run",)),
    _Candidate("deno", ("run", "--allow-all")),
    _Candidate("tsx"),
    _Candidate("node", probe=_NODE_TYPES),
)
BUILT_IN: Final[Mapping[str, tuple[_Candidate, ...]]] = {
    ".py": (_Candidate("python3", probe=_PYTHON), _Candidate(sys.executable, probe=_PYTHON)),
    ".sh": (_Candidate("sh"),),
    ".bash": (_Candidate("bash"),),
    ".dash": (_Candidate("dash"),),
    ".zsh": (_Candidate("zsh"),),
    ".ksh": (_Candidate("ksh"),),
    ".js": _JAVASCRIPT,
    ".mjs": _JAVASCRIPT,
    ".cjs": _JAVASCRIPT,
    ".ts": _TYPESCRIPT,
    ".mts": _TYPESCRIPT,
    ".rb": (_Candidate("ruby", probe=_RUBY),),
    ".pl": (_Candidate("perl", probe=_PERL),),
    ".ps1": (_Candidate("pwsh", ("-NoProfile", "-NonInteractive", "-File")),),
}
"""The interpreter map by extension: the first installed candidate with a good probe is used."""
_NEEDED: Final[Mapping[str, str]] = dict.fromkeys((".ts", ".mts"), "bun, deno, tsx or node 22.18")
"""The programs that an error names, where it is not the first candidate alone."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A resolved interpreter."""

    argv: tuple[str, ...]  # before the script's path; none if the script is executed directly
    needs: tuple[str, ...]  # the absolute paths that it must be able to read


def is_program(raw: bytes) -> bool:
    """Return True if a file's magic number is that of a program, to be laid out executable.

    File modes are ignored, because digests and approvals cover the bytes only.
    """
    return raw.startswith(_PROGRAMS)


class Interpreters:
    """The interpreter map with the operator's overrides.

    `named` maps extensions, such as `.py`, to programs. The constructor starts no program.

    Raises:
        UsageError: an invalid extension, or a program that is not found.
    """

    def __init__(self, named: Mapping[str, str]) -> None:
        self._chosen: dict[str, Interpreter] = {}
        self._candidates = dict(BUILT_IN)
        for extension, program in named.items():
            key = extension.lower()
            if not key.startswith(".") or len(key) == 1 or "/" in key:
                raise UsageError(
                    f"{extension!r} is not a file extension; write it with its dot, as in "
                    ".py=python3.12"
                )
            base = os.path.basename(program)
            probe = next((words for name, words in _PROBES.items() if base.startswith(name)), ())
            if shutil.which(program) is None:
                raise UsageError(f"{program}: no such program; name another for {extension}")
            self._candidates[key] = (_Candidate(program, probe=probe),)

    def known(self) -> list[str]:
        """Return the extensions that have an interpreter, installed or not."""
        return sorted(self._candidates)

    def choose(self, path: str, head: Callable[[], bytes]) -> Interpreter:
        """Return the interpreter of a script by its extension, else by its shebang line.

        `head` returns the script's first bytes. Probes may start programs. The executable bit is
        ignored, because no digest, lock file, signature or approval covers it.

        Raises:
            RequestError: no interpreter is installed, or the file is not a script.
            FileNotFoundError: the program of the shebang line is missing.
        """
        extension = os.path.splitext(path)[1].lower()
        if extension in self._candidates:
            return self._by_extension(path, extension)
        return self._by_first_line(path, head())

    def _by_extension(self, path: str, extension: str) -> Interpreter:
        if extension not in self._chosen:
            interpreter = next(filter(None, map(_find, self._candidates[extension])), None)
            if interpreter is None:
                wanted = self._candidates[extension][0].program
                if self._candidates[extension] is BUILT_IN.get(extension):
                    wanted = _NEEDED.get(extension, wanted)
                raise RequestError(
                    f"{printable(path)} cannot be run: it needs {wanted}, which is not installed, "
                    "or does not start, where this server runs; do its work another way, or ask "
                    "the user to install it"
                )
            self._chosen[extension] = interpreter
        return self._chosen[extension]

    def _by_first_line(self, path: str, head: bytes) -> Interpreter:
        if not head.startswith(_FIRST_LINE):
            raise RequestError(
                f"{printable(path)} cannot be run: its extension is not one of "
                f"{' '.join(self.known())}, and it has no #! line"
            )
        line = os.fsdecode(head[2:].partition(b"\n")[0])
        program = (line.split(None, 1) or [""])[0]
        if line.endswith("\r"):
            raise FileNotFoundError(
                errno.ENOENT, "its #! line ends with CR LF; save it with LF line endings"
            )
        if not os.path.isfile(program):
            raise FileNotFoundError(
                errno.ENOENT, f"its #! line names {printable(program)!r}, which does not exist"
            )
        return Interpreter((), (program,))


def _find(candidate: _Candidate) -> Interpreter | None:
    program = shutil.which(candidate.program)
    if program is None:
        return None
    program = os.path.abspath(program)
    if not candidate.probe:
        return Interpreter((program, *candidate.options), _needs_of(program))
    try:
        answer = query([program, *candidate.probe])
    except OSError:
        return None
    # the first line is the program's real path, the others are folders that it needs
    paths = [os.path.abspath(line) for line in answer.stdout.splitlines() if line]
    if answer.returncode or not paths:
        return None
    return Interpreter((paths[0], *candidate.options), tuple(dict.fromkeys(paths)))


def _needs_of(program: str) -> tuple[str, ...]:
    """Return the paths that a program must read: itself, and an npm package's install folder."""
    real = os.path.realpath(program)
    before, folder, _ = real.partition(f"{os.sep}node_modules{os.sep}")
    if not folder:
        return (program,)
    return program, before + folder.rstrip(os.sep)
