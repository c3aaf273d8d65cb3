"""The command `freshness`: exactly the skills that cite what has changed, and what --update confirms."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from commands.calls import json_of, refusal, run, run_process
from mcp_skills_server.catalog.freshness import Freshness, Judgement
from mcp_skills_server.model import Skill
from sources.publishers import Publisher, redirect, respond_with, with_tools
from tables import each_row
from web.http_wire import wait_until
from web.in_process import app_serving
from web.ui.serving import visible_text
from wire import DEADLINE, Wire, serving, write_skill

UV_LOCK = '[[package]]\nname = "httpx"\nversion = "0.27.2"\n\n[[package]]\nname = "My_Crate"\nversion = "1.4.0"\n'
NPM_LOCK = {
    "lockfileVersion": 3,
    "packages": {
        "": {"name": "app", "version": "9.9.9"},
        "node_modules/@acme/ui": {"version": "2.0.0"},
        "node_modules/react": {"version": "18.3.1"},
        "node_modules/old/node_modules/react": {"version": "16.0.0"},
    },
}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with files, lock files and no skill."""
    top = tmp_path / "repository"
    (top / ".git").mkdir(parents=True)
    write(top / "src" / "api.py", "def pay(): ...\n")
    write(top / "src" / "deep" / "er" / "model.py", "class Bill: ...\n")
    write(top / "docs" / "api.md", "# API\n")
    write(top / ".github" / "ci.yml", "on: push\n")
    write(top / "uv.lock", UV_LOCK)
    write(top / "package-lock.json", json.dumps(NPM_LOCK))
    write(top / "requirements.txt", "click==8.1.0\nrich[jupyter] == 13.9 ; python_version > '3'\n# flask==1.0\n")
    return top


def write_citing(top: Path, name: str, relies: str, folder: str = "skills") -> Path:
    return write_skill(top / folder / name, freshness_toml=f"[relies-on]\n{relies}\n")


def stale(top: Path, *words: object) -> set[str]:
    """Return the skills with a warning or an error."""
    done = run("freshness", top / "skills", *words, "--format", "json")
    report = json.loads(done.stdout)
    print(done.stderr)
    return {problem["skill"] for problem in report["problems"] if problem["severity"] != "note"}


def confirm(top: Path) -> None:
    done = run("freshness", top / "skills", "--update")
    assert done.returncode == 0, done


CITED = {
    "one-file": ('files = ["src/api.py"]', "src/api.py"),
    "tree": ('files = ["src/**/*.py"]', "src/api.py src/deep/er/model.py"),
    "below": ('files = ["src/deep/**"]', "src/deep/er/model.py"),
    "flat": ('files = ["src/*.py"]', "src/api.py"),
    "dotted": ('files = [".github/ci.yml"]', ".github/ci.yml"),
    "docs": ('files = ["docs/[a-b]p?.md"]', "docs/api.md"),
    "package": ('packages = ["httpx"]', "uv.lock"),
    "crate": ('packages = ["my-crate"]', "uv.lock"),
    "pin": ('packages = ["click"]', "requirements.txt"),
    "script": ('packages = ["@acme/ui"]', "package-lock.json"),
}
CHANGES: list[tuple[str, str, str, set[str]]] = [
    ("src/api.py", "pay", "bill", {"one-file", "tree", "flat"}),
    ("src/deep/er/model.py", "Bill", "Invoice", {"tree", "below"}),
    ("docs/api.md", "API", "Interface", {"docs"}),
    (".github/ci.yml", "push", "pull_request", {"dotted"}),
    ("uv.lock", "0.27.2", "0.28.0", {"package"}),
    ("uv.lock", "1.4.0", "1.4.1", {"crate"}),
    ("requirements.txt", "click==8.1.0", "click==8.2.0", {"pin"}),
    ("requirements.txt", "flask==1.0", "flask==2.0", set()),
    ("package-lock.json", '{"version": "2.0.0"}', '{"version": "2.0.1"}', {"script"}),
    ("package-lock.json", "16.0.0", "17.0.0", set()),
]


def test_change_is_reported_for_exactly_the_skills_that_cite_it(repository: Path) -> None:
    for name, (relies, _) in CITED.items():
        write_citing(repository, name, relies)
    write_skill(repository / "skills" / "silent")
    assert stale(repository) == set()  # never confirmed is a note
    confirm(repository)
    for path, old, new, expected in CHANGES:
        before = (repository / path).read_text()
        assert old in before
        write(repository / path, before.replace(old, new))
        assert stale(repository) == expected, path
        write(repository / path, before)
    assert stale(repository) == set()


def test_file_that_comes_or_goes_is_a_change(repository: Path) -> None:
    write_citing(repository, "tree", 'files = ["src/**/*.py"]')
    write_citing(repository, "gone", 'files = ["docs/api.md"]')
    confirm(repository)
    write(repository / "src" / "deep" / "new.py", "")
    (repository / "docs" / "api.md").unlink()
    done = run("freshness", repository / "skills")
    assert done.returncode == 1
    first, second, counts = done.stdout.splitlines()
    shown = repository / "skills" / "gone" / "freshness.toml"
    hint = "compare the skill with it, then run 'freshness --update'"
    assert first == f"{shown}:2: warning: files docs/api.md: not there; {hint} [relies-on-changed]"
    assert "files src/**/*.py: changed since it was confirmed; " in second
    assert counts == "2 skills with freshness.toml, 2 stale"


@each_row(
    "requirement, version, is_stale",
    [
        ("httpx>=0.27", "0.27.0", False),
        ("httpx>=0.27", "0.26.9", True),
        ("httpx>=0.9", "0.10.0", False),  # numbers, not text
        ("httpx>=1.0.0", "1", False),
        ("httpx>=0.27,<1", "0.99", False),
        ("httpx >= 0.27 , < 1", "1.0.0", True),
        ("httpx==2", "2.0.0rc1", False),
        ("httpx<2", "2.0", True),
    ],
)
def test_package_with_bounds_is_stale_outside_of_them_alone(
    repository: Path, requirement: str, version: str, is_stale: bool
) -> None:
    write_citing(repository, "bound", f'packages = ["{requirement}"]')
    write(repository / "uv.lock", UV_LOCK.replace("0.27.2", version))
    assert stale(repository) == ({"bound"} if is_stale else set())
    run("freshness", repository / "skills", "--update")
    assert stale(repository) == ({"bound"} if is_stale else set()), "a lock out of bounds cannot be confirmed"


def test_nearest_lock_file_that_has_a_package_decides(repository: Path) -> None:
    write(repository / "web" / "uv.lock", '[[package]]\nname = "httpx"\nversion = "1.0"\n')
    write_citing(repository, "near", 'packages = ["httpx<1"]', "web/skills")
    write_citing(repository, "far", 'packages = ["httpx<1", "click==8.1"]')
    report = json_of("freshness", repository / "web" / "skills", repository / "skills")
    assert [problem["skill"] for problem in report["problems"]] == ["near"]


def test_update_confirms_and_leaves_the_rest_of_the_file(repository: Path) -> None:
    skill = write_citing(repository, "tea", "# the API\nfiles = ['src/*.py']  # of tea\npackages = ['httpx', 'absent']")
    assert run("freshness", skill, "--update").returncode == 1  # of 'absent' there is nothing to confirm
    text = (skill / "freshness.toml").read_text()
    head = "[relies-on]\n# the API\nfiles = ['src/*.py']  # of tea\npackages = ['httpx', 'absent']\n\n[seen.files]\n"
    assert text.startswith(head)
    assert text.endswith('\n[seen.packages]\nhttpx = "0.27.2"\n')
    run("freshness", skill, "--update")
    assert (skill / "freshness.toml").read_text() == text


def test_lock_file_above_the_repository_is_not_read(repository: Path) -> None:
    write(repository.parent / "uv.lock", '[[package]]\nname = "outer"\nversion = "1.0"\n')
    write_citing(repository, "tea", 'packages = ["outer>=1"]')
    assert stale(repository) == {"tea"}


def test_update_writes_the_day_of_the_confirmation(repository: Path) -> None:
    skill = write_citing(repository, "tea", 'files = ["src/*.py"]')
    text = "---\nname: tea\ndescription: Makes tea when asked.\nmetadata:\n  verified: 2020-01-31\n---\nverified: no\n"
    (skill / "SKILL.md").write_text(text)
    done = run("freshness", repository / "skills")
    assert "never confirmed, verified on 2020-01-31; " in done.stdout
    write(skill / "freshness.toml", '[relies-on]\npackages = ["httpx", "absent"]\n')
    assert run("freshness", skill, "--update").returncode == 1
    assert (skill / "SKILL.md").read_text() == text  # something is left
    write(skill / "freshness.toml", '[relies-on]\npackages = ["httpx"]\n')
    confirm(repository)
    today = (skill / "SKILL.md").read_text().partition('verified: "')[2][:10]
    assert (skill / "SKILL.md").read_text() == text.replace("2020-01-31", f'"{today}"')


@each_row(
    "relies, fault",
    [
        ('files = ["../secret"]', "'files ../secret' is none of these: a path or pattern below the repository"),
        ('files = ["/etc/passwd"]', "a path or pattern below the repository"),
        ('files = ["src/../../x"]', "a path or pattern below the repository"),
        ("files = ['src\\..\\x', 'C:/x']", "a path or pattern below the repository"),
        ('files = ["**/a/**/*.py"]', "with at most one **"),
        ('files = [".git/config"]', "a path or pattern below the repository"),
        ('files = "src/api.py"', "files is no list of texts of up to 500 characters"),
        ('files = ["a\\nb"]', "files is no list of texts"),
        (f"files = {['a'] * 51}", "it has more than 50 entries"),
        ('packages = ["httpx>=one"]', "such as httpx>=0.27,<1"),
        ('packages = ["httpx~=1"]', "such as httpx>=0.27,<1"),
        ('packages = ["httpx>=1,"]', "such as httpx>=0.27,<1"),
        ('urls = ["file:///etc/passwd"]', "an https URL without a password"),
        ('urls = ["https://me:secret@site.example/x"]', "an https URL without a password"),
        ('tools = ["search"]', "tools is no table"),
        ('[relies-on.tools]\n"rm -rf x" = ["search"]', "in the list of the https URL of its server"),
        ('commands = ["rm"]', "'commands' is no key; write files, packages, urls, tools"),
        ("x = ", "Invalid value"),
        ('packages = ["click"]\n[seen]\npackages = nan', "seen.packages is no table"),
        ('packages = ["click"]\n# ' + "x" * 66_000, "it has more than 65,536 bytes"),
    ],
)
def test_file_of_another_form_is_an_error(tmp_path: Path, relies: str, fault: str) -> None:
    write_citing(tmp_path, "odd", relies)
    report = json_of("freshness", tmp_path / "skills")
    (problem,) = report["problems"]
    assert (problem["code"], problem["severity"], report["ok"]) == ("relies-on-form", "error", False)
    assert fault in problem["message"] and "\n" not in problem["message"]


def test_no_link_is_followed_and_no_ignored_folder_entered(repository: Path, tmp_path: Path) -> None:
    write(tmp_path / "outside" / "secret.py", "1")
    (repository / "src" / "linked").symlink_to(tmp_path / "outside")
    (repository / "src" / "secret.py").symlink_to(tmp_path / "outside" / "secret.py")
    write(repository / "src" / ".venv" / "other.py", "1")
    write_citing(repository, "tree", 'files = ["src/**/*.py"]')
    write_citing(repository, "through", 'files = ["src/linked/secret.py", "src/secret.py"]')
    run("freshness", repository / "skills", "--update")
    assert stale(repository) == {"through"}
    write(tmp_path / "outside" / "secret.py", "2")
    write(repository / "src" / ".venv" / "other.py", "2")
    assert stale(repository) == {"through"}


def test_link_to_a_folder_is_not_walked_and_no_pipe_or_device_is_read(repository: Path, tmp_path: Path) -> None:
    write(tmp_path / "outside" / "api.py", "1")
    (repository / "src" / "linked").symlink_to(tmp_path / "outside")
    os.mkfifo(repository / "src" / "pipe.py")
    (repository / "src" / "zero.py").symlink_to("/dev/zero")
    write_citing(repository, "tree", 'files = ["src/**"]')
    write_citing(repository, "link", 'files = ["src/linked/**"]')
    write_citing(repository, "pipe", 'files = ["src/pipe.py"]')
    write_citing(repository, "zero", 'files = ["src/zero.py"]')
    (tmp_path / "outside").chmod(0)
    try:
        run("freshness", repository / "skills", "--update")
        assert stale(repository) == {"link", "pipe", "zero"}
    finally:
        (tmp_path / "outside").chmod(0o755)


def test_pattern_with_many_stars_is_matched_in_linear_time(repository: Path) -> None:
    write(repository / "src" / ("a" * 200), "1")
    write_citing(repository, "slow", f'files = ["src/{"*a" * 100}b"]')
    assert "not there" in run("freshness", repository / "skills").stdout


def test_server_answers_while_freshness_is_judged(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_twins(repository / "skills", "one")
    begun, may_end, judge = threading.Event(), threading.Event(), Freshness.judge

    def judge_slowly(freshness: Freshness, skill: Skill) -> Judgement:
        begun.set()
        assert may_end.wait(DEADLINE)
        return judge(freshness, skill)

    monkeypatch.setattr(Freshness, "judge", judge_slowly)
    with app_serving(repository / "skills", "--ui") as app:
        assert visible_text(app.send("GET", "/ui/")).count(" stale ") == 0
        assert begun.wait(DEADLINE)
        assert app.send("GET", "/ui/skills/one/one").status == 200
        may_end.set()
        wait_until(lambda: visible_text(app.send("GET", "/ui/")).count(" stale ") == 2)


def test_skill_may_cite_its_own_folder(repository: Path) -> None:
    write_citing(repository, "tea", 'files = ["skills/**"]')
    confirm(repository)
    assert stale(repository) == set()  # though the confirmation has changed freshness.toml
    write(repository / "skills" / "tea" / "notes.md", "new")
    assert stale(repository) == {"tea"}


def test_line_ends_are_no_change(repository: Path) -> None:
    write_citing(repository, "tea", 'files = ["src/*.py"]')
    confirm(repository)
    write(repository / "src" / "api.py", "def pay(): ...\r\n")
    assert stale(repository) == set()


def test_patterns_read_a_bounded_amount(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_citing(repository, "much", 'files = ["**/*.py"]')
    monkeypatch.setattr("mcp_skills_server.catalog.freshness._MAX_NAMES", 4)
    (problem,) = json_of("freshness", repository / "skills")["problems"]
    assert problem["message"] == "its patterns enter folders with over 4 names; be exact"
    monkeypatch.undo()
    monkeypatch.setattr("mcp_skills_server.catalog.freshness._MAX_BYTES", 20)
    (problem,) = json_of("freshness", repository / "skills")["problems"]
    assert problem["severity"] == "error" and problem["message"].startswith("src/")
    assert "cannot be read (it is too large" in problem["message"]


def test_lock_files_are_read_once_and_within_the_bound(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_citing(repository, "tea", f"packages = {[f'absent-{number}>=1' for number in range(20)]}")
    size = sum((repository / name).stat().st_size for name in ("uv.lock", "package-lock.json", "requirements.txt"))
    monkeypatch.setattr("mcp_skills_server.catalog.freshness._MAX_BYTES", size)
    problems = json_of("freshness", repository / "skills")["problems"]
    assert {problem["code"] for problem in problems} == {"relies-on-changed"} and len(problems) == 20
    monkeypatch.setattr("mcp_skills_server.catalog.freshness._MAX_BYTES", size - 1)
    (problem,) = json_of("freshness", repository / "skills")["problems"]
    assert problem["message"] == "it cannot be read (it is too large, or not a regular file)"


def test_folder_that_is_no_repository_is_its_own_top(tmp_path: Path) -> None:
    write(tmp_path / "outside.py", "1")
    write(tmp_path / "skills" / "shared.py", "1")
    write_citing(tmp_path, "inside", 'files = ["shared.py"]')
    write_citing(tmp_path, "outside", 'files = ["outside.py"]')
    run("freshness", tmp_path / "skills", "--update")
    assert stale(tmp_path) == {"outside"}


def test_fetched_skill_is_not_judged(repository: Path, tmp_path: Path) -> None:
    write_citing(repository, "tea", 'files = ["src/*.py"]')
    archive = shutil.make_archive(str(tmp_path / "skills"), "zip", repository / "skills")
    report: dict[str, Any] = json_of("freshness", archive)
    assert (report["skills"], report["problems"]) == ([], [])


@pytest.mark.parametrize("lock", ["uv.lock", "package-lock.json"])
def test_broken_lock_file_is_an_error_that_names_it(repository: Path, lock: str) -> None:
    write(repository / lock, "[" if lock == "uv.lock" else '{"packages": [1]}')
    write_citing(repository, "tea", 'packages = ["absent"]')
    (problem,) = json_of("freshness", repository / "skills")["problems"]
    assert problem["code"] == "relies-on-form" and problem["message"].startswith(
        f"{lock} is no lock file of a known form"
    )


def test_sarif_has_the_stale_skill(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_citing(repository, "tea", 'packages = ["httpx<0.27"]')
    monkeypatch.chdir(repository)
    (found,) = json_of_form("sarif")["runs"][0]["results"]
    assert (found["ruleId"], found["level"]) == ("relies-on-changed", "warning")
    location = found["locations"][0]["physicalLocation"]
    assert location["artifactLocation"]["uri"] == "skills/tea/freshness.toml"
    assert location["region"]["startLine"] == 2


def json_of_form(form: str) -> Any:
    return json.loads(run("freshness", "skills", "--format", form, cwd=Path.cwd()).stdout)


def test_update_keeps_comments_and_other_tables(repository: Path) -> None:
    skill = write_citing(repository, "tea", 'packages = ["click"]')
    text = (
        "# of tea\r\n[seen.packages] # confirmed\r\n# why not 9\r\nclick = '7' # Ann\r\n\r\n"
        "[relies-on] # last\r\npackages = ['click']\r\n# end"
    )
    write(skill / "freshness.toml", text)
    assert run("freshness", skill, "--update").returncode == 0
    assert (skill / "freshness.toml").read_bytes().decode() == text.replace("'7'", '"8.1.0"')


def test_table_that_cannot_be_edited_is_left(repository: Path) -> None:
    for seen in ("seen = {}", "seen = { packages = { click = '1' } }", "seen.packages.click = '1'"):
        text = f'{seen}\n[relies-on]\npackages = ["click"]\n'
        skill = write_skill(repository / "skills" / "tea", freshness_toml=text)
        assert f"{skill / 'freshness.toml'}: " in refusal("freshness", skill, "--update")
        assert (skill / "freshness.toml").read_text() == text


@each_row(
    "before, after, remarks",
    [
        (b"metadata:\n  verified: 2020-01-31  # by Ann\n", b"metadata:\n  verified: TODAY  # by Ann\n", 0),
        (b"metadata: {verified: 2020-01-31}\n", None, 1),
        (b"metadata:\n  other:\n    verified: 1\n  verified: 2020-01-31\n", None, 1),
        (b"metadata:\n  verified: .nan\n", None, 0),  # which is no JSON
        (b"metadata: [verified]\n", None, 0),
        (b"verified: 2020-01-31\n", None, 0),
    ],
)
def test_update_changes_the_date_in_the_metadata_alone(
    repository: Path, before: bytes, after: bytes | None, remarks: int
) -> None:
    skill = write_citing(repository, "tea", 'packages = ["click"]')
    head, body = b"---\nname: tea\ndescription: Makes tea when asked.\n", b"---\n\n  verified: by nobody\n"
    (skill / "SKILL.md").write_bytes(head + before + body)
    done = run("freshness", skill, "--update")
    assert done.returncode == 0
    assert done.stderr.count("write the date of today into metadata.verified") == remarks
    now = (skill / "SKILL.md").read_bytes()
    today = (now.partition(b'verified: "')[2][:10]).join((b'"', b'"'))
    assert now == head + (before if after is None else after.replace(b"TODAY", today)) + body


def write_twins(repository: Path, stale: str) -> Path:
    """Write two skills that tie for the word "parcels", and a copy of tea in each; all of one are stale."""
    for name in ("one", "two"):
        relied = f'[relies-on]\npackages = ["httpx{"<" if name == stale else ">="}0.27"]\n'
        write_skill(repository / name / "tea", description="Makes tea when asked.", freshness_toml=relied)
        write_skill(repository / name / name, description="Sends parcels when asked.", freshness_toml=relied)
    return repository


@pytest.fixture
def twins(repository: Path) -> Path:
    write_twins(repository / "skills", "one")
    return repository


def test_list_and_show_know_a_stale_skill(twins: Path) -> None:
    listed = json_of("list", twins / "skills")["skills"]
    assert [row["path"] for row in listed if row["stale"]] == ["one/one", "one/tea"]
    table = run("list", twins / "skills").stdout
    assert table.count("(stale)") == 2
    shown = json_of("show", twins / "skills", "one/one")
    assert shown["stale"] and [problem["code"] for problem in shown["problems"]] == ["relies-on-changed"]
    shown = json_of("show", twins / "skills", "two/two")
    assert not shown["stale"] and shown["problems"] == []


def test_page_shows_a_stale_skill_and_what_has_changed(twins: Path) -> None:
    with app_serving(twins / "skills", "--ui") as app:

        def stale_rows() -> list[str]:
            rows = json.loads(app.send("GET", "/ui/?format=json").body)
            return [row["path"] for row in rows if row["stale"]]

        wait_until(lambda: stale_rows() == ["one/one", "one/tea"])
        assert visible_text(app.send("GET", "/ui/")).count(" stale ") == 2
        page = visible_text(app.send("GET", "/ui/skills/one/one"))
        assert "packages httpx<0.27: version 0.27.2 is locked, out of the bounds" in page
        assert "is locked" not in visible_text(app.send("GET", "/ui/skills/two/two"))
        assert visible_text(app.send("GET", "/ui/problems")).count("out of the bounds") == 2


def names_for(client: Wire, query: str) -> list[str]:
    return [row["name"] for row in client.call("skills_search", query=query)["structuredContent"]["skills"]]


@pytest.mark.parametrize(("stale", "fresh"), [("one", "two"), ("two", "one")])
def test_search_ranks_a_stale_skill_after_its_equal(repository: Path, stale: str, fresh: str) -> None:
    write_twins(repository / "skills", stale)
    with serving(repository / "skills") as client:
        wait_until(lambda: names_for(client, "parcels") == [fresh, stale])
        wait_until(lambda: names_for(client, "tea") == [f"{fresh}/tea"])


def test_search_shows_the_fresh_one_of_copies_whatever_their_ranks(repository: Path) -> None:
    for folder, bound, text in (("a", "<", "Boils water. Boils it, boils it."), ("b", ">=", "Boils water. It.")):
        relied = f'[relies-on]\npackages = ["httpx{bound}0.27"]\n'
        write_skill(repository / "skills" / folder / "tea", description=text, freshness_toml=relied)
    for number in range(6):  # among which the word is rare
        write_skill(repository / "skills" / f"other-{number}")
    with serving(repository / "skills") as client:
        wait_until(lambda: names_for(client, "boils") == ["b/tea"])
        (row,) = client.call("skills_search", query="boils")["structuredContent"]["skills"]
    assert (row["name"], row["also_at"]) == ("b/tea", ["skill://a/tea/SKILL.md"])


def test_changed_url_or_tool_is_reported_for_exactly_the_skills_that_cite_it(repository: Path) -> None:
    schema = {"type": "object", "properties": {"query": {"type": "string"}}}
    tools = {"search": schema, "open": schema}
    online = "--online", "--allow-private"
    with Publisher() as site:
        site.routes |= {"/api.json": respond_with(b"{}"), "/old": respond_with(b"1"), "/mcp": with_tools(tools)}
        for name, relies in {
            "cites-url": f'urls = ["{site.url}/api.json"]',
            "cites-too": f'urls = ["{site.url}/api.json"]',
            "cites-old": f'urls = ["{site.url}/old"]',
            "searches": f'tools = {{ "{site.url}/mcp" = ["search"] }}',
            "opens": f'tools = {{ "{site.url}/mcp" = ["open"] }}',
        }.items():
            write_citing(repository, name, relies)
        assert stale(repository, "--allow-private") == set() and site.paths == []  # without --online
        assert run("freshness", repository / "skills", "--update", *online).returncode == 0
        assert site.paths.count("/api.json") == 1
        assert stale(repository, *online) == set()
        site.routes["/api.json"] = respond_with(b"{ }")
        assert stale(repository, *online) == {"cites-url", "cites-too"}
        site.routes["/api.json"] = respond_with(b"{}")
        tools["search"] = schema | {"required": ["query"]}
        site.routes["/old"] = respond_with(status=404)
        assert stale(repository, *online) == {"searches", "cites-old"}
        del tools["search"]
        assert stale(repository, *online) == {"searches", "cites-old"}
        site.routes["/old"] = respond_with(status=503)
        done = run("freshness", repository / "skills", *online)
        assert "/old: " in done.stderr and "status 503" in done.stderr, done  # unknown is not stale
        assert "searches" in done.stdout and "cites-old" not in done.stdout
        assert "1 item not judged" in done.stderr


def test_network_is_asked_within_the_rules_of_a_fetch(repository: Path) -> None:
    with Publisher() as site:
        site.routes |= {"/a": respond_with(b"1"), "/b": respond_with(b"1"), "/mcp": with_tools({})}
        site.routes["/c"] = redirect("http://localhost:1/")
        urls = ", ".join(f'"{site.url}/{name}"' for name in "abc")
        write_citing(repository, "tea", f'urls = [{urls}]\ntools = {{ "{site.url}/mcp" = ["search"] }}')
        done = run("freshness", repository / "skills", "--online")
        assert site.paths == [] and done.returncode == 0
        assert done.stderr.count("--allow-private allows it") == 4, done
        done = run("freshness", repository / "skills", "--online", "--allow-private", "--max-requests", 1)
        assert site.paths == ["/a"] and done.stderr.count("not asked; --max-requests allows 1") == 3
        done = run("freshness", repository / "skills", "--online", "--allow-private")
        assert "is of another origin" in done.stderr


def test_malformed_answer_of_a_server_is_one_line(repository: Path) -> None:
    with Publisher() as site:
        site.routes["/mcp"] = respond_with(b"[" * 1_000, content_type="application/json")
        write_citing(repository, "tea", f'tools = {{ "{site.url}/mcp" = ["search"] }}')
        done = run_process("freshness", repository / "skills", "--online", "--allow-private")
    assert done.returncode == 0
    first, second = done.stderr.splitlines()
    assert f"{site.url}/mcp: no answer (Failed to parse" in first
    assert second == "mcp-skills-server: 1 item not judged"
