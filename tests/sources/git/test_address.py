"""Git addresses: parsing, and refusal before git sees them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources.git.address import GitAddress, is_git, parse_address
from tables import each_row

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@each_row(("given", "address"), [
    ("https://git.example/acme/skills", GitAddress("https://git.example/acme/skills", "https")),
    ("https://git.example/a.git@main#x/y", GitAddress("https://git.example/a.git", "https", "main", "x/y")),
    ("https://git.example/a@feature/x", GitAddress("https://git.example/a", "https", "feature/x")),
    ("https://git.example/a@@acme/pkg@1.0", GitAddress("https://git.example/a", "https", "@acme/pkg@1.0")),
    ("https://git.example/%40acme/a@x", GitAddress("https://git.example/%40acme/a", "https", "x")),
    ("https://git.example/a#/skills/", GitAddress("https://git.example/a", "https", "", "skills")),
    ("https://git.example/a#my%20skills", GitAddress("https://git.example/a", "https", "", "my skills")),
    ("https://git.example/a@b%231#100%25%20", GitAddress("https://git.example/a", "https", "b#1", "100% ")),
    ("https://git.example/a@b%2541#a%2541", GitAddress("https://git.example/a", "https", "b%41", "a%41")),
    ("ssh://git@git.example:2222/a.git@main", GitAddress("ssh://git@git.example:2222/a.git", "ssh", "main")),
    ("ssh://git.example/~me/a", GitAddress("ssh://git.example/~me/a", "ssh")),
    ("file:///srv/a.git#x", GitAddress("file:///srv/a.git", "file", "", "x")),
    *(
        (f"http://{host}/a", GitAddress(f"http://{host}/a", "http"))
        for host in ("127.0.0.1:8", "[::1]", "localhost")
    ),
    (f"https://git.example/a@{COMMIT}", GitAddress("https://git.example/a", "https", COMMIT)),
])  # fmt: skip
def test_address_is_parsed(given: str, address: GitAddress) -> None:
    for prefix in ("git+", "GIT+"):
        assert is_git(prefix + given)
        assert parse_address(prefix + given) == address
    assert parse_address(address.shown) == address


HOST = "https://git.example"


@each_row(("reason", "given"), [
    ("control character", ("ext::sh -c touch% /tmp/x", f"{HOST}/a%0ahost=evil", f"{HOST}/a\nb")),
    ("git is fetched by https, ssh, file, http", ("ext::sh", "ext://sh/x", "fd://17/x", "git://git.example/a")),
    ("git is fetched by", ("https:git.example/a",)),
    ("begin with '-'", ("https://-oProxyCommand=x/a", "ssh://-oProxyCommand=x/a", "ssh://-l@git.example/a")),
    ("the port cannot be read", ("ssh://git@git.example:acme/a",)),
    (
        "has only letters, digits",
        [f"ssh://{host}/a" for host in ("$(touch${IFS}x)", "a;b", "`x`@h", "a|b", "a'b", "%24(x)", "a&b@h", "h>x")],
    ),
    (
        "cannot be a branch",
        [f"{HOST}/a@{ref}" for ref in ("--upload-pack=x", "-x", "a..b", "a:b", "a%20b", "x.lock", "", "*")],
    ),
    ("no query", (f"{HOST}/a?service=x",)),
    ("backslash", ("https://git.example\\@evil/a",)),
    ("names no repository", (HOST, "https:///a")),
    ("git+file:///PATH", ("file://host/a", "file:///")),
    ("plain http", ("http://git.example/a", "http://127.0.0.1.evil.example/a")),
    ("no folder of a repository", [f"{HOST}/a#{folder}" for folder in ("../b", "x/../b", "x//b", ".")]),
    ("credential helper", ("https://me:hunter2@git.example/a", "https://hunter2@git.example/a")),  # a token
])  # fmt: skip
def test_malformed_or_dangerous_address_is_refused_without_its_password(reason: str, given: Sequence[str]) -> None:
    for each in given:
        assert is_git(f"git+{each}")
        with pytest.raises(UsageError) as refused:
            parse_address(f"git+{each}")
        message = str(refused.value)
        assert reason in message
        assert "\n" not in message
        assert "hunter2" not in message


def test_plain_http_can_be_allowed() -> None:
    assert parse_address("git+http://git.example/a", http=True).protocol == "http"


@each_row("given", ["git+x", "https://git.example/a.git", "./git+https", "git@git.example:a", "gitty+a:"])
def test_other_text_is_no_git_address(given: str) -> None:
    assert not is_git(given)


@each_row(("given", "name"), [
    ("git+https://git.example/acme/refunds.git", "refunds"),
    ("git+https://git.example/acme#skills/refunds", "refunds"), ("git+file:///srv/my%20skills/", "my skills"),
])  # fmt: skip
def test_name_of_address_is_that_of_its_folder_or_repository(given: str, name: str) -> None:
    assert parse_address(given).name == name
