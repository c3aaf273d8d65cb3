"""The address of a folder in git: what it is taken for, and what is refused before git sees it."""

from __future__ import annotations

import pytest

from mcp_skills_server.errors import UsageError
from mcp_skills_server.sources.git.address import GitAddress, is_git, parse_address
from tables import each_row

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@each_row(
    ("given", "address"),
    [
        ("git+https://git.example/acme/skills", GitAddress("https://git.example/acme/skills", "https")),
        ("git+https://git.example/a.git@main#x/y", GitAddress("https://git.example/a.git", "https", "main", "x/y")),
        ("GIT+HTTPS://git.example/a", GitAddress("https://git.example/a", "https")),
        ("git+https://git.example/a@v1", GitAddress("https://git.example/a", "https", "v1")),
        ("git+https://git.example/a@feature/x", GitAddress("https://git.example/a", "https", "feature/x")),
        ("git+https://git.example/a@@acme/pkg@1.0", GitAddress("https://git.example/a", "https", "@acme/pkg@1.0")),
        ("git+https://git.example/%40acme/a@x", GitAddress("https://git.example/%40acme/a", "https", "x")),
        ("git+https://git.example/a#/skills/", GitAddress("https://git.example/a", "https", "", "skills")),
        ("git+https://git.example/a#my%20skills", GitAddress("https://git.example/a", "https", "", "my skills")),
        ("git+ssh://git@git.example:2222/a.git@main", GitAddress("ssh://git@git.example:2222/a.git", "ssh", "main")),
        ("git+ssh://git.example/~me/a", GitAddress("ssh://git.example/~me/a", "ssh")),
        ("git+file:///srv/a.git#x", GitAddress("file:///srv/a.git", "file", "", "x")),
        ("git+http://127.0.0.1:8080/a", GitAddress("http://127.0.0.1:8080/a", "http")),
        ("git+http://[::1]/a", GitAddress("http://[::1]/a", "http")),
        ("git+http://localhost/a", GitAddress("http://localhost/a", "http")),
        (f"git+https://git.example/a@{COMMIT}", GitAddress("https://git.example/a", "https", COMMIT)),
    ],
)
def test_an_address_is_understood(given: str, address: GitAddress) -> None:
    assert is_git(given)
    assert parse_address(given) == address
    assert parse_address(address.shown) == address


@each_row(
    ("given", "reason"),
    [
        ("git+ext::sh -c touch% /tmp/x", "control character"),
        ("git+ext::sh", "git is fetched by https, ssh, file, http"),
        ("git+ext://sh/x", "git is fetched by"),
        ("git+fd://17/x", "git is fetched by"),
        ("git+git://git.example/a", "git is fetched by"),
        ("git+https:git.example/a", "git is fetched by"),
        ("git+https://-oProxyCommand=x/a", "begin with '-'"),
        ("git+ssh://-oProxyCommand=x/a", "begin with '-'"),
        ("git+ssh://-l@git.example/a", "begin with '-'"),
        ("git+ssh://git@git.example:acme/a", "the port cannot be read"),
        ("git+https://git.example/a@--upload-pack=x", "cannot be a branch"),
        ("git+https://git.example/a@-x", "cannot be a branch"),
        ("git+https://git.example/a@a..b", "cannot be a branch"),
        ("git+https://git.example/a@a:b", "cannot be a branch"),
        ("git+https://git.example/a@a%20b", "cannot be a branch"),
        ("git+https://git.example/a@x.lock", "cannot be a branch"),
        ("git+https://git.example/a@", "cannot be a branch"),
        ("git+https://git.example/a@*", "cannot be a branch"),
        ("git+https://git.example/a?service=x", "no query"),
        ("git+https://git.example/a%0ahost=evil", "control character"),
        ("git+https://git.example/a\nb", "control character"),
        ("git+https://git.example\\@evil/a", "backslash"),
        ("git+https://git.example", "names no repository"),
        ("git+https:///a", "names no repository"),
        ("git+file://host/a", "git+file:///PATH"),
        ("git+file:///", "git+file:///PATH"),
        ("git+http://git.example/a", "plain http"),
        ("git+http://127.0.0.1.evil.example/a", "plain http"),
        ("git+https://git.example/a#../b", "no folder of a repository"),
        ("git+https://git.example/a#x/../b", "no folder of a repository"),
        ("git+https://git.example/a#x//b", "no folder of a repository"),
        ("git+https://git.example/a#.", "no folder of a repository"),
    ],
)
def test_what_is_dangerous_or_none_is_refused(given: str, reason: str) -> None:
    assert is_git(given)
    with pytest.raises(UsageError) as refused:
        parse_address(given)
    assert reason in str(refused.value) and "\n" not in str(refused.value)


def test_a_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError, match="credential helper") as refused:
        parse_address("git+https://me:hunter2@git.example/a")
    assert "hunter2" not in str(refused.value)


def test_plain_http_may_be_allowed() -> None:
    assert parse_address("git+http://git.example/a", http=True).protocol == "http"


@each_row("given", ["git+x", "https://git.example/a.git", "./git+https", "git@git.example:a", "gitty+a:"])
def test_other_texts_are_none(given: str) -> None:
    assert not is_git(given)


@each_row(
    ("given", "name"),
    [
        ("git+https://git.example/acme/refunds.git", "refunds"),
        ("git+https://git.example/acme#skills/refunds", "refunds"),
        ("git+file:///srv/my%20skills/", "my skills"),
    ],
)
def test_it_is_called_as_a_clone_of_it_would_be(given: str, name: str) -> None:
    assert parse_address(given).name == name
