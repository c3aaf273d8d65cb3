"""Options of scripts and of semantic search (search by meaning), and objects made from them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

import click

from mcp_skills_server.commands.features.feature import Feature
from mcp_skills_server.commands.fields import (
    Options,
    choice,
    count,
    file,
    many,
    option,
    seconds,
    switch,
    text,
)
from mcp_skills_server.errors import RequestError, UsageError
from mcp_skills_server.installation import missing_extra

if TYPE_CHECKING:
    from mcp_skills_server.catalog.registry import Registry
    from mcp_skills_server.runtime.embeddings.index import Embeddings
    from mcp_skills_server.runtime.embeddings.models import Embedder
    from mcp_skills_server.runtime.scripts.settings import ScriptSettings

KEY_VARIABLE: Final = "MCP_SKILLS_EMBEDDINGS_KEY"


def _canonical(
    _context: click.Context, _parameter: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    """Return origins in canonical spelling, which does not depend on the working directory."""
    if not value:
        return ()
    from mcp_skills_server.runtime.scripts.policy import canonical

    return tuple(map(canonical, value))


class ApprovalOptions(Options, heading="Running scripts"):
    approvals: str | None = file("The approved skills; by default in the user's state directory.")


class AllowOptions(
    ApprovalOptions, heading="Running scripts", example="--allow-scripts --script-timeout 30"
):
    allow_scripts: bool = switch(
        False,
        "Let clients run what skills of your own folders bring: scripts of loaded skills, and "
        "actions by the Skills Protocol.",
    )


class SandboxOptions(
    ApprovalOptions,
    heading="Running scripts",
    example="--script-timeout 30 --interpreter .py=/opt/venv/bin/python",
):
    script_origins: tuple[str, ...] = many(
        "Run approved skills of this site or archive, too, named as 'show' does.",
        "ORIGIN",
        "--allow-scripts-of",
        callback=_canonical,
    )
    sandbox: Literal["required", "off"] = choice(
        "required",
        "off",
        words=(
            "Run scripts in bubblewrap. off: no sandbox, with all rights of the server's user, "
            "who must not be root."
        ),
    )
    script_timeout: float = seconds(
        60, "Time limit of a script, unless the call sets one.", above=True
    )
    script_output: int = count(
        256 << 10, "The cap of a script's stdout, and of its stderr.", metavar="BYTES"
    )
    script_memory: int = option(
        2 << 30, "Memory limit of a script.", type=click.IntRange(min=1 << 20), metavar="BYTES"
    )
    script_concurrency: int = count(4, "Scripts that run at once.")
    script_network: bool = switch(False, "Let sandboxed scripts reach the network.")
    script_network_of: tuple[str, ...] = many(
        "Let sandboxed scripts of the skill at this path reach the network, and no others; "
        "ORIGIN#PATH for one of a site, an archive, git or a registry.",
        "SKILL",
    )
    script_env: tuple[str, ...] = many(
        "A variable that callers may set for scripts, beside those that a skill declares.",
        "VARIABLE",
    )
    script_folders: tuple[str, ...] = many(
        "A folder that sandboxed scripts may read and write.",
        "DIR",
        "--script-folder",
        type=click.Path(),
    )
    interpreters: tuple[str, ...] = many(
        "Run scripts of this extension with this program, such as .py=/opt/venv/bin/python.",
        ".EXT=PROGRAM",
        "--interpreter",
    )


class ExecutionOptions(Options, heading="Running scripts"):
    allow_code: bool = switch(
        False, "Skills Protocol: let run_code run code from a call. Needs --allow-scripts."
    )
    script_secrets: tuple[str, ...] = many(
        "Pass this variable of the server's environment to scripts of the skill at this path, if "
        "its skill.toml declares it; ORIGIN#PATH for one of a site or an archive.",
        "SKILL:VARIABLE",
        "--script-secret",
    )


class RuntimeOptions(AllowOptions, SandboxOptions, ExecutionOptions):
    """All options of running scripts."""


def _reference(given: str) -> str:
    """Return `[ORIGIN#]PATH` with its origin in canonical spelling, as the policy compares it."""
    from mcp_skills_server.runtime.scripts.policy import canonical

    origin, mark, path = given.rpartition("#")
    if mark:
        return f"{canonical(origin)}#{path}"
    return given


def _secrets(pairs: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
    from mcp_skills_server.runtime.scripts.arguments import checked_env

    out: dict[str, dict[str, str]] = {}
    for given in pairs:
        skill, colon, name = given.rpartition(":")
        if not colon or not skill or not name:
            hint = "write SKILL:VARIABLE, such as billing/refunds:API_KEY"
            raise UsageError(f"--script-secret {given}: {hint}")
        if name not in os.environ:
            hint = "no such variable in the server's environment; set it"
            raise UsageError(f"--script-secret {given}: {hint}")
        try:
            checked = checked_env({name: os.environ[name]}, None)
        except RequestError as error:
            raise UsageError(f"--script-secret: {error}") from None
        out.setdefault(_reference(skill), {}).update(checked)
    return out


def _interpreters(pairs: Sequence[str]) -> dict[str, str]:
    """Return the programs of `--interpreter` by extension."""
    programs: dict[str, str] = {}
    for pair in pairs:
        extension, equals, program = pair.partition("=")
        if not equals or not program or not extension.startswith("."):
            hint = "write .EXT=PROGRAM, such as .py=/opt/venv/bin/python"
            raise UsageError(f"--interpreter {pair}: {hint}")
        programs[extension.lower()] = program
    return programs


def script_settings(
    options: RuntimeOptions,
    *,
    roots: Mapping[str, bool] = MappingProxyType({}),
    wait_for_sandbox: bool = True,
) -> ScriptSettings | None:
    """Return the settings of scripts, or None if none may run.

    The keyword arguments are fields of `ScriptSettings`.

    Raises:
        UsageError: scripts cannot be run as the options require.
    """
    if not options.allow_scripts:
        for name, value in (
            ("--interpreter", options.interpreters),
            ("--script-env", options.script_env),
            ("--script-folder", options.script_folders),
            ("--script-secret", options.script_secrets),
            ("--script-network-of", options.script_network_of),
            ("--allow-code", options.allow_code),
            ("--allow-scripts-of", options.script_origins),
            ("--approvals", options.approvals),
        ):
            if value:
                raise UsageError(f"{name} is for scripts; give --allow-scripts too")
        if any(roots.values()):
            raise UsageError("a [[source]] has scripts = true; give --allow-scripts too")
        return None
    from mcp_skills_server.runtime.scripts.settings import ScriptSettings

    return ScriptSettings(
        timeout_s=options.script_timeout,
        max_timeout_s=max(options.script_timeout, ScriptSettings().max_timeout_s),
        output_bytes=options.script_output,
        concurrent=options.script_concurrency,
        memory_bytes=options.script_memory,
        sandbox=options.sandbox,
        wait_for_sandbox=wait_for_sandbox,
        network=options.script_network,
        network_of=tuple(map(_reference, options.script_network_of)),
        secrets=_secrets(options.script_secrets),
        folders=options.script_folders,
        interpreters=_interpreters(options.interpreters),
        env=options.script_env,
        origins=options.script_origins,
        approvals=options.approvals,
        roots=roots,
    )


class ScriptsFeature(RuntimeOptions, Feature):
    """The scripts of skills, which sessions run."""

    def script_settings(
        self, roots: Mapping[str, bool], *, over_http: bool
    ) -> ScriptSettings | None:
        """Return the settings of script execution; None if scripts are disabled."""
        # a host over stdio waits only a few seconds for the start
        return script_settings(self, roots=roots, wait_for_sandbox=over_http)


class EmbeddingOptions(
    Options, heading="Search by meaning", example="--embeddings ~/models/potion-base-8M"
):
    embeddings: str | None = text(
        "Let skills_search compare meanings too, by a model2vec model in this folder, or by an "
        f"endpoint that speaks OpenAI's embeddings, whose key is in {KEY_VARIABLE}. Needs the "
        "extra [embeddings].",
        "DIR|URL",
        path="(?!.*://)(.+)",
    )
    embeddings_model: str | None = text("The name of the model at an endpoint.", "NAME")


class SearchByMeaning(EmbeddingOptions, Feature):
    """The feature of semantic search. The first scan loads the model."""

    def start_embeddings(self, registry: Registry, cache_dir: str | None) -> Embeddings | None:
        """Start the semantic search; None if it is off.

        Raises:
            UsageError: there is no such model, or an extra is missing.
        """
        if self.embeddings is None:
            if self.embeddings_model is not None:
                raise UsageError("--embeddings-model is for an endpoint; give --embeddings URL too")
            return None
        make = _endpoint if "://" in self.embeddings else _local
        embedder = make(self.embeddings, self.embeddings_model)
        from mcp_skills_server.commands.options import index_of
        from mcp_skills_server.runtime.embeddings.index import Embeddings

        made = Embeddings(registry, embedder, index_of(cache_dir))
        made.start()
        return made


def _local(folder: str, model: str | None) -> Embedder:
    from mcp_skills_server.runtime.embeddings.models import MODEL_FILES, LocalModel

    if model is not None:
        raise UsageError("--embeddings-model names a model at an endpoint; a folder has only one")
    missing = [name for name in MODEL_FILES if not Path(folder, name).is_file()]
    if missing:
        reason = f"this is not a model2vec model, because it has no {', '.join(missing)}"
        raise UsageError(f"--embeddings {folder}: {reason}")
    _need("model2vec")
    return LocalModel(Path(folder))


def _endpoint(url: str, model: str | None) -> Embedder:
    from mcp_skills_server.access.hosts import is_loopback
    from mcp_skills_server.runtime.embeddings.models import Endpoint

    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise UsageError("--embeddings: the address cannot be read") from None
    if parts.username is not None or parts.password is not None:
        raise UsageError(f"--embeddings: an address must not have a key; set {KEY_VARIABLE}")
    if not host or not (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))):
        raise UsageError(f"--embeddings {url}: give an address with https, or http on this machine")
    if model is None:
        raise UsageError(f"--embeddings {url}: name the model there by --embeddings-model")
    secret = os.environ.get(KEY_VARIABLE)
    if secret is not None:
        secret = secret.strip()
        if not (secret and secret.isascii() and secret.isprintable()):
            raise UsageError(f"{KEY_VARIABLE} is empty or no key; set or unset it")
    _need("numpy")
    return Endpoint(url, model, secret)


def _need(package: str) -> None:
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise missing_extra("--embeddings", "embeddings")
