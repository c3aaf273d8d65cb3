"""The programs, one row each: where npm has them, what their files need for a scripted model, and how they are run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROMPT: Final = "Go on."


@dataclass(frozen=True)
class Program:
    """One host.

    Attributes:
        package: its name on npm.
        binary: what it is started by, below `node_modules/.bin`.
        prepare: writes what the host needs beside our entry, before `install`; given the home and the model's URL.
        environment: variables, given the model's URL.
        command: the arguments of a run without a person.
        approval: arguments that let it call our tools.
        install: options of our `install` that let it call our tools.
        relist: arguments that have it take notice of changed tools, where it does not by itself.
        slash: the arguments that start a prompt of ours as a command, given its name; None where that takes a person.
    """

    title: str
    package: str
    binary: str
    prepare: Callable[[Path, str], None]
    environment: Callable[[str], Mapping[str, str]]
    command: Sequence[str]
    approval: Sequence[str] = ()
    install: Sequence[str] = ()
    relist: Sequence[str] = ()
    slash: Callable[[str], Sequence[str]] | None = None


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _nothing(home: Path, url: str) -> None:
    del home, url


def _claude_code(url: str) -> Mapping[str, str]:
    return {
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_BASE_URL": url,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }


def _codex_files(home: Path, url: str) -> None:
    _write(
        home / ".codex" / "config.toml",
        'model = "gpt-5.5"\nmodel_provider = "scripted"\ncheck_for_update_on_startup = false\n\n'
        f'[model_providers.scripted]\nname = "scripted"\nbase_url = "{url}/v1"\nwire_api = "responses"\n'
        'env_key = "SCRIPTED_KEY"\n',
    )


def _gemini_files(home: Path, url: str) -> None:
    del url
    settings = {"security": {"auth": {"selectedType": "gemini-api-key"}}, "general": {"enableAutoUpdate": False}}
    _write(home / ".gemini" / "settings.json", json.dumps(settings))


def _opencode_files(home: Path, url: str) -> None:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "scripted",
        "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
        "models": {"scripted": {"name": "scripted"}},
    }
    settings = {
        "provider": {"scripted": provider},
        "model": "scripted/scripted",
        "small_model": "scripted/scripted",
        "autoupdate": False,
        "share": "disabled",
    }
    _write(home / ".config" / "opencode" / "opencode.json", json.dumps(settings))


PROGRAMS: Final[Mapping[str, Program]] = {
    "opencode": Program(
        "opencode",
        "opencode-ai",
        "opencode",
        _opencode_files,
        lambda _: {},
        ("run", PROMPT),
        slash=lambda name: ("run", "--command", f"skills:{name}", "tea"),
    ),
    "codex": Program(
        "Codex",
        "@openai/codex",
        "codex",
        _codex_files,
        lambda _: {"SCRIPTED_KEY": "none"},
        ("exec", "--skip-git-repo-check", PROMPT),
        relist=("--enable", "mcp_tool_list_changed"),
    ),
    "claude-code": Program(
        "Claude Code",
        "@anthropic-ai/claude-code",
        "claude",
        _nothing,
        _claude_code,
        ("-p", PROMPT),
        approval=("--allowedTools", "mcp__skills"),
        slash=lambda name: ("-p", f"/mcp__skills__{name} tea"),
    ),
    "gemini-cli": Program(
        "Gemini CLI",
        "@google/gemini-cli",
        "gemini",
        _gemini_files,
        lambda url: {"GEMINI_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": url},
        # Without a model of its own it first asks another one which to take.
        ("-p", PROMPT, "--model", "gemini-2.5-pro", "--skip-trust"),
        install=("--trust",),
    ),
}
