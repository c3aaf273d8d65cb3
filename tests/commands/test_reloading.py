"""Reload of tokens, grants and configuration in a running server; invalid files change nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import click
import pytest

from mcp_skills_server.access.principal import Principal
from mcp_skills_server.access.tokens import Tokens, read_token_file
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.views import Views
from mcp_skills_server.cli import cli
from mcp_skills_server.commands import reloading
from mcp_skills_server.commands.config_file import command_named
from mcp_skills_server.commands.features.feature import HttpServices
from mcp_skills_server.commands.features.replicas import SharedState
from mcp_skills_server.commands.opening import OpenedRoots, make_views
from mcp_skills_server.commands.options import warn_of_unknown_variables
from mcp_skills_server.commands.reloading import Reloader
from mcp_skills_server.commands.serve import serve
from mcp_skills_server.errors import UsageError
from mcp_skills_server.web.front import FrontSettings
from mcp_skills_server.web.open_responses import OpenResponses
from mcp_skills_server.web.policy import make_policy
from tables import each_row
from web.http_wire import HELLO, HttpClient, Server, Stream, Target, http_serving
from web.in_process import app_serving
from wire import DEADLINE, write_skill

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and modes as POSIX has them")

TEXT = "roots = ['skills']\ntoken-file = 'tokens'\n"
OLD, NEW, OTHER = ("a-made-up-token-0123456789", "another-made-up-token-0123456789", "a-third-token-0123456789")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration file, with its token file and a root beside it."""
    write_skill(tmp_path / "skills" / "one")
    replace(tmp_path / "tokens", f"a={OLD}\n")
    replace(tmp_path / "c.toml", f"{TEXT}{GRANT}")
    return tmp_path / "c.toml"


def replace(path: Path, text: str) -> None:
    """Replace a file atomically, with a mode that draws no warning."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text)
    fresh.chmod(0o600)
    os.replace(fresh, path)


def send_hangup(server: Server) -> None:
    """Make the server reload at once; two tests wait for its poll instead."""
    server.process.send_signal(signal.SIGHUP)


def statuses(server: Target, *tokens: str) -> tuple[int, ...]:
    """Return the status of a handshake with each of these tokens."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}).encode()
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    return tuple(
        server.send(body=body, headers=headers | {"Authorization": f"Bearer {each}"}).status for each in tokens
    )


def get(server: Target, path: str) -> str:
    return server.send("GET", path, headers={"Authorization": f"Bearer {OTHER}"}).body.decode()


@contextmanager
def open_stream(server: Server, token: str) -> Iterator[Stream]:
    stream = HttpClient(server, "modern", token=token).listen(skillsListChanged=True)
    try:
        yield stream
    finally:
        stream.close()


@pytest.mark.parametrize("trigger", ["signal", "poll"])
def test_token_reload_disconnects_only_clients_of_removed_tokens(tmp_path: Path, trigger: str) -> None:
    write_skill(tmp_path / "skills" / "one")
    tokens = tmp_path / "tokens"
    replace(tokens, f"a={OLD}\nb={OTHER}\n")
    with (
        http_serving(tmp_path / "skills", "--token-file", tokens) as server,
        open_stream(server, OLD) as revoked,
        open_stream(server, OTHER) as kept,
    ):
        assert statuses(server, NEW) == (401,)
        replace(tokens, f"a={NEW}\nb={OTHER}\n")
        if trigger == "signal":
            send_hangup(server)
        server.wait_for_log("the tokens were reloaded; there are 2 of them")
        assert revoked.rest() == []
        assert statuses(server, OLD, NEW, OTHER) == (401, 200, 200)
        assert kept.messages.empty() and kept.whole is None
        assert OLD not in server.stderr and NEW not in server.stderr


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs")
def test_fifo_in_place_of_a_file_does_not_stop_reloading(config: Path) -> None:
    tokens = config.with_name("tokens")
    replace(tokens, f"a={OLD}\nb={OTHER}\n")
    with app_serving("--config", config) as server:
        for times, path in enumerate((tokens, config), 1):
            text = path.read_text()
            fifo = config.with_name("fifo")
            os.mkfifo(fifo)
            os.replace(fifo, path)
            server.reload()
            server.wait_for_log("not a regular file", times)
            replace(path, text)
            server.reload()
            server.wait_for_log("valid again", times)
        replace(tokens, f"b={OTHER}\n")
        server.reload()
        server.wait_for_log("the tokens were reloaded; there are 1 of them")
        assert statuses(server, OLD, OTHER) == (401, 200)


def test_removed_token_is_revoked_despite_invalid_lines_and_monitoring_reports_them(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills" / "one")
    tokens = tmp_path / "tokens"
    replace(tokens, f"gone={OLD}\nslip={NEW}\nstays={OTHER}\n")
    with app_serving(tmp_path / "skills", "--token-file", tokens, "--metrics") as server:
        assert re.search(r"^configuration: read at \d{4}-.*Z$", get(server, "/readyz?verbose"), re.MULTILINE)
        replace(tokens, f"slip=short\nstays={OTHER}\nwrong\n")
        server.reload()
        server.wait_for_log(
            r"line 1: the token has fewer than 16 characters \(and 1 more\); all other lines are in force"
        )
        assert statuses(server, OLD, NEW, OTHER) == (401, 200, 200)
        (line,) = re.findall("^configuration: .*$", get(server, "/readyz?verbose"), re.MULTILINE)
        assert re.match(rf"configuration: refused at \S+Z: {tokens}, line 1: the token has fewer than 16", line)
        assert "skills_config_last_reload_successful 0.0" in get(server, "/metrics")
        replace(tokens, f"stays={OTHER}\n")
        server.reload()
        server.wait_for_log("there are 1 of them")
        assert statuses(server, NEW) == (401,)
        assert "configuration: read at" in get(server, "/readyz?verbose")
        assert "skills_config_last_reload_successful 1.0" in get(server, "/metrics")


def test_configuration_file_is_reloaded(config: Path) -> None:
    replace(config, TEXT)
    replace(config.with_name("more"), f"a={NEW}\n")
    with http_serving("--config", config, "--max-depth", "3") as server:
        assert statuses(server, OLD) == (200,)
        replace(config, TEXT + "page_size = 7\n")
        server.wait_for_log(
            r"WARNING: \S+c.toml:3: page_size: there is no such key; write page-size; "
            "the configuration stays"
        )
        assert statuses(server, OLD) == (200,)
        replace(config, TEXT)
        send_hangup(server)
        server.wait_for_log("INFO: the files are valid again")
        # max-depth is overridden by the command line, so only page-size waits for a restart.
        replace(
            config,
            "roots = ['skills']\ntoken-file = 'more'\nlog-level = 'debug'\npage-size = 7\nmax-depth = 5\n",
        )
        send_hangup(server)
        server.wait_for_log("WARNING: .*c.toml: page-size: this takes effect at the next start\n")
        assert statuses(server, OLD, NEW) == (401, 200)
        server.wait_for_log("DEBUG: ")
        replace(config, "roots = ['skills']\nlog-level = 'info'\n")
        send_hangup(server)
        server.wait_for_log("turning tokens on or off takes effect at the next start")
        assert statuses(server, OLD, NEW) == (401, 200)


@each_row("command", ["serve", "rpc", "acp"])
def test_invalid_configuration_is_a_usage_error(command: str, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("page_size = 7\nhost = 1\n")
    with pytest.raises(UsageError, match=r"c.toml:1: page_size: there is no such key; write page-size \(and 1 more"):
        command_named(command).make_context(command, ["--config", str(file)])


def test_unknown_variable_is_a_warning_that_names_the_nearest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("PAGESIZE", "GRACE", "PAGE_SIZE"):
        monkeypatch.setenv(f"MCP_SKILLS_{name}", "7")
    with click.Context(cli) as above:
        warn_of_unknown_variables(serve.make_context("serve", [], parent=above))
    assert caplog.messages == ["MCP_SKILLS_PAGESIZE: there is no such variable; set MCP_SKILLS_PAGE_SIZE"]


GRANT = "[[grant]]\nwho = ['*']\nskills = ['**']\n"


@dataclass
class Reloading:
    """A reloader of a server that has not started, with the tokens and views that it replaces."""

    reloader: Reloader
    tokens: Tokens
    views: Views


def services_of(tokens: Tokens, responses: OpenResponses | None = None) -> HttpServices:
    policy = make_policy("127.0.0.1", (), (), tokens)
    front = FrontSettings(policy, responses=responses or OpenResponses())
    return HttpServices(front, tokens, SharedState(poll_sources=int))


def make_reloading(config: Path, responses: OpenResponses | None = None) -> Reloading:
    context = serve.make_context("serve", ["--config", str(config)])
    tokens = Tokens(read_token_file(context.params["token_file"]).require_valid())
    registry = Registry([config.parent / "skills"])
    views = make_views(registry, context.params["config"], local=False)
    http = services_of(tokens, responses)
    reloader = Reloader(context, views, OpenedRoots(registry, None), http)
    return Reloading(reloader, tokens, views)


@each_row(("broken", "message"), [("a=short\n", "fewer than 16"), ("", "there is no token"), (None, "No such file")])
def test_broken_token_file_is_reported_and_the_old_tokens_stay(
    config: Path, caplog: pytest.LogCaptureFixture, broken: str | None, message: str
) -> None:
    caplog.set_level("INFO", "mcp_skills_server")
    tokens_file = config.with_name("tokens")
    replace(tokens_file, f"a={OLD}\n")
    reloading = make_reloading(config)
    reloader, tokens = reloading.reloader, reloading.tokens
    before = [*tokens]
    if broken is None:
        tokens_file.unlink()
    else:
        replace(tokens_file, broken)
    reloader.reload()
    assert re.search(f"{message}.*; the tokens stay as they were", reloader.refused)
    assert caplog.messages == [reloader.refused]
    assert [*tokens] == before
    replace(tokens_file, f"a={OLD}\n")
    reloader.reload()
    assert caplog.messages[1:] == ["the files are valid again, and fully in force"]
    replace(tokens_file, f"a={NEW}\n")
    reloader.reload()
    assert caplog.messages[2:] == ["the tokens were reloaded; there are 1 of them"]
    assert [*tokens] != before


def test_token_file_without_permission_is_reported_once(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reloader = make_reloading(config).reloader
    access, open_file = os.access, os.open

    def refuse(path: object, *rest: object, **more: object) -> int:
        if str(path).endswith("tokens"):
            raise PermissionError(13, "Permission denied", str(path))
        return open_file(path, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("tokens") and access(path, mode))
    reloader.reload()
    assert reloader.refused.count("tokens:") == reloader.refused.count(";") / 2 == 1
    assert "Permission denied" in reloader.refused


def test_stopped_reloader_ends_its_thread(config: Path) -> None:
    reloader = make_reloading(config).reloader
    reloader.start()
    reloader.stop()
    assert "skills-configuration" not in [thread.name for thread in threading.enumerate()]


def test_tokens_and_grants_are_replaced_atomically(config: Path) -> None:
    tokens_file = config.with_name("tokens")
    replace(tokens_file, f"a={OLD} groups=y\n")
    replace(config, TEXT + GRANT.replace("*'", "group:x'", 1))
    member = Principal("token", "b", groups=frozenset("x"))
    # Groups of the token, and True if a member of group x has the view of everyone.
    states: list[tuple[set[str], bool]] = []

    def groups() -> set[str]:
        return {*next(iter(reloading.tokens)).groups}

    def record_state() -> None:
        states.append((groups(), reloading.views.for_principal(member) is reloading.views.for_principal(None)))

    class Recording(OpenResponses):
        def between_requests(self, work: Callable[[], object]) -> None:
            record_state()
            work()
            record_state()

    reloading = make_reloading(config, Recording())
    reloading.views.on_replaced(lambda _before, _now: states.append((groups(), False)))
    replace(tokens_file, f"a={OLD} groups=x\n")
    replace(config, TEXT + GRANT.replace("**", "open/*"))
    reloading.reloader.reload()
    assert states == [({"y"}, False), ({"x"}, False), ({"x"}, True)]
    states.clear()
    reloading.reloader.reload()
    assert states == []  # unchanged files replace nothing


OAUTH = "[oauth]\nissuer = 'https://login.example'\naudience = 'https://skills.example/mcp'\n"
SOURCE = "[[source]]\nfrom = 'more'\nscripts = false\n"
GIT = "[[source]]\nfrom = 'git+https://git.example/a'\nrefresh = 60\n"


@each_row(("before", "after", "keys"), [
    (OAUTH, OAUTH.replace("login", "other"), "oauth"), (OAUTH, f"{OAUTH}skew = 5\n", "oauth"), (OAUTH, "", "oauth"),
    (SOURCE, SOURCE.replace("false", "true"), "source"), (GIT, GIT.replace("60", "90"), ""),
    (GRANT, "", "grant"), ("", GRANT, "grant"), (GRANT, GRANT.replace("**", "a"), ""),
    ("", "[quota]\nsessions = 2\n", ""), ("", "", ""),
])  # fmt: skip
def test_changes_that_need_a_restart_are_reported_in_one_line(
    config: Path, caplog: pytest.LogCaptureFixture, before: str, after: str, keys: str
) -> None:
    caplog.set_level("INFO", "mcp_skills_server")
    write_skill(config.parent / "more" / "two")
    replace(config, TEXT + before)
    reloader = make_reloading(config).reloader
    replace(config, TEXT + after)
    reloader.reload()
    expected = [f"{config}: {keys}: this takes effect at the next start"] if keys else []
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == expected
    assert (f"{config} was reloaded" in caplog.messages) is (before != after)
    are_grants_reloaded = (before, after) == (GRANT, GRANT.replace("**", "a"))
    message = "the grants were reloaded; there are 1 of them"
    assert (message in caplog.messages) is are_grants_reloaded


def test_grants_that_return_to_the_file_are_in_force(config: Path, caplog: pytest.LogCaptureFixture) -> None:
    replace(config, TEXT + GRANT)
    reloading = make_reloading(config)
    assert reloading.views.permissions(None) is not None
    for text in ("", GRANT.replace("**", "open/*")):
        replace(config, TEXT + text)
        reloading.reloader.reload()
    permissions = reloading.views.permissions(None)
    assert permissions is not None and not permissions.can_read_all
    assert caplog.messages == [f"{config}: grant: this takes effect at the next start"]  # of the file without them


def test_lock_file_whose_source_is_unreachable_is_retried(
    config: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reloader = make_reloading(config).reloader
    answers = ["it is unreachable", "it is unreachable", "", ""]

    def relock(_: OpenedRoots) -> str:
        if not answers:
            raise SystemExit  # ends `_follow`
        if len(answers) == 1:
            reloader.request_reload()
        return answers.pop(0)

    polls = iter([reloader._read_state] * 100)
    monkeypatch.setattr(Reloader, "_stat_files", lambda _: next(polls))
    monkeypatch.setattr(OpenedRoots, "relock", relock)
    monkeypatch.setattr(reloading, "_RETRY_S", 0.0)
    monkeypatch.setattr(reloading, "_POLL_S", 0.01)
    caplog.set_level("INFO", "mcp_skills_server")
    reloader.reload()
    assert reloader.refused == "it is unreachable"
    with pytest.raises(SystemExit):
        reloader._follow()
    assert reloader.refused == ""
    assert caplog.messages == ["it is unreachable", "the files are valid again, and fully in force"]


def test_file_that_never_rests_does_not_hold_up_the_others(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reloader, states, read = make_reloading(config).reloader, count(), threading.Event()
    monkeypatch.setattr(Reloader, "_stat_files", lambda _: [(next(states),)])
    monkeypatch.setattr(Reloader, "reload", lambda _: read.set())
    monkeypatch.setattr(reloading, "_POLL_S", 0.01)
    reloader.start()
    assert read.wait(DEADLINE)
    reloader.stop()


def test_reload_does_not_turn_tokens_on(config: Path) -> None:
    replace(config, "roots = ['skills']\n")
    registry = Registry([config.parent / "skills"])
    context = serve.make_context("serve", ["--config", str(config)])
    reloader = Reloader(context, Views(registry), OpenedRoots(registry, None), services_of(Tokens([])))
    reloader.reload()
    assert reloader.refused == ""
    replace(config, TEXT)
    reloader.reload()
    assert reloader.refused.startswith("turning tokens on or off takes effect at the next start")


def test_invalid_option_value_keeps_the_configuration(config: Path) -> None:
    reloader = make_reloading(config).reloader
    replace(config, f"redis = 'nonsense'\n{TEXT}{GRANT}")
    reloader.reload()
    assert reloader.refused.endswith("; the configuration stays as it was")
