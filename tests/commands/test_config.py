"""Configuration file and `config`: faults with their lines, precedence, values in force, grants."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from commands.calls import invoke, json_of, refusal, run
from mcp_skills_server.access.settings import OAuthSettings
from mcp_skills_server.cli import cli
from mcp_skills_server.commands.config_file import READERS, ConfigurationError, parameters, parse, read
from mcp_skills_server.commands.features.table import oauth_settings
from mcp_skills_server.commands.opening import open_served
from mcp_skills_server.commands.serve import serve
from mcp_skills_server.commands.serve_options import ServeOptions
from mcp_skills_server.errors import UsageError
from tables import each_row
from wire import write_skill

OAUTH = "[oauth]\nissuer = 'https://l.example'\naudience = 'https://s.example/mcp'"

OPTIONS = ("oauth_issuer", "oauth_audience", "oauth_resource")
WRONG: list[tuple[str, int, str, str]] = [
    # text, line and key of the fault, the beginning or a part of the hint
    # Invalid TOML
    ("page-size 7", 1, "", "write key = value"),
    ("roots = [\n  'a'\n  'b'\n]", 3, "", "write key = value"),
    ("# fine\nhost = 'a\nport = 1", 3, "", "write key = value"),
    ("port = 1\n\n[source]\n[[source]]", 4, "", "write key = value"),
    # Unknown keys
    ("page_size = 7", 1, "page_size", "write page-size"),
    ("MCP_SKILLS_PAGE_SIZE = 7", 1, "MCP_SKILLS_PAGE_SIZE", "write page-size"),
    ("no-watch = true", 1, "no-watch", "write watch"),
    ("allowed-hosts = ['a']", 1, "allowed-hosts", "write allowed-host"),
    ("zzzzzz = 1", 1, "zzzzzz", "docs/configuration.md"),
    ("[server-settings]\nport = 1", 1, "server-settings", "put its keys at the top of the file"),
    ("[[source]]\nfrom = 'a'\nrequire_signature = ['k']", 3, "source.require_signature", "write require-signature"),
    ("[[source]]\nfrom = 'a'\n[[source]]\nfrom = 'b'\nscript = true", 5, "source.script", "write scripts"),
    ("quota = 1", 1, "quota", "write a table [quota] with keys such as requests-per-minute = 600"),
    ("[quota]\nruns = 0", 2, "quota.runs", "write a whole number from 1"),
    ("quota = [1]", 1, "quota", "write a table [quota] with keys such as requests-per-minute = 600"),
    ("[[quota]]\nruns = 1\n[[quota]]\nwho = ['*']\nrun = 2", 5, "quota.run", "write runs"),
    ("[[quota]]\nruns = 1\n\n[[quota]]\nruns = 2", 4, "quota", 'write who = a list of "*"'),
    ("[[quota]]\nruns = 1\n[[quota]]\nwho = []", 4, "quota.who", 'write a list of "*", "local", "token:NAME"'),
    ("[[quota]]\nwho = ['ci']", 2, "quota.who", 'write a list of "*", "local", "token:NAME"'),
    ("[[quota]]\nwho = ['team:ci']", 2, "quota.who", 'write a list of "*", "local", "token:NAME"'),
    (
        "[[quota]]\nwho = ['group:a']\nfailed-authentications-per-minute = 9",
        3,
        "quota.failed-authentications-per-minute",
        "put it into a table [[quota]] without who",
    ),
    # Wrong types
    ("watch = 'false'", 1, "watch", "write true or false"),
    ("host = 127", 1, "host", "write text in quotes"),
    ("prompt = 'acme/*'", 1, "prompt", 'write a list of text, such as ["PATTERN"]'),
    ("roots = 'skills'", 1, "roots", 'write a list of text, such as ["ROOT"]'),
    ("roots = [\n  'a',\n  1,\n]", 1, "roots", "write a list of text"),
    ("session-idle = 1979-05-27", 1, "session-idle", 'write a number from 1, or "90s", "5m", "1h"'),
    # Values out of range
    ("page-size = 0", 1, "page-size", "write a whole number from 1 to 1000"),
    ("request-timeout = 0", 1, "request-timeout", "write a number above 0"),
    ("request-timeout = nan", 1, "request-timeout", "write a number above 0"),
    ("refresh = '5 minutes'", 1, "refresh", 'write a number from 1, or "90s"'),
    ("log-level = 'loud'", 1, "log-level", 'write one of "debug"'),
    ('token-file = "a\\u0000b"', 1, "token-file", "write text in quotes"),
    ("host = ''", 1, "host", "write text in quotes"),
    ("# one\n\n[[source]]\nscripts = false", 3, "source.from", 'write from = "ROOT"'),
    ("[[source]]\nfrom = 'a'\nrequire-signature = []", 3, "source.require-signature", "write a list of paths"),
    ("[[source]]\nfrom = 'git+https://git.example/a'\nrefresh = '0s'", 3, "source.refresh", "write a number from 1"),
    ("[[source]]\nfrom = 'https://s.example'\ntoken-env = 'A'", 3, "source.token-env", "leave it out"),
    # Grants
    ("grant = []", 1, "grant", "write a table [[grant]] with who"),
    ("[[grant]]\nwho = ['*']", 1, "grant.skills", "write a list of skill paths"),
    ("[[grant]]\nwho = ['*', 'laptop']\nskills = ['a']", 2, "grant.who", 'write a list of "*"'),
    ("[[grant]]\nwho = ['*']\nskills = ['a/']", 3, "grant.skills", "write a list of skill paths"),
    ("[[grant]]\nwho = ['*']\nskills = ['a']\nmay = ['write']", 4, "grant.may", 'write a list of "read", "scripts"'),
    ("[[grant]]\nwho = ['*']\nskills = ['a/**']\nmay = ['admin']", 4, "grant.may", 'write skills = ["**"], or leave'),
    # The table [oauth]
    ("oauth = 'https://login.example'", 1, "oauth", "write a table [oauth] with issuer and audience"),
    ("[oauth]\naudience = 'https://s.example'", 1, "oauth.issuer", 'write issuer = "https://login.example"'),
    (f"[{OAUTH.replace(']', ']]', 1)}\n[[oauth]]", 1, "oauth", "write a table [oauth] with issuer and audience"),
    (f"{OAUTH}\nsecret = 'x'", 4, "oauth.secret", "docs/configuration.md"),
    (OAUTH.replace("https://l", "http://l"), 2, "oauth.issuer", "write the https URL of the issuer"),
    (OAUTH.replace("l.example", "l.example?x"), 2, "oauth.issuer", "write the https URL of the issuer"),
    (OAUTH.replace("https://s", "s"), 3, "oauth.audience", 'add resource = "https://skills.example/mcp"'),
    (f"{OAUTH}\nresource = 's.example'", 4, "oauth.resource", "write the https URL of the endpoint for clients"),
    (f"{OAUTH}\nscopes = ['read write']", 4, "oauth.scopes", "write a list of scopes"),
    (f"{OAUTH}\nalgorithms = ['HS256']", 4, "oauth.algorithms", 'write a list of "RS256"'),
    (f"{OAUTH}\nskew = '1h'", 4, "oauth.skew", "write a number from 0 to 600"),
    # Values that contradict each other
    ("[[source]]\nfrom = 'a'\n[[source]]\nfrom = 'a'", 4, "source.from", "name it once"),
    ("[[source]]\nfrom = 'a'\n[[source]]\nfrom = './a'", 4, "source.from", "name it once"),
    (f"[[source]]\nfrom = 'a'\n[[source]]\nfrom = '{os.getcwd()}/a'", 4, "source.from", "name it once"),
    ("roots = ['a']\n[[source]]\nfrom = 'a'", 3, "source.from", "name it once"),
    ("[[source]]\nfrom = 'skills'\nrefresh = 60", 3, "source.refresh", "leave it out"),
    ("[[source]]\nfrom = 'https://skills.example'\nrefresh = 60", 3, "source.refresh", "leave it out"),
    ("[[source]]\nfrom = 'https://skills.example'\noptional = true", 3, "source.optional", "leave it out"),
]


def faults_of(text: str | bytes) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as raised:
        parse(text if isinstance(text, bytes) else text.encode(), "c.toml")
    return raised.value


@each_row(("text", "line", "key", "hint"), WRONG)
def test_fault_names_file_line_key_and_hint(text: str, line: int, key: str, hint: str) -> None:
    (fault,) = faults_of(text).faults
    message = fault.show("c.toml")
    assert (fault.line, fault.key) == (line, key)
    assert hint in fault.hint
    assert message.startswith(f"c.toml:{line}: {key}")
    assert message.endswith(f"; {fault.hint}")
    assert message.isprintable()


@each_row(("key", "fits", "fails"), [
    ("source.refresh", ["1", "'1s'", "'2h'"], ["0.5", "'0s'"]), ("source.require-signature", ["['k']"], ["[]"]),
    ("source.include", ["['a']"], ["[]"]), ("source.exclude", ["['a']"], ["[]"]),
    ("source.token-env", ["'A'"], ["''", "'a b'"]), ("grant.who", ["['*']"], ["[]"]),
    ("grant.skills", ["['**']"], ["[]"]), ("oauth.algorithms", ["['ES256']"], ["[]"]),
    ("oauth.scopes", ["[]"], ["['']"]),
    ("oauth.skew", ["0", "600", "'10m'"], ["-1", "601", "'11m'"]),
    ("quota.runs", ["1", str(1 << 40)], ["0", str((1 << 40) + 1), "1.5", "'1s'"]),
    ("quota.requests-per-minute", ["1", "1_000_000"], ["0", "1_000_001"]),
])  # fmt: skip
def test_table_values_are_accepted_within_their_bounds(key: str, fits: list[str], fails: list[str]) -> None:
    table, name = key.split(".")
    root = "mcp+https://s.example/mcp" if name == "token-env" else "git+https://git.example/a"
    heads = {
        "source": f"[[source]]\nfrom = '{root}'",
        "grant": "[[grant]]\nwho = ['*']\nskills = ['a']",
        "oauth": OAUTH,
        "quota": "[quota]",
    }
    # The tested key is left out of the head.
    head = "\n".join(line for line in heads[table].splitlines() if not line.startswith(name))
    for value in fits:
        assert parse(f"{head}\n{name} = {value}".encode(), "c.toml")
    for value in fails:
        assert [each.key for each in faults_of(f"{head}\n{name} = {value}").faults] == [key], value


@each_row("head", ["[source]\nfrom = 'a'", "[grant]\nwho = ['*']\nskills = ['a']", "[quota]\nruns = 2"])
def test_table_that_may_repeat_is_read_once_or_several_times(head: str) -> None:
    name = head[1 : head.index("]")]
    single, several = parse(head.encode(), "c.toml"), parse(head.replace(f"[{name}]", f"[[{name}]]").encode(), "c.toml")
    assert replace(single, lines={}) == replace(several, lines={})


@each_row(("text", "seconds"), [("90s", 90), ("1.5m", 90), ("2h", 7200)])
def test_duration_with_a_unit_is_converted_to_seconds(text: str, seconds: int) -> None:
    assert parse(f"refresh = '{text}'".encode(), "c.toml").values["refresh"] == seconds


def test_file_of_1_mib_is_the_largest(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_bytes(b"port = 1\n".ljust(1 << 20))
    assert read(str(file)).values == {"port": 1}
    file.write_bytes(b"port = 1\n".ljust((1 << 20) + 1))
    with pytest.raises(ConfigurationError, match=r"c\.toml: it cannot be read \(it has more than 1,048,576 bytes\); "):
        read(str(file))


@each_row(("raw", "message"), [
    (b"\n\xff = 1", "c.toml:2: this is not UTF-8"),
    (b"a = " + b"[" * 5000, "c.toml:1: this is not TOML: it is nested more than 100 levels deep"),
    (b"port = " + b"9" * 5000, "this is not TOML"), (b"\x00", "c.toml:1: this is not TOML"),
])  # fmt: skip
def test_bytes_that_are_not_toml_are_reported_in_one_line(raw: bytes, message: str) -> None:
    error = faults_of(raw)
    assert message in str(error) and str(error).isprintable()


def test_all_faults_are_reported_without_their_values() -> None:
    secret = "not-a-real-secret"
    error = faults_of(f"tokens = ['{secret}']\nport = '{secret}'\n[[source]]\nfrom = 'a'\nscripts = '{secret}'\n")
    assert [(each.line, each.key) for each in error.faults] == [(1, "tokens"), (2, "port"), (5, "source.scripts")]
    assert secret not in "".join(each.show("c.toml") for each in error.faults)
    assert "(and 2 more; see 'mcp-skills-server config check')" in str(error)


@each_row("key", parameters())
def test_every_option_is_accepted_in_a_file(key: str) -> None:
    parameter = parameters()[key]
    text = "'a'"
    if isinstance(parameter, click.Argument) or parameter.multiple:
        text = "['.py=a']"
    elif isinstance(parameter, click.Option) and parameter.is_flag:
        text = "true"
    elif isinstance(parameter.type, click.Choice):
        text = f"'{parameter.type.choices[0]}'"
    elif isinstance(parameter.type, (click.IntRange, click.FloatRange)):
        text = str(max(1, int(parameter.type.min or 1)))
    assert parameter.name in parse(f"{key} = {text}".encode(), "c.toml").values


def test_every_option_of_the_reading_commands_is_a_key() -> None:
    with click.Context(cli) as context:
        names = {each.name for name in READERS for each in (cli.get_command(context, name) or click.Command("")).params}
    assert names - {each.name for each in parameters().values()} == {"config", *OPTIONS}


def test_paths_are_relative_to_the_file_and_sources_are_roots(tmp_path: Path) -> None:
    found = parse(
        b"roots = ['skills', '/abs', 'https://skills.example']\ntoken-file = '../tokens'\n"
        b"require-signature = ['keys/a']\nlock = 'skills.lock'\nembeddings = 'https://models.example/v1'\n"
        b"usage = 'sqlite:usage.db'\naudit-log = '-'\n"
        b"[[source]]\nfrom = 'more'\nscripts = false\nrequire-signature = ['keys/b']\n"
        b"[[source]]\nfrom = 'git+https://git.example/a@main'\nrefresh = '5m'\nscripts = true\n",
        f"{tmp_path}/etc/c.toml",
    )
    etc, git = f"{tmp_path}/etc", "git+https://git.example/a@main"
    assert found.values["roots"] == (f"{etc}/skills", "/abs", "https://skills.example", f"{etc}/more", git)
    assert (found.values["token_file"], found.values["lock"]) == (f"{tmp_path}/tokens", f"{etc}/skills.lock")
    assert found.values["require_signature"] == (f"{etc}/keys/a",)
    assert found.values["embeddings"] == "https://models.example/v1"
    assert found.values["usage"] == f"sqlite:{etc}/usage.db"
    assert found.values["audit_log"] == "-"  # stdout, not a file of this name
    rules, fetched = found.rules_of(os.path.relpath(f"{etc}/more")), found.rules_of(git)
    assert rules is not None and fetched is not None and found.rules_of("/abs") is None
    assert (rules.scripts, rules.require_signature, rules.refresh_s) == (False, (f"{etc}/keys/b",), None)
    assert (fetched.scripts, fetched.refresh_s) == (True, 300)


def test_precedence_is_option_environment_file_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def params(*words: str) -> dict[str, Any]:
        return serve.make_context("serve", ["--config", f"{tmp_path}/c.toml", *words]).params

    text = "page-size = 7\nmax-files = 8\nmax-depth = 9\nprompt = ['a', 'b c']\nwatch = false\nroots = ['x']\n"
    (tmp_path / "c.toml").write_text(text)
    monkeypatch.setenv("MCP_SKILLS_PAGE_SIZE", "70")
    monkeypatch.setenv("MCP_SKILLS_MAX_FILES", "80")
    found = params("--page-size", "700")
    values = {name: found[name] for name in ("page_size", "max_files", "max_depth", "max_loaded", "watch")}
    assert values == {"page_size": 700, "max_files": 80, "max_depth": 9, "max_loaded": 8, "watch": False}
    assert (found["prompt_choice"], found["roots"]) == (("a", "b c"), (f"{tmp_path}/x",))
    assert params("elsewhere")["roots"] == ("elsewhere",)


def test_check_prints_a_line_for_each_fault(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("port = 1\npage_size = 7\nhost = 3\n")
    done = invoke("config", "check", file)
    first, second = done.output.splitlines()
    assert done.return_value == 1
    assert first.startswith(f"{file}:2: page_size: ") and second.startswith(f"{file}:3: host: ")
    file.write_text("port = 1\n")
    done = invoke("config", "check", file)
    assert (done.return_value, done.output) == (0, f"{file}: nothing is wrong\n")
    done = invoke("config", "check", f"{tmp_path}/none")
    assert done.return_value == 1
    assert done.output.startswith(f"{tmp_path}/none: it cannot be read (No such file")


def show_rows(file: Path, *words: str) -> dict[str, list[str]]:
    """Return the words of each row of `config show serve` by key."""
    done = invoke("config", "show", "serve", "--config", file, *words)
    return {line.split()[0]: line.split()[1:] for line in done.output.splitlines()}


def test_show_prints_values_and_origins_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "not-a-real-secret-0123456789"
    file = tmp_path / "c.toml"
    file.write_text(
        f"max-files = 8\ntokens = 'a={secret}'\nrefresh-secret = '{secret}'\nredis = 'redis://me:{secret}@cache'\n"
        f"[[source]]\nfrom = 'git+https://me:{secret}@git.example/a'\nscripts = false\nrefresh = '5m'\n"
        "[quota]\nstreams = 8\nruns = 2\n[[grant]]\nwho = ['*', 'user:x']\nskills = ['a', 'b']\nmay = ['scripts']\n"
    )
    monkeypatch.setenv("MCP_SKILLS_MAX_DEPTH", "9")
    monkeypatch.setenv("MCP_SKILLS_REDIS_PASSWORD", secret)
    rows = show_rows(file, "--page-size", "5")
    assert secret not in str(rows) and rows["refresh-secret"][1] == "********"
    expected = {
        "page-size": ["option", "5"],
        "max-depth": ["environment", "MCP_SKILLS_MAX_DEPTH", "9"],
        "max-files": [f"{file}:1", "8"],
        "max-loaded": ["default", "8"],
        "tokens": [f"{file}:2", "********"],
        "redis": [f"{file}:4", "redis://cache"],
        "redis-password": ["environment", "MCP_SKILLS_REDIS_PASSWORD", "********"],
        "roots": [f"{file}:5", "git+https://git.example/a"],
        "source": [f"{file}:5", "git+https://git.example/a", "scripts=false", "refresh=300"],
        "quota.streams": [f"{file}:10", "8"],
        "quota.runs": [f"{file}:11", "2"],
        "grant": [f"{file}:12", "who=*,user:x", "skills=a,b", "may=read,scripts"],
        "reconcile": ["default", "300"],
        "watch": ["default", "true"],
        "lock": ["default", "-"],
        "include": ["default", "-"],
    }
    assert expected.items() <= rows.items()


def test_show_prints_each_table_of_quotas(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[[quota]]\nwho = ['group:ci', 'user:x']\nstreams = 8\n[[quota]]\nruns = 2\n")
    rows = show_rows(file)
    assert rows["quota.streams"] == [f"{file}:3", "8", "who=group:ci,user:x"]
    assert rows["quota.runs"] == [f"{file}:5", "2"]


def test_grants_prints_permissions_and_their_reasons(tmp_path: Path) -> None:
    for path in ("acme/billing", "open", "secret"):
        write_skill(tmp_path / "skills" / path)
    (tmp_path / "tokens").write_text("laptop=0123456789abcdef groups=finance\nci=fedcba9876543210\n")
    file = tmp_path / "c.toml"
    file.write_text(
        "roots = ['skills']\ntoken-file = 'tokens'\n[[grant]]\nwho = ['group:finance', 'user:5e2c']\n"
        "skills = ['acme/*']\nmay = ['scripts']\n[[grant]]\nwho = ['*']\nskills = ['open']\n"
    )

    def grants_lines(*words: str) -> list[str]:
        """Return the table on stdout, and the last line of stderr."""
        done = invoke("config", "grants", *words, "--config", file)
        return [*done.stdout.splitlines(), done.stderr.splitlines()[-1]]

    group = "group:finance"
    for words, why, who in (
        (["token:laptop"], group, "token:laptop of finance"),
        (["user:x", "--group", "finance"], group, "user:x of finance"),
        (["user:5e2c"], "user:5e2c", "user:5e2c"),
        ([group], group, group),
    ):
        head, first, second, last = grants_lines(*words)
        assert head.split() == ["SKILL", "MAY", "WHY"]
        assert first == f"acme/billing  read,scripts  c.toml:3 {why} acme/*"
        assert second == "open          read          c.toml:7 * open"
        assert last == f"{who} reads 2 of 3 skills"
    for who in ("token:ci", "user:x", "local", "*"):
        assert grants_lines(who)[1:] == ["open   read  c.toml:7 * open", f"{who} reads 1 of 3 skills"]
    by = {"place": f"{file}:3", "who": ["user:5e2c"], "patterns": ["acme/*"]}
    found = json_of("config", "grants", "user:5e2c", "--config", file)
    assert found["skills"][0] == {"skill": "acme/billing", "may": ["read", "scripts"], "grants": [by]}
    assert (found["who"], found["groups"], found["withheld"]) == ("user:5e2c", [], 1)
    assert json_of("config", "grants", "local", "--config", file)["groups"] == []
    head, *rows = invoke("config", "grants", "--skill", "acme/billing", "--config", file).stdout.splitlines()
    assert head.split() == ["WHO", "MAY", "WHY"]
    assert rows == [
        "group:finance  read,scripts  c.toml:3 group:finance acme/*",
        "user:5e2c      read,scripts  c.toml:3 user:5e2c acme/*",
        "token:laptop   read,scripts  c.toml:3 group:finance acme/*",
    ]
    (reader,) = json_of("config", "grants", "--skill", "open", "--config", file)["readers"]
    assert (reader["who"], reader["may"], reader["grants"][0]["place"]) == ("*", ["read"], f"{file}:7")
    assert grants_lines("--skill", "secret") == ["nobody may read 'secret'"]
    for words, why in (
        ([], "give WHO, or --skill PATH"),
        (["local", "--skill", "open"], "and not both"),
        (["token:lap"], "there is no token 'lap'; there are: ci, laptop"),
        (["ann"], "'ann' is not a principal; write"),
        (["token:ci", "--group", "x"], "--group is for users"),
    ):
        assert why in refusal("config", "grants", *words, "--config", file)
    file.write_text("roots = ['skills']\n[[grant]]\nwho = ['user:x']\nskills = ['open']\n")
    assert "there are: none" in refusal("config", "grants", "token:ci", "--config", file)
    assert grants_lines("local") == ["local reads 0 of 3 skills"]
    file.write_text("roots = ['skills']\n")
    for options in (["--config", file], []):
        assert "there are no grants, so every client" in refusal("config", "grants", "local", *options)


def test_grant_that_no_client_can_use_is_refused_with_its_line(tmp_path: Path) -> None:
    text = "roots = ['.']\ntransport = 'http'\n[[grant]]\nwho = ['*']\nskills = ['a']\n"
    (tmp_path / "c.toml").write_text(text + "[[grant]]\nwho = ['user:ann']\nskills = ['a']\n")
    done = run("serve", "--config", "c.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert "c.toml:6: grant.who: no client can prove who it is" in done.stderr


@each_row("source", ["link", "two/SKILL.md"])
def test_source_rules_for_a_symlink_or_a_file_are_refused(tmp_path: Path, source: str) -> None:
    write_skill(tmp_path / "two")
    (tmp_path / "link").symlink_to(tmp_path / "two")
    found = parse(f"roots = ['two']\n[[source]]\nfrom = '{source}'\nscripts = false\n".encode(), f"{tmp_path}/c.toml")
    with pytest.raises(UsageError, match="name the folder itself, once"):
        open_served(found.values["roots"], ServeOptions(config=found))


def oauth_settings_of(tmp_path: Path, text: str, *options: str) -> OAuthSettings | None:
    """Return the OAuth settings of a server with this file and these options."""
    (tmp_path / "c.toml").write_text(text)
    values = serve.make_context("serve", [str(tmp_path), "--config", f"{tmp_path}/c.toml", *options]).params
    return oauth_settings(values["config"] and values["config"].oauth, values)


def test_oauth_table_is_parsed_and_shown(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    more = "scopes = ['read', 'run']\ngroups-claim = 'roles'\nalgorithms = ['ES256']\n"
    more += "skew = '2m'\nresource = 'https://r.example'"
    plain = oauth_settings_of(tmp_path, OAUTH)
    full = oauth_settings_of(tmp_path, f"port = 1\n{OAUTH}\n{more}\n")
    assert plain == OAuthSettings("https://l.example", "https://s.example/mcp", "https://s.example/mcp")
    assert full == OAuthSettings(
        "https://l.example", "https://s.example/mcp", "https://r.example", "roles", ("read", "run"), ("ES256",), 120
    )
    rows = show_rows(file)
    assert rows["oauth.issuer"] == [f"{file}:2", "https://l.example"]
    assert rows["oauth.scopes"] == [f"{file}:2", "read", "run"]
    assert rows["oauth.skew"] == [f"{file}:2", "120"]
    assert rows["oauth.request-scopes"] == rows["oauth.scopes"]  # the default of request-scopes
    file.write_text("port = 1\n")
    rows = show_rows(file, "--oauth-issuer", "https://l.example", "--oauth-audience", "https://s.example/mcp")
    assert rows["oauth.issuer"] == ["option", "https://l.example"] and rows["oauth.skew"] == ["default", "60"]
    for other, key in (((), "port"), (("acp",), "grace")):
        output = invoke("config", "show", *other, "--config", file).output
        assert f"\n{key} " in output and "oauth." not in output
    assert "\nport " in invoke("config", "show").output


def test_oauth_options_override_the_table(tmp_path: Path) -> None:
    assert oauth_settings_of(tmp_path, "") is None
    audience, teams = "https://skills.other/mcp", f"{OAUTH}\ngroups-claim = 'teams'\n"
    plain = OAuthSettings("https://l.example", "https://s.example/mcp", "https://s.example/mcp", "teams")
    other = oauth_settings_of(tmp_path, teams, "--oauth-issuer", "https://other.example")
    assert other == replace(plain, issuer="https://other.example")
    moved = oauth_settings_of(tmp_path, teams, "--oauth-audience", audience)
    assert moved == replace(plain, audience=audience, resource=audience)
    kept = oauth_settings_of(tmp_path, f"{teams}resource = 'https://outer.example'", "--oauth-audience", "api://a")
    assert kept == replace(plain, audience="api://a", resource="https://outer.example")
    alone = oauth_settings_of(tmp_path, "", "--oauth-issuer", "https://login.example", "--oauth-audience", audience)
    assert alone == OAuthSettings("https://login.example", audience, audience)


@each_row(("options", "message"), [
    (["--oauth-issuer", "https://a.example"], "--oauth-audience is missing"),
    (["--oauth-audience", "https://a.example"], "--oauth-issuer is missing"),
    (["--oauth-issuer", "http://a.example", "--oauth-audience", "https://b.example"], "--oauth-issuer: it does not",),
    (["--oauth-issuer", "", "--oauth-audience", "https://b.example"], "--oauth-issuer: it does not take this value",),
    (["--oauth-issuer", "https://a.example", "--oauth-audience", "api://b"], "give --oauth-resource too"),
    (["--oauth-issuer", ""], "--oauth-audience is missing"),
])  # fmt: skip
def test_invalid_oauth_options_are_reported_in_one_line(tmp_path: Path, options: list[str], message: str) -> None:
    with pytest.raises(UsageError) as raised:
        oauth_settings_of(tmp_path, "", *options)
    assert message in str(raised.value) and "\n" not in str(raised.value)
