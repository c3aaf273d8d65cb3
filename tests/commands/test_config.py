"""The configuration file: what is wrong is said with its line, and what is right comes after what was given."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from commands.calls import invoke, refusal, run, seen
from mcp_skills_server.access.settings import OAuthSettings
from mcp_skills_server.cli import cli
from mcp_skills_server.commands.config_file import READERS, ConfigurationError, oauth_settings, parameters, parse, read
from mcp_skills_server.commands.opening import open_served
from mcp_skills_server.commands.runtime_options import RuntimeOptions, script_settings
from mcp_skills_server.commands.serve import ServeOptions, serve
from mcp_skills_server.errors import RequestError, UsageError
from mcp_skills_server.runtime.scripts.policy import ExecutionPolicy
from mcp_skills_server.runtime.scripts.settings import ScriptSettings
from tables import each_row
from wire import write_skill

OAUTH = "[oauth]\nissuer = 'https://l.example'\naudience = 'https://s.example/mcp'"

OPTIONS = ("oauth_issuer", "oauth_audience", "oauth_resource")
WRONG: list[tuple[str, int, str, str]] = [
    # text, line, key, the beginning or a part of the hint
    # What is no TOML
    ("page-size 7", 1, "", "write key = value"),
    ("roots = [\n  'a'\n  'b'\n]", 3, "", "write key = value"),
    ("# fine\nhost = 'a\nport = 1", 3, "", "write key = value"),
    ("port = 1\n\n[source]\n[[source]]", 4, "", "write key = value"),
    # No such key
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
    # Of another type
    ("watch = 'false'", 1, "watch", "write true or false"),
    ("host = 127", 1, "host", "write text in quotes"),
    ("prompt = 'acme/*'", 1, "prompt", 'write a list of text, such as ["PATTERN"]'),
    ("roots = [\n  'a',\n  1,\n]", 1, "roots", "write a list of text"),
    ("session-idle = 1979-05-27", 1, "session-idle", 'write a number from 1, or "90s", "5m", "1h"'),
    # Of a value that is not taken
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
    # Of grants
    ("grant = []", 1, "grant", "write a table [[grant]] with who"),
    ("[[grant]]\nwho = ['*']", 1, "grant.skills", "write a list of skill paths"),
    ("[[grant]]\nwho = ['*', 'laptop']\nskills = ['a']", 2, "grant.who", 'write a list of "*"'),
    ("[[grant]]\nwho = ['*']\nskills = ['a/']", 3, "grant.skills", "write a list of skill paths"),
    ("[[grant]]\nwho = ['*']\nskills = ['a']\nmay = ['write']", 4, "grant.may", 'write a list of "read", "scripts"'),
    ("[[grant]]\nwho = ['*']\nskills = ['a/**']\nmay = ['admin']", 4, "grant.may", 'write skills = ["**"], or leave'),
    # Of the table of an issuer
    ("oauth = 'https://login.example'", 1, "oauth", "write a table [oauth] with issuer and audience"),
    ("[oauth]\naudience = 'https://s.example'", 1, "oauth.issuer", 'write issuer = "https://login.example"'),
    (f"{OAUTH}\nsecret = 'x'", 4, "oauth.secret", "docs/configuration.md"),
    (OAUTH.replace("https://l", "http://l"), 2, "oauth.issuer", "write the https URL of the issuer"),
    (OAUTH.replace("l.example", "l.example?x"), 2, "oauth.issuer", "write the https URL of the issuer"),
    (OAUTH.replace("https://s", "s"), 3, "oauth.audience", 'add resource = "https://skills.example/mcp"'),
    (f"{OAUTH}\nresource = 's.example'", 4, "oauth.resource", "write the https URL of the endpoint for clients"),
    (f"{OAUTH}\nscopes = ['read write']", 4, "oauth.scopes", "write a list of scopes"),
    (f"{OAUTH}\nalgorithms = ['HS256']", 4, "oauth.algorithms", 'write a list of "RS256"'),
    (f"{OAUTH}\nskew = '1h'", 4, "oauth.skew", "write a number from 0 to 600"),
    # Of values that do not go together
    ("[[source]]\nfrom = 'a'\n[[source]]\nfrom = 'a'", 4, "source.from", "name it once"),
    ("[[source]]\nfrom = 'a'\n[[source]]\nfrom = './a'", 4, "source.from", "name it once"),
    (f"[[source]]\nfrom = 'a'\n[[source]]\nfrom = '{os.getcwd()}/a'", 4, "source.from", "name it once"),
    ("roots = ['a']\n[[source]]\nfrom = 'a'", 3, "source.from", "name it once"),
    ("[[source]]\nfrom = 'skills'\nrefresh = 60", 3, "source.refresh", "leave it out"),
    ("[[source]]\nfrom = 'https://skills.example'\nrefresh = 60", 3, "source.refresh", "leave it out"),
]


def faults_of(text: str | bytes) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as raised:
        parse(text if isinstance(text, bytes) else text.encode(), "c.toml")
    return raised.value


@each_row(("text", "line", "key", "hint"), WRONG)
def test_a_wrong_file_is_one_line_with_file_line_key_and_hint(text: str, line: int, key: str, hint: str) -> None:
    (fault,) = faults_of(text).faults
    shown = fault.show("c.toml")
    assert (fault.line, fault.key) == (line, key)
    assert fault.hint.startswith(hint) or hint in fault.hint
    assert shown.startswith(f"c.toml:{line}: {key}") and shown.endswith(f"; {fault.hint}") and shown.isprintable()


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
def test_a_value_of_a_table_is_taken_up_to_its_limits(key: str, fits: list[str], fails: list[str]) -> None:
    table, name = key.split(".")
    root = "mcp+https://s.example/mcp" if name == "token-env" else "git+https://git.example/a"
    given = {"source": {"from": f"'{root}'"}, "grant": {"who": "['*']", "skills": "['a']"}, "oauth": {}, "quota": {}}
    head = {"source": "[[source]]", "grant": "[[grant]]", "oauth": OAUTH, "quota": "[quota]"}[table]
    for value in (*fits, *fails):
        keys = {**given[table], name: value}
        text = "\n".join([head, *(f"{each} = {its}" for each, its in keys.items())])
        if value in fits:
            assert parse(text.encode(), "c.toml")
        else:
            assert [each.key for each in faults_of(text).faults] == [key], value


def test_a_text_with_a_unit_is_seconds_and_a_file_has_at_most_1_mib(tmp_path: Path) -> None:
    for text, seconds in (("90s", 90), ("1.5m", 90), ("2h", 7200)):
        assert parse(f"refresh = '{text}'".encode(), "c.toml").values["refresh"] == seconds
    file = tmp_path / "c.toml"
    file.write_bytes(b"port = 1\n".ljust(1 << 20))
    assert read(str(file)).values == {"port": 1}
    file.write_bytes(b"port = 1\n".ljust((1 << 20) + 1))
    with pytest.raises(ConfigurationError, match=r"c\.toml: it has more than 1,048,576 bytes; "):
        read(str(file))


@each_row(("raw", "said"), [
    (b"\n\xff = 1", "c.toml:2: this is not UTF-8"), (b"a = " + b"[" * 5000, "c.toml: it is nested too deeply"),
    (b"port = " + b"9" * 5000, "this is not TOML"), (b"\x00", "c.toml:1: this is not TOML"),
])  # fmt: skip
def test_wild_bytes_are_one_line_too(raw: bytes, said: str) -> None:
    error = faults_of(raw)
    assert said in str(error) and str(error).isprintable()


def test_all_faults_are_found_at_once_and_no_value_is_shown() -> None:
    secret = "not-a-real-secret"
    error = faults_of(f"tokens = ['{secret}']\nport = '{secret}'\n[[source]]\nfrom = 'a'\nscripts = '{secret}'\n")
    assert [(each.line, each.key) for each in error.faults] == [(1, "tokens"), (2, "port"), (5, "source.scripts")]
    assert secret not in "".join(each.show("c.toml") for each in error.faults)
    assert "(and 2 more; see 'mcp-skills-server config check')" in str(error)


@each_row("key", parameters())
def test_every_option_can_stand_in_a_file(key: str) -> None:
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


def test_every_option_of_its_readers_is_a_key() -> None:
    with click.Context(cli) as context:
        names = {each.name for name in READERS for each in (cli.get_command(context, name) or click.Command("")).params}
    assert names - {each.name for each in parameters().values()} == {"config", *OPTIONS}


def test_paths_are_from_the_folder_of_the_file_and_sources_are_roots(tmp_path: Path) -> None:
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
    assert found.values["audit_log"] == "-"  # which is stdout, not a file of this name
    rules, fetched = found.rules_of(os.path.relpath(f"{etc}/more")), found.rules_of(git)
    assert rules is not None and fetched is not None and found.rules_of("/abs") is None
    assert (rules.scripts, rules.require_signature, rules.refresh_s) == (False, (f"{etc}/keys/b",), None)
    assert (fetched.scripts, fetched.refresh_s) == (True, 300)


def test_options_come_before_variables_before_the_file_before_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(*words: str) -> dict[str, Any]:
        return serve.make_context("serve", ["--config", f"{tmp_path}/c.toml", *words]).params

    text = "page-size = 7\nmax-files = 8\nmax-depth = 9\nprompt = ['a', 'b c']\nwatch = false\nroots = ['x']\n"
    (tmp_path / "c.toml").write_text(text)
    monkeypatch.setenv("MCP_SKILLS_PAGE_SIZE", "70")
    monkeypatch.setenv("MCP_SKILLS_MAX_FILES", "80")
    found = taken("--page-size", "700")
    values = {name: found[name] for name in ("page_size", "max_files", "max_depth", "max_loaded", "watch")}
    assert values == {"page_size": 700, "max_files": 80, "max_depth": 9, "max_loaded": 8, "watch": False}
    assert (found["prompt_choice"], found["roots"]) == (("a", "b c"), (f"{tmp_path}/x",))
    assert taken("elsewhere")["roots"] == ("elsewhere",)


def test_check_prints_a_line_for_each_fault(tmp_path: Path) -> None:
    def checked(name: str) -> tuple[int, str]:
        done = invoke("config", "check", tmp_path / name)
        return done.return_value, done.output

    file = tmp_path / "c.toml"
    file.write_text("port = 1\npage_size = 7\nhost = 3\n")
    code, output = checked("c.toml")
    first, second = output.splitlines()
    assert code == 1 and first.startswith(f"{file}:2: page_size: ") and second.startswith(f"{file}:3: host: ")
    file.write_text("port = 1\n")
    assert checked("c.toml") == (0, f"{file}: nothing is wrong\n")
    code, output = checked("none")
    assert code == 1 and output.startswith(f"{tmp_path}/none: it cannot be read (No such file")


def shown(file: Path, *words: str) -> dict[str, list[str]]:
    """The rows of `config show serve` by key."""
    done = invoke("config", "show", "serve", "--config", file, *words)
    return {line.split()[0]: line.split()[1:] for line in done.output.splitlines()}


def test_show_says_what_is_in_force_and_where_it_is_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "not-a-real-secret-0123456789"
    file = tmp_path / "c.toml"
    file.write_text(
        f"max-files = 8\ntokens = 'a={secret}'\nrefresh-secret = '{secret}'\nredis = 'redis://me:{secret}@cache'\n"
        f"[[source]]\nfrom = 'git+https://me:{secret}@git.example/a'\nscripts = false\nrefresh = '5m'\n"
        "[quota]\nstreams = 8\nruns = 2\n[[grant]]\nwho = ['*', 'user:x']\nskills = ['a', 'b']\nmay = ['scripts']\n"
    )
    monkeypatch.setenv("MCP_SKILLS_MAX_DEPTH", "9")
    monkeypatch.setenv("MCP_SKILLS_REDIS_PASSWORD", secret)
    rows = shown(file, "--page-size", "5")
    assert secret not in str(rows) and rows["refresh-secret"][1] == "********"
    assert (
        rows.items()
        >= {
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
            "reconcile": ["default", "300.0"],
            "watch": ["default", "true"],
            "lock": ["default", "-"],
            "include": ["default", "-"],
        }.items()
    )


def test_grants_says_what_somebody_may_and_why(tmp_path: Path) -> None:
    for path in ("acme/billing", "open", "secret"):
        write_skill(tmp_path / "skills" / path)
    (tmp_path / "tokens").write_text("laptop=0123456789abcdef groups=finance\nci=fedcba9876543210\n")
    file = tmp_path / "c.toml"
    file.write_text(
        "roots = ['skills']\ntoken-file = 'tokens'\n[[grant]]\nwho = ['group:finance', 'user:5e2c']\n"
        "skills = ['acme/*']\nmay = ['scripts']\n[[grant]]\nwho = ['*']\nskills = ['open']\n"
    )

    def said(*words: str) -> list[str]:
        done = invoke("config", "grants", *words, "--config", file)
        return [*done.stdout.splitlines(), done.stderr.splitlines()[-1]]

    everybody = "open          read          c.toml:7 * open"
    group = "group:finance"
    for words, why in ((["token:laptop"], group), (["user:x", "--group", "finance"], group),
                       (["user:5e2c"], "user:5e2c"), ([group], group)):  # fmt: skip
        head, first, second, last = said(*words)
        assert head.split() == ["SKILL", "MAY", "WHY"] and second == everybody
        assert first == f"acme/billing  read,scripts  c.toml:3 {why} acme/*"
        assert last == f"{words[0]}{' of finance' if why == group else ''} reads 2 of 3 skills"
    for who in ("token:ci", "user:x", "local", "*"):
        assert said(who)[1:] == ["open   read  c.toml:7 * open", f"{who} reads 1 of 3 skills"]
    by = {"place": f"{file}:3", "who": ["user:5e2c"], "patterns": ["acme/*"]}
    found = seen("config", "grants", "user:5e2c", "--config", file)
    assert found["skills"][0] == {"skill": "acme/billing", "may": ["read", "scripts"], "grants": [by]}
    assert (found["who"], found["groups"], found["withheld"]) == ("user:5e2c", [], 1)
    assert seen("config", "grants", "local", "--config", file)["groups"] == []
    for words, why in (
        (["token:lap"], "there is no token 'lap'; there are: ci, laptop"),
        (["ann"], "'ann' is not a principal; write"),
        (["token:ci", "--group", "x"], "--group is for users"),
    ):
        assert why in refusal("config", "grants", *words, "--config", file)
    file.write_text("roots = ['skills']\n[[grant]]\nwho = ['user:x']\nskills = ['open']\n")
    assert "there are: none" in refusal("config", "grants", "token:ci", "--config", file)
    assert said("local") == ["local reads 0 of 3 skills"]
    file.write_text("roots = ['skills']\n")
    for given in (["--config", file], []):
        assert "there are no grants, so every client" in refusal("config", "grants", "local", *given)


def test_a_grant_that_no_client_can_use_is_named_by_its_line(tmp_path: Path) -> None:
    text = "roots = ['.']\ntransport = 'http'\n[[grant]]\nwho = ['*']\nskills = ['a']\n"
    (tmp_path / "c.toml").write_text(text + "[[grant]]\nwho = ['user:ann']\nskills = ['a']\n")
    done = run("serve", "--config", "c.toml", cwd=tmp_path)
    assert done.returncode == 2 and "c.toml:6: grant.who: no client can prove who it is" in done.stderr


def test_a_warning_of_a_command_is_under_its_name(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "one")
    (tmp_path / "tokens").write_text("laptop=0123456789abcdef\n")
    (tmp_path / "tokens").chmod(0o644)
    text = "roots = ['skills']\ntoken-file = 'tokens'\n[[grant]]\nwho = ['*']\nskills = ['one']\n"
    (tmp_path / "c.toml").write_text(text)
    done = run("config", "grants", "token:laptop", "--config", "c.toml", cwd=tmp_path)
    assert done.stderr.startswith(f"mcp-skills-server: WARNING: {tmp_path}/tokens can be read by every user")


def test_a_source_without_scripts_has_none(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_skill(tmp_path / name / name)
    found = parse(b"roots = ['one']\n[[source]]\nfrom = 'two'\nscripts = false\n", f"{tmp_path}/c.toml")
    options = ServeOptions(config=found)
    opened = open_served(found.values["roots"], options)
    registry, scripts = opened.registry, opened.scripts
    assert scripts == {f"{tmp_path}/two": False}
    registry.load()
    policy = ExecutionPolicy(registry, ScriptSettings(roots=scripts))
    policy.decide(None, [registry.snapshot.skills["one"]])
    with pytest.raises(RequestError, match="excluded the scripts of its source"):
        policy.decide(None, [registry.snapshot.skills["two"]])
    assert script_settings(RuntimeOptions(), roots=scripts) is None


@each_row("source", ["link", "two/SKILL.md"])
def test_rules_that_would_hold_of_nothing_are_refused(tmp_path: Path, source: str) -> None:
    write_skill(tmp_path / "two")
    (tmp_path / "link").symlink_to(tmp_path / "two")
    found = parse(f"roots = ['two']\n[[source]]\nfrom = '{source}'\nscripts = false\n".encode(), f"{tmp_path}/c.toml")
    with pytest.raises(UsageError, match="name the folder itself, once"):
        open_served(found.values["roots"], ServeOptions(config=found))


def oauth(tmp_path: Path, text: str, *options: str) -> OAuthSettings | None:
    """Whose tokens are taken with this file and these options."""
    (tmp_path / "c.toml").write_text(text)
    values = serve.make_context("serve", [str(tmp_path), "--config", f"{tmp_path}/c.toml", *options]).params
    return oauth_settings(values["config"], values)


def test_an_issuer_is_read_and_shown(tmp_path: Path) -> None:
    file, more = tmp_path / "c.toml", "scopes = ['read', 'run']\ngroups-claim = 'roles'\nalgorithms = ['ES256']\n"
    more += "skew = '2m'\nresource = 'https://r.example'"
    plain, full = oauth(tmp_path, OAUTH), oauth(tmp_path, f"port = 1\n{OAUTH}\n{more}\n")
    assert plain == OAuthSettings("https://l.example", "https://s.example/mcp", "https://s.example/mcp")
    assert full == OAuthSettings(
        "https://l.example", "https://s.example/mcp", "https://r.example", "roles", ("read", "run"), ("ES256",), 120
    )
    rows = shown(file)
    assert rows["oauth.issuer"] == [f"{file}:2", "https://l.example"]
    assert rows["oauth.scopes"] == [f"{file}:2", "read", "run"] and rows["oauth.skew"] == [f"{file}:2", "120"]
    assert rows["oauth.request-scopes"] == rows["oauth.scopes"]  # those in force, where the file has none
    file.write_text("port = 1\n")
    rows = shown(file, "--oauth-issuer", "https://l.example", "--oauth-audience", "https://s.example/mcp")
    assert rows["oauth.issuer"] == ["option", "https://l.example"] and rows["oauth.skew"] == ["default", "60"]
    for other, key in (((), "port"), (("acp",), "grace")):
        said = invoke("config", "show", *other, "--config", file).output
        assert f"\n{key} " in said and "oauth." not in said
    assert "\nport " in invoke("config", "show").output


def test_options_come_before_the_table_of_the_issuer(tmp_path: Path) -> None:
    assert oauth(tmp_path, "") is None
    audience, teams = "https://skills.other/mcp", f"{OAUTH}\ngroups-claim = 'teams'\n"
    plain = OAuthSettings("https://l.example", "https://s.example/mcp", "https://s.example/mcp", "teams")
    other = oauth(tmp_path, teams, "--oauth-issuer", "https://other.example")
    assert other == replace(plain, issuer="https://other.example")
    moved = oauth(tmp_path, teams, "--oauth-audience", audience)
    assert moved == replace(plain, audience=audience, resource=audience)
    kept = oauth(tmp_path, f"{teams}resource = 'https://outer.example'", "--oauth-audience", "api://a")
    assert kept == replace(plain, audience="api://a", resource="https://outer.example")
    alone = oauth(tmp_path, "", "--oauth-issuer", "https://login.example", "--oauth-audience", audience)
    assert alone == OAuthSettings("https://login.example", audience, audience)


@each_row(("options", "said"), [
    (["--oauth-issuer", "https://a.example"], "--oauth-audience is missing"),
    (["--oauth-audience", "https://a.example"], "--oauth-issuer is missing"),
    (["--oauth-issuer", "http://a.example", "--oauth-audience", "https://b.example"], "--oauth-issuer: it does not",),
    (["--oauth-issuer", "", "--oauth-audience", "https://b.example"], "--oauth-issuer: it does not take this value",),
    (["--oauth-issuer", "https://a.example", "--oauth-audience", "api://b"], "give --oauth-resource too"),
    (["--oauth-issuer", ""], "--oauth-audience is missing"),
])  # fmt: skip
def test_options_of_an_issuer_that_cannot_be_are_one_line(tmp_path: Path, options: list[str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        oauth(tmp_path, "", *options)
    assert said in str(caught.value) and "\n" not in str(caught.value)
