"""Table of all Problem codes: severity, effect on the skill, requirement, and advice.

The rows are data for `validate`, for the documentation, and for `fixtures/broken/` with one bundle
for each code. The code that finds a mistake adds its message: a rule of `validation/`, a parser of
`format/`, or the scan in `catalog/`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from mcp_skills_server.errors import listed
from mcp_skills_server.model import Problem, Severity, Standing

_REASONS_NAMED = 5


class Code(NamedTuple):
    """One kind of problem.

    Attributes:
        severity: "error", "warning" or "note".
        allows: the best standing that a skill with this problem can have.
        cites: the requirement behind it, or "" for our own advice.
        hint: what to do.
    """

    severity: Severity
    allows: Standing
    cites: str
    hint: str


_fatal = partial(Code, "error", Standing.UNUSABLE)
_unlisted = partial(Code, "error", Standing.LENIENT)
_error = partial(Code, "error", Standing.VALID)
_warning = partial(Code, "warning", Standing.VALID)
_note = partial(Code, "note", Standing.VALID)

CODES: dict[str, Code] = {
    # SKILL.md cannot be read.
    "skill-md-irregular": _fatal("AS-1", "make SKILL.md a regular file of this directory"),
    "skill-md-case": _fatal("AS-21", "rename the file to exactly SKILL.md"),
    "skill-md-too-large": _fatal(
        "RTI-5", "move detail into files under references/, or raise max-skill-md (--config)"
    ),
    "unreadable": _fatal("AS-1", "give the user that runs the server permission to read it"),
    "not-utf8": _fatal("S76-7", "save the file as UTF-8"),
    "nul-byte": _fatal("RTI-5", "remove the NUL byte; binary content belongs in a file of its own"),
    "frontmatter-missing": _fatal(
        "AS-2",
        "begin the file with a line that is exactly '---', then name and description, then another "
        "'---'",
    ),
    "frontmatter-unclosed": _fatal("AS-2", "end the frontmatter with a line that is exactly '---'"),
    "frontmatter-not-mapping": _fatal(
        "AS-2", "write the frontmatter as 'key: value' lines, with a blank after each colon"
    ),
    "yaml-syntax": _fatal("AS-2", "correct the YAML of this line"),
    "yaml-duplicate-key": _fatal("S40-13", "keep one of the two"),
    "yaml-tag": _fatal("S40-13", "remove the tag and write a plain or quoted value"),
    "yaml-alias": _fatal("S40-13", "write the values out instead of repeating aliases"),
    "yaml-depth": _fatal("S40-13", "nest fewer levels"),
    "yaml-size": _fatal("S40-13", "move data out of the frontmatter into a file of its own"),
    "yaml-value": _fatal("S40-13", "put the value in quotes"),
    "name-markup": _fatal("AS-4", "use only a-z, 0-9 and '-', and rename the directory with it"),
    # The bundle exceeds a limit. A listing needs all files of a skill; single reads do not.
    "too-many-files": _unlisted("S40-19", "split the skill, or raise max-files (--config)"),
    "too-many-bytes": _unlisted(
        "S40-19", "split the skill or host large files elsewhere, or raise max-bytes (--config)"
    ),
    "too-deep": _fatal("ASG-6", "move the skill nearer to the root, or raise max-depth (--config)"),
    # Excludes the skill from SEP-2640 listings (S40-5).
    "name-missing": _unlisted("AS-3", "add 'name:' with the name of the directory"),
    "name-length": _unlisted("AS-3", "use at most 64 characters, and rename the directory with it"),
    "name-characters": _unlisted("AS-4", "use only a-z, 0-9 and '-'"),
    "name-hyphens": _unlisted(
        "AS-5", "neither start nor end the name with '-', and never write '--'"
    ),
    "name-mismatch": _unlisted("AS-7", "give the directory and the name the same spelling"),
    "description-missing": _unlisted(
        "AS-8", "add 'description:' that says what the skill does and when to use it"
    ),
    "description-length": _unlisted(
        "AS-8", "shorten it to 1024 characters and move the rest into the body"
    ),
    # Breaks another rule of the format. Some clients refuse a whole list for one such entry
    # (docs/interop.md).
    "license-type": _unlisted(
        "AS-10", "write the licence's short name or the name of a bundled file"
    ),
    "compatibility-length": _unlisted("AS-11", "write 1 to 500 characters, or leave the field out"),
    "metadata-type": _unlisted("AS-12", "map strings to strings; put numbers and dates in quotes"),
    "allowed-tools-type": _unlisted("AS-14", "write one string with the tools separated by spaces"),
    "file-name-backslash": _unlisted(
        "S40-17", "rename the file; clients treat a backslash as a separator"
    ),
    # For the Skills Protocol only, which does not serve a skill without a valid skill.toml.
    "manifest-syntax": _error("SP-24", "correct the TOML of this line"),
    "manifest-field": _error("SP-24", "write the field as docs/skills-protocol.md shows it"),
    # A root that is gone for now.
    "root-missing": _error("", "restore the folder; until then its last known skills are served"),
    # Some YAML parsers reject these, and clients compare their own parse with ours.
    "yaml-colon": Code("warning", Standing.LENIENT, "ASG-13", "put the value in single quotes"),
    "yaml-field": _unlisted("S40-13", "correct the YAML of this field, or remove it"),
    # Not served, by the operator's settings or the layout of plugins; the skill may be valid.
    "switched-off": _note("", "no action needed; to serve it, change --include or --exclude"),
    "plugin-elsewhere": _note("", "give its folder as a ROOT of its own"),
    "plugin-unlisted": _warning(
        "",
        "move it right into a plugin's skills folder, list its folder in the manifest, or give it "
        "as a ROOT of its own",
    ),
    # Manifests of plugins and marketplaces: what can be used of one is served.
    "plugin-manifest": _error("", "correct this line; hosts refuse the manifest, too"),
    "plugin-path": _error("", "write the path of a folder, relative to the plugin's own"),
    "plugin-name": _warning("", "write 1 to 64 lowercase letters, digits, '-' and '.'"),
    # No skill, but nearly one.
    "near-miss": _note("", "rename it to SKILL.md, in a folder that has the skill's name"),
    # Refused by the lock or for its signature.
    "lock-missing": _fatal("", "review it with 'diff', then accept it with 'update'"),
    "lock-differs": _fatal("", "review it with 'diff', then move the pin with 'update'"),
    "signature-missing": _fatal(
        "", "have its author sign it, or serve it without the rule that requires a signature"
    ),
    "signature-invalid": _fatal(
        "", "ask its author which key or identity signed it; require that only if you trust it"
    ),
    "signature-files": _fatal(
        "", "it was changed after it was signed: fetch it again, or have its author sign it"
    ),
    "signature-expired": _fatal("", "have its author sign it with a certificate that is valid"),
    "recalled": _fatal("", "serve another version; 'recall' shows who had this one"),
    "lock-recalled": _fatal(
        "", "move the pin with 'update' to another version; 'recall' shows who had this one"
    ),
    # Refused by a source, before the skill is fetched.
    "source-refused": _fatal("", "ask its publisher to correct it; until then it is not fetched"),
    "commit-unsigned": _fatal(
        "", "have its author sign it with an ssh key that the file of allowed signers names"
    ),
    # Advice.
    "shadowed": _warning("ASG-9", "rename or remove one of the two"),
    "name-shared": _warning(
        "S40-37", "ask for it by its skill path, or give each skill a name of its own"
    ),
    "link-outside": _warning("X-5", "copy the file into the skill, or serve its folder as a root"),
    "file-name": _warning("S40-17", "rename the file in UTF-8"),
    "file-name-portable": _warning(
        "S40-39", "rename it, since some clients refuse the skill for it"
    ),
    "ignored-file": _warning(
        "",
        "remove what programs act on (.git, .envrc, .vscode), or rename files that belong to the "
        "skill",
    ),
    "hard-link": _warning(
        "X-5", "copy the file into the skill, or give folder and file the same owner"
    ),
    "file-irregular": _warning("X-5", "remove it; only regular files are served"),
    "allowed-tools-form": _warning("AS-14", "write one string with the tools separated by spaces"),
    "field-unknown": _warning(
        "AS-20", "write it as text below 'metadata:', since strict validators refuse it"
    ),
    "upload-refused": _note("", "for an upload to claude.ai, take it out"),
    "field-host": _note("", "keep it for the hosts that read the folder itself"),
    "field-type": _warning("S76-4", "see docs/writing-skills.md for the shape of this field"),
    "metadata-keys": _warning("AS-13", "give the keys names that differ by more than case"),
    "yaml-ambiguous": _warning(
        "S40-13", "put the value in quotes, since YAML 1.1 parsers read it as something else"
    ),
    "yaml-comment": _warning(
        "", "put the value in quotes, or the comment on a line of its own; ' #' begins a comment"
    ),
    "yaml-key": _warning("S40-13", "put the key in quotes"),
    "description-utf16": _warning("AS-8", "shorten it, since some hosts count UTF-16 units"),
    "description-vague": _warning(
        "AS-9", "say what the skill does and when to use it, in words a user would type"
    ),
    "placeholder": _warning("AS-9", "write what the skill does in place of it"),
    "body-empty": _warning("AS-2", "write the instructions below the frontmatter"),
    "body-long": _note("AS-16", "move detail into files under references/"),
    "reference-missing": _warning("AS-17", "add the file or correct the link"),
    "reference-deep": _warning(
        "AS-17", "keep files that the body refers to one level below the skill"
    ),
    "dependency-unresolved": _warning("S76-9", "name only what this server serves"),
    "manifest-incomplete": _warning("SP-24", "add the field to skill.toml"),
    "manifest-form": _warning("SP-24", "write the field as docs/skills-protocol.md shows it"),
    "manifest-runtime": _warning("SP-25", "name the file that is to run below [runtime]"),
    "manifest-disagrees": _warning("SP-34", "make both agree"),
    "hidden-characters": _warning(
        "", "delete the invisible characters; they can carry text that no reader sees"
    ),
    "lfs-pointer": _error(
        "", "fetch it with 'git lfs pull', or keep the file in the repository itself"
    ),
    "hidden-comment": _note(
        "", "write it where every reader sees it, or delete it; models read it anyway"
    ),
    "icon-source": _warning(
        "S76-4", "give a file of the skill, an https address, or a picture as data:image/..."
    ),
    "override": _error("", "remove it; the host and the user decide what a model obeys"),
    "secrecy": _error("", "remove it, and say in the text what the user is to know"),
    "credential-theft": _error("", "remove it; name the credentials that the user is to give"),
    "hidden-text": _error("", "write it where every reader sees it, or delete it"),
    "remote-instructions": _warning("", "copy the text into the skill, where it can be reviewed"),
    "pipe-to-shell": _warning("", "let the user see a script before it runs"),
    "script-line-ends": _warning("", "save it with the line ends of Unix (LF)"),
    "smart-quotes": _warning("", "write ' or \", which a shell reads as quotes"),
    "shell-injection": _warning(
        "", "describe the command in words; some hosts run this when the skill loads"
    ),
    "file-mention": _warning(
        "", "name the file without '@'; some hosts send its content to the model unasked"
    ),
    "hooks": _warning("", "remove 'hooks:'; some hosts run them without asking"),
    "persistence": _warning("", "do not let the skill change what starts automatically"),
    "broad-permission": _note("S40-51", "name the commands that are needed, as in Bash(git:*)"),
    "encoded-command": _warning("", "write the commands so that a reader can see them"),
    "secret": _warning(
        "", "revoke it, then take it out; have the skill read it from the environment"
    ),
    "reference-outside": _warning("AS-17", "copy the file into the skill, and refer to that"),
    # Review advice: only `validate` reports it, without effect on the exit code.
    "description-when": _note(
        "AS-9", "add a sentence that begins with 'Use when', in words a user would type"
    ),
    "description-overlap": _note("AS-9", "say in each what the other is not for"),
    "file-unused": _note("AS-17", "refer to it in SKILL.md where it is needed, or remove it"),
}


def problem(code: str, message: str, line: int | None = None, hint: str | None = None) -> Problem:
    """Return a Problem of this code; `hint` replaces the row's advice."""
    row = CODES[code]
    return Problem(code, row.severity, message, row.hint if hint is None else hint, line)


def standing(problems: Iterable[Problem]) -> Standing:
    """Return the best standing that a skill with these problems can have."""
    return min((CODES[problem.code].allows for problem in problems), default=Standing.VALID)


def counted_reasons(problems: Iterable[Iterable[Problem]]) -> str:
    """Return the most frequent codes that exclude skills from listings, with their counts."""
    reasons = (unlisting_problem(of_skill) for of_skill in problems)
    counts = Counter(problem.code for problem in reasons if problem is not None)
    return listed([f"{code} ({count:,})" for code, count in counts.most_common()], _REASONS_NAMED)


def unlisting_problem(problems: Iterable[Problem]) -> Problem | None:
    """Return the first problem that excludes a skill from listings, or None."""
    return next(
        (problem for problem in problems if CODES[problem.code].allows < Standing.VALID), None
    )
