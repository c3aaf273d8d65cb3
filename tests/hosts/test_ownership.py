"""Which entries are ours: by the program that they start, in every form in which it is installed."""

from __future__ import annotations

from mcp_skills_server.hosts.edit import command_line_of, starts_this_server
from tables import each_row

NOW = ["/opt/app/bin/mcp-skills-server"]


@each_row(
    "line",
    [
        "mcp-skills-server serve /skills", r"C:\Tools\mcp-skills-server.exe serve C:\skills",
        "python -m mcp_skills_server serve /skills", "/usr/bin/python3.13 -m mcp_skills_server serve /skills",
        r"C:\Python\pythonw.exe -m mcp_skills_server serve C:\skills", "py -3.12 -m mcp_skills_server serve",
        "python3 -Im mcp_skills_server serve", "python3 /opt/app/bin/mcp-skills-server serve",
        "uvx mcp-skills-server serve /skills", "uvx mcp-skills-server@1.2 serve",
        "uvx --from mcp-skills-server[acp]==1.2 mcp-skills-server serve",
        "uv run --directory /app mcp-skills-server serve",
        "pipx run --spec mcp-skills-server==1.2 mcp-skills-server serve",
    ],
)  # fmt: skip
def test_ours(line: str) -> None:
    assert starts_this_server(line.split(), NOW)


@each_row(
    "line",
    [
        "", "npx -y filesystem /home/me/mcp-skills-server", "npx mcp-skills-server",
        "other --config mcp-skills-server", "my-mcp-skills-server serve", "mcp-skills-server-2 serve",
        "python -m mcp_skills_server_2 serve", "python", "pytest -m mcp_skills_server serve",
        "npx mcp_skills_server serve", "uvx --from mcp-skills-server other", "uvx mcp-skills-server-extras serve",
        "uvx",
    ],
)  # fmt: skip
def test_not_ours(line: str) -> None:
    assert not starts_this_server(line.split(), NOW)


def test_the_command_that_is_meant_now_is_ours_only_as_it_is_written_here() -> None:
    assert starts_this_server(["/opt/wrapper", "serve", "/skills"], ["/opt/wrapper"])
    assert not starts_this_server(["/opt/wrapper", "/skills"], ["/opt/wrapper"])
    # The same Python runs other servers too.
    python = ["/opt/python", "-m", "mcp_skills_server"]
    assert not starts_this_server(["/opt/python", "-m", "other", "serve"], python)


@each_row(
    ("entry", "wanted"),
    [
        ({"command": "a", "args": ["b", "c"]}, ["a", "b", "c"]),
        ({"command": "a"}, ["a"]),
        ({"type": "local", "command": ["a", "b"]}, ["a", "b"]),
        ({"url": "https://example.com"}, []),
        ({"command": "a", "args": [1]}, []),
        ({"command": 3}, []),
        (["a"], []),
        (None, []),
    ],
)
def test_the_words_of_an_entry(entry: object, wanted: list[str]) -> None:
    assert command_line_of(entry) == wanted
