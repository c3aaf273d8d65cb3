"""What changes while a server runs: tokens, the level of the log. What is broken changes nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.access.quotas import Rates
from mcp_skills_server.access.tokens import Tokens, read_token_file
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import Views
from mcp_skills_server.cli import cli
from mcp_skills_server.commands.config_file import command_named
from mcp_skills_server.commands.opening import OpenedRoots, make_views
from mcp_skills_server.commands.options import warn_of_unknown_variables
from mcp_skills_server.commands.reloading import Reloader
from mcp_skills_server.commands.serve import serve
from mcp_skills_server.errors import UsageError
from tables import each_row
from web.http_wire import HELLO, HttpClient, Server, Stream, http_serving
from wire import serving, write_skill

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and modes as POSIX has them")

TEXT = "roots = ['skills']\ntoken-file = 'tokens'\n"
OLD, NEW, OTHER = ("a-made-up-token-0123456789", "another-made-up-token-0123456789", "a-third-token-0123456789")


def replace(path: Path, text: str) -> None:
    """Write it as careful tools do, so that nobody reads half of it."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text)
    fresh.chmod(0o600)
    os.replace(fresh, path)


def reload(server: Server) -> None:
    """Have the server read its files now; that it sees changes by itself is shown for tokens and configuration once."""
    server.process.send_signal(signal.SIGHUP)


def status(server: Server, *tokens: str) -> tuple[int, ...]:
    """The status of a handshake with each of these tokens."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}).encode()
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    return tuple(
        server.send(body=body, headers=headers | {"Authorization": f"Bearer {each}"}).status for each in tokens
    )


def shown(server: Server, path: str) -> str:
    return server.send("GET", path, headers={"Authorization": f"Bearer {OTHER}"}).body.decode()


@contextmanager
def listening(server: Server, token: str) -> Iterator[Stream]:
    stream = HttpClient(server, "modern", token=token).listen(skillsListChanged=True)
    try:
        yield stream
    finally:
        stream.close()


@pytest.mark.parametrize("by", ["signal", "change"])
def test_tokens_are_read_again_and_only_who_lost_one_is_disconnected(tmp_path: Path, by: str) -> None:
    write_skill(tmp_path / "skills" / "one")
    tokens = tmp_path / "tokens"
    replace(tokens, f"a={OLD}\nb={OTHER}\n")
    with http_serving(tmp_path / "skills", "--token-file", tokens) as server, ExitStack() as opened:
        leaving, staying = (opened.enter_context(listening(server, token)) for token in (OLD, OTHER))
        assert status(server, NEW) == (401,)
        replace(tokens, f"a={NEW}\nb={OTHER}\n")
        if by == "signal":
            reload(server)
        server.said("the tokens were reloaded; there are 2 of them")
        assert leaving.rest() == []
        assert status(server, OLD, NEW, OTHER) == (401, 200, 200)
        assert staying.messages.empty() and staying.whole is None
        assert OLD not in server.stderr and NEW not in server.stderr


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs")
@pytest.mark.parametrize("which", ["tokens", "c.toml"])
def test_a_fifo_for_a_moment_does_not_end_reloading(tmp_path: Path, which: str) -> None:
    write_skill(tmp_path / "skills" / "one")
    file, tokens = tmp_path / "c.toml", tmp_path / "tokens"
    replace(tokens, f"a={OLD}\nb={OTHER}\n")
    replace(file, TEXT)
    with http_serving("--config", file) as server:
        there = (tmp_path / which).read_text()
        os.mkfifo(tmp_path / "fifo")
        os.replace(tmp_path / "fifo", tmp_path / which)
        reload(server)
        server.said("not a regular file")
        replace(tmp_path / which, there)
        reload(server)
        server.said("valid again")
        replace(tokens, f"b={OTHER}\n")
        reload(server)
        server.said("the tokens were reloaded; there are 1 of them")
        assert status(server, OLD, OTHER) == (401, 200)


def test_a_removed_token_goes_even_where_another_line_is_wrong_and_monitoring_shows_it(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "one")
    tokens = tmp_path / "tokens"
    replace(tokens, f"gone={OLD}\nslip={NEW}\nstays={OTHER}\n")
    with http_serving(tmp_path / "skills", "--token-file", tokens, "--metrics") as server:
        assert re.search(r"^configuration: read at \d{4}-.*Z$", shown(server, "/readyz?verbose"), re.MULTILINE)
        replace(tokens, f"slip=short\nstays={OTHER}\nwrong\n")
        reload(server)
        server.said(r"line 1: the token has fewer than 16 characters \(and 1 more\); all other lines are in force")
        assert status(server, OLD, NEW, OTHER) == (401, 200, 200)
        (line,) = re.findall("^configuration: .*$", shown(server, "/readyz?verbose"), re.MULTILINE)
        assert re.match(rf"configuration: refused at \S+Z: {tokens}, line 1: the token has fewer than 16", line)
        assert "skills_config_last_reload_successful 0.0" in shown(server, "/metrics")
        replace(tokens, f"stays={OTHER}\n")
        reload(server)
        server.said("there are 1 of them")
        assert status(server, NEW) == (401,)
        while "configuration: read at" not in shown(server, "/readyz?verbose"):
            assert server.process.poll() is None
        assert "skills_config_last_reload_successful 1.0" in shown(server, "/metrics")


def test_a_configuration_is_read_again(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "one")
    file = tmp_path / "c.toml"
    replace(tmp_path / "tokens", f"a={OLD}\n")
    replace(tmp_path / "more", f"a={NEW}\n")
    replace(file, TEXT)
    with http_serving("--config", file, "--max-depth", "3") as server:
        assert status(server, OLD) == (200,)
        replace(file, TEXT + "page_size = 7\n")
        server.said(r"WARNING: \S+c.toml:3: page_size: there is no such key; write page-size; the configuration stays")
        assert status(server, OLD) == (200,)
        replace(file, TEXT)
        reload(server)
        server.said("INFO: the files are valid again")
        replace(file, "roots = ['skills']\ntoken-file = 'more'\nlog-level = 'debug'\npage-size = 7\nmax-depth = 5\n")
        reload(server)
        server.said("WARNING: .*c.toml: page-size: this takes effect at the next start\n")  # an option said max-depth
        assert status(server, OLD, NEW) == (401, 200)
        server.said("DEBUG: ")
        replace(file, "roots = ['skills']\nlog-level = 'info'\n")
        reload(server)
        server.said("turning tokens on or off takes effect at the next start")
        assert status(server, OLD, NEW) == (401, 200)


@each_row("command", ["serve", "rpc", "acp"])
def test_a_wrong_configuration_is_wrong_usage(command: str, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("page_size = 7\nhost = 1\n")
    with pytest.raises(UsageError, match=r"c.toml:1: page_size: there is no such key; write page-size \(and 1 more"):
        command_named(command).make_context(command, ["--config", str(file)])


def test_over_stdio_a_configuration_gives_roots_and_the_level_of_the_log(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "one")
    replace(tmp_path / "c.toml", "roots = ['skills']\n")
    with serving("--config", tmp_path / "c.toml") as wire:
        assert [each["name"] for each in wire.every_skill()] == ["one"]
        replace(tmp_path / "c.toml", "roots = ['skills']\nlog-level = 'debug'\n")
        wire.logs(b"c.toml was reloaded")
        wire.every_skill()
        wire.logs(b"DEBUG: ")


def test_a_variable_that_nobody_reads_is_a_warning_with_the_nearest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("PAGESIZE", "GRACE", "PAGE_SIZE"):
        monkeypatch.setenv(f"MCP_SKILLS_{name}", "7")
    with click.Context(cli) as above:
        warn_of_unknown_variables(serve.make_context("serve", [], parent=above))
    assert caplog.messages == ["MCP_SKILLS_PAGESIZE: there is no such variable; set MCP_SKILLS_PAGE_SIZE"]


GRANT = "[[grant]]\nwho = ['*']\nskills = ['**']\n"


def reloader_of(file: Path) -> tuple[Reloader, Tokens, Views]:
    """What follows this file of a server that has not begun."""
    context = serve.make_context("serve", ["--config", str(file)])
    tokens = Tokens(read_token_file(context.params["token_file"]).require_valid())
    registry = Registry([file.parent / "skills"])
    views = make_views(registry, context.params["config"], local=False)
    rates = Rates(context.params["config"].quotas)
    return Reloader(context, views, OpenedRoots(registry, None), tokens, rates), tokens, views


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration whose tokens are in a file beside it."""
    write_skill(tmp_path / "skills" / "one")
    replace(tmp_path / "tokens", f"a={OLD}\n")
    replace(tmp_path / "c.toml", f"{TEXT}{GRANT}")
    return tmp_path / "c.toml"


@each_row(("broken", "said"), [("a=short\n", "fewer than 16"), ("", "there is no token"), (None, "No such file")])
def test_a_broken_file_of_tokens_is_one_line_and_the_old_ones_stay(
    file: Path, caplog: pytest.LogCaptureFixture, broken: str | None, said: str
) -> None:
    caplog.set_level("INFO", "mcp_skills_server")
    tokens_file = file.with_name("tokens")
    replace(tokens_file, f"a={OLD}\n")
    reloader, tokens, _ = reloader_of(file)
    before = [*tokens]
    if broken is None:
        tokens_file.unlink()
    else:
        replace(tokens_file, broken)
    reloader.reload()
    assert re.search(f"{said}.*; the tokens stay as they were", reloader.refused)
    assert caplog.messages == [reloader.refused] and [*tokens] == before
    replace(tokens_file, f"a={OLD}\n")
    reloader.reload()
    assert caplog.messages[1:] == ["the files are valid again, and fully in force"]
    replace(tokens_file, f"a={NEW}\n")
    reloader.reload()
    assert caplog.messages[2:] == ["the tokens were reloaded; there are 1 of them"] and [*tokens] != before


def test_tokens_and_grants_come_into_force_together(file: Path) -> None:
    tokens_file = file.with_name("tokens")
    replace(tokens_file, f"a={OLD} groups=y\n")
    replace(file, TEXT + GRANT.replace("*'", "group:x'", 1))
    reloader, tokens, views = reloader_of(file)
    states: list[tuple[set[str], bool]] = []

    def between(work: Callable[[], object]) -> None:
        for step in (bool, work, bool):
            step()
            somebody = Principal("token", "b", groups=frozenset("x"))
            states.append(({*next(iter(tokens)).groups}, views.of(somebody) is views.of(None)))

    tokens.between_requests = between
    views.on_replaced(lambda _before, _now: states.append(({*next(iter(tokens)).groups}, False)))
    replace(tokens_file, f"a={OLD} groups=x\n")
    replace(file, TEXT + GRANT.replace("**", "open/*"))
    reloader.reload()
    assert states == [({"y"}, False), ({"x"}, False), ({"x"}, True), ({"x"}, True)]
    states.clear()
    reloader.reload()
    assert states == []  # nothing is new


OAUTH = "[oauth]\nissuer = 'https://login.example'\naudience = 'https://skills.example/mcp'\n"
SOURCE = "[[source]]\nfrom = 'more'\nscripts = false\n"
GIT = "[[source]]\nfrom = 'git+https://git.example/a'\nrefresh = 60\n"


@each_row(("before", "after", "keys"), [
    (OAUTH, OAUTH.replace("login", "other"), "oauth"), (OAUTH, f"{OAUTH}skew = 5\n", "oauth"), (OAUTH, "", "oauth"),
    (SOURCE, SOURCE.replace("false", "true"), "source"), (GIT, GIT.replace("60", "90"), ""),
    (GRANT, "", "grant"), ("", GRANT, "grant"), (GRANT, GRANT.replace("**", "a"), ""),
    ("", "[quota]\nsessions = 2\n", "quota"), ("", "[quota]\nrequests-per-minute = 2\n", ""), ("", "", ""),
])  # fmt: skip
def test_what_waits_for_the_next_start_is_one_line(
    file: Path, caplog: pytest.LogCaptureFixture, before: str, after: str, keys: str
) -> None:
    caplog.set_level("INFO", "mcp_skills_server")
    write_skill(file.parent / "more" / "two")
    replace(file, TEXT + before)
    reloader, _, _ = reloader_of(file)
    replace(file, TEXT + after)
    reloader.reload()
    waits = [f"{file}: {keys}: this takes effect at the next start"] if keys else []
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == waits
    assert (f"{file} was reloaded" in caplog.messages) is (before != after)
    assert ("the grants were reloaded; there are 1 of them" in caplog.messages) is (
        before == GRANT != keys and "a" in after
    )


def test_tokens_that_expire_soon_are_named_and_the_state_is_a_line(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reloader, _, _ = reloader_of(file)
    soon = datetime.fromtimestamp(time.time() + 3600, UTC).isoformat(timespec="seconds")
    replace(file.with_name("tokens"), f"a={NEW} expires={soon}\n")
    reloader.reload()
    assert "tokens expire soon: a (" in caplog.text
    assert re.fullmatch(r"configuration: read at \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", reloader.state())
    registry = Registry([file.parent / "skills"])
    context = serve.make_context("serve", [str(file.parent)])
    assert Reloader(context, Views(registry), OpenedRoots(registry, None)).state() == ""


def test_a_server_without_tokens_stays_without(file: Path) -> None:
    replace(file, "roots = ['skills']\n")
    registry = Registry([file.parent / "skills"])
    context = serve.make_context("serve", ["--config", str(file)])
    reloader = Reloader(context, Views(registry), OpenedRoots(registry, None), Tokens([]))
    reloader.reload()
    assert reloader.refused == ""
    replace(file, TEXT)
    reloader.reload()
    assert reloader.refused.startswith("turning tokens on or off takes effect at the next start")


def test_a_value_that_click_refuses_changes_nothing(file: Path) -> None:
    reloader, _, _ = reloader_of(file)
    replace(file, f"redis = 'nonsense'\n{TEXT}{GRANT}")
    reloader.reload()
    assert reloader.refused.endswith("; the configuration stays as it was")
