"""Scripts of others run where their origin is named and they are approved as they stand, and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcp_skills_server.access.grants import Grant, May, Pattern, Permissions
from mcp_skills_server.catalog.fetched import UNKNOWN
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import MirroredRoot
from mcp_skills_server.errors import RequestError, StaleFileError
from mcp_skills_server.model import Skill
from mcp_skills_server.runtime.scripts import approvals, sandbox
from mcp_skills_server.runtime.scripts.approvals import Approval
from mcp_skills_server.runtime.scripts.policy import ExecutionPolicy, RunRefusedError, RunRights, canonical, reference
from mcp_skills_server.runtime.scripts.runner import Scripts
from mcp_skills_server.runtime.scripts.settings import ScriptSettings
from rpc.build import toml, write
from tables import each_row
from wire import write_skill

SITE = "https://example.com"
OTHER = "https://other.example"


class Place:
    """Skills of a site, as it serves them now, and a file of approvals."""

    def __init__(self, top: Path) -> None:
        self.folder = top / "site"
        self.file = top / "state" / "approvals.json"
        write_skill(self.folder / "thing", scripts__run_py="print(1)\n", references__a_md="a")
        self.registry = Registry([MirroredRoot(str(self.folder), SITE)])
        self.registry.load()

    @property
    def skill(self) -> Skill:
        self.registry.refresh()
        return self.registry.snapshot.skills["thing"]

    def approve(self, origin: str = SITE, at: float = 86400.0) -> None:
        digest = self.registry.digest_over(self.skill)
        approvals.update(self.file, lambda _: [Approval(origin, "thing", digest, at)])

    def check(self, *origins: str) -> None:
        allowed(policy(self.registry, origins, str(self.file)), self.skill)

    def refusal(self, *origins: str) -> str:
        with pytest.raises(RequestError) as refused:
            self.check(*origins)
        return str(refused.value)


def allowed(policy: ExecutionPolicy, skill: Skill) -> RunRights:
    """What a script of a skill gets of which nothing else is laid out."""
    return policy.decide(skill, [skill])


def policy(registry: Registry, origins: Iterable[str], file: str | None = None) -> ExecutionPolicy:
    return ExecutionPolicy(registry, ScriptSettings(origins=tuple(origins), approvals=file))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_folder_of_ones_own_needs_no_approval(tmp_path: Path) -> None:
    write_skill(tmp_path / "mine", scripts__run_py="")
    registry = Registry([tmp_path])
    registry.load()
    allowed(policy(registry, (), str(tmp_path / "none")), registry.snapshot.skills["mine"])


def test_both_the_origin_and_the_approval_are_wanted(place: Place) -> None:
    assert "--allow-scripts-of" in place.refusal()
    assert "was never approved" in place.refusal(SITE)
    place.approve()
    place.check(SITE)
    assert "--allow-scripts-of" in place.refusal()
    assert "--allow-scripts-of" in place.refusal(OTHER)
    place.approve(OTHER)
    assert "was never approved" in place.refusal(SITE)


@pytest.mark.parametrize(
    ("path", "text"),
    [("scripts/run.py", "print(2)\n"), ("references/a.md", "b"), ("scripts/more.py", ""), ("SKILL.md", None)],
)
def test_a_change_of_any_file_asks_again_and_says_since_when(place: Place, path: str, text: str | None) -> None:
    place.approve()
    file = place.folder / "thing" / path
    before = file.read_bytes() if file.exists() else None
    if text is None:
        text = file.read_text() + "More.\n"
    file.write_text(text)
    said = place.refusal(SITE)
    assert "changed since it was approved on 1970-01-02" in said and "approve ROOT thing --digest sha256:" in said
    assert said.endswith(place.registry.digest_over(place.skill))
    if before is None:
        file.unlink()
    else:
        file.write_bytes(before)
    place.check(SITE)


def test_a_swap_between_the_answer_and_the_run_is_not_run(place: Place) -> None:
    place.approve()
    skill = place.skill
    allowed(policy(place.registry, [SITE], str(place.file)), skill)
    script = place.folder / "thing" / "scripts" / "run.py"
    seen = script.stat()
    script.write_text("print(2)\n")
    os.utime(script, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    with pytest.raises(StaleFileError):
        place.registry.read(skill.files["scripts/run.py"])


@pytest.mark.parametrize("spoil", [lambda file: file.chmod(0o666), lambda file: file.write_bytes(b"[]")])
def test_a_file_of_approvals_that_is_not_in_order_approves_nothing(place: Place, spoil: Callable[[Path], Any]) -> None:
    place.approve()
    spoil(place.file)
    assert "must repair the approvals file" in place.refusal(SITE)


def test_approvals_that_no_origin_needs_are_said_not_to_be_used(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    policy(place.registry, [SITE], str(place.file))
    policy(place.registry, [])
    assert caplog.messages == []
    policy(place.registry, [], str(place.file))
    assert caplog.messages == [f"--approvals {place.file} is not used without --allow-scripts-of ORIGIN"]


@each_row(
    ("given", "spelled"),
    [
        ("https://Example.com/", "https://example.com"),
        ("HTTPS://example.com:443/.well-known/agent-skills/index.json", "https://example.com"),
        ("http://example.com:80/Team", "http://example.com/Team"),
        ("https://example.com:8443?key=s", "https://example.com:8443"),
        ("https://example.com/a", "https://example.com/a"),
        (UNKNOWN, ""),
    ],
)
def test_an_origin_has_one_spelling(given: str, spelled: str) -> None:
    assert canonical(given) == spelled


def test_an_archive_goes_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert canonical("oci://registry.example/skills:1.0") == "oci://registry.example/skills:1.0"
    assert canonical("skills.zip") == canonical(str(tmp_path / "skills.zip")) == os.path.realpath("skills.zip")


def test_nobody_can_name_what_is_unknown(place: Place) -> None:
    place.approve("")
    odd = replace(place.skill, origin=UNKNOWN)
    with pytest.raises(RequestError, match="--allow-scripts-of"):
        allowed(policy(place.registry, ["", canonical(UNKNOWN)], str(place.file)), odd)


def test_a_refusal_names_an_archive_and_not_where_it_lies(place: Place) -> None:
    given = "/srv/private/team.zip"
    remote = replace(place.skill, origin=given)
    for origins in ((), (given,)):
        with pytest.raises(RunRefusedError, match=r"comes from team\.zip") as refused:
            allowed(policy(place.registry, map(canonical, origins), str(place.file)), remote)
        assert "private" not in str(refused.value)


def test_a_secret_is_of_one_skill_of_one_source(tmp_path: Path) -> None:
    write(tmp_path / "thing", toml("thing", permissions='secrets = ["KEY"]'))
    registry = Registry([MirroredRoot(str(tmp_path), SITE)])
    registry.load()
    remote = registry.snapshot.skills["thing"]
    other, local = replace(remote, origin=OTHER), replace(remote, origin=None)
    file, digest = tmp_path / "approvals.json", registry.digest_over(remote)
    approvals.update(file, lambda _: [Approval(origin, "thing", digest, 0) for origin in (SITE, OTHER)])
    secrets = {"thing": {"KEY": "mine"}, f"{OTHER}#thing": {"KEY": "theirs"}}
    assert reference(remote) == f"{SITE}#thing" and reference(local) == "thing"
    ours = ExecutionPolicy(registry, ScriptSettings(secrets=secrets, origins=(SITE, OTHER), approvals=str(file)))
    assert allowed(ours, local).secrets == {"KEY": "mine"} and allowed(ours, other).secrets == {"KEY": "theirs"}
    assert allowed(ours, remote).secrets == {}
    with pytest.raises(RunRefusedError, match=r"^thing needs KEY, OTHER, which") as missing:
        ours.decide(remote, [remote], needs=["KEY", "OTHER"])
    assert missing.value.by == "secret"


def test_a_script_gets_only_those_secrets_that_the_manifest_declares(tmp_path: Path) -> None:
    for name, text in (("thing", toml("thing", permissions='secrets = ["KEY"]')), ("plain", None)):
        write(tmp_path / name, text or toml("plain"))
    registry = Registry([tmp_path])
    registry.load()
    given = {"KEY": "k", "OTHER": "o"}
    ours = ExecutionPolicy(registry, ScriptSettings(secrets={"thing": given, "plain": given}))
    assert allowed(ours, registry.snapshot.skills["thing"]).secrets == {"KEY": "k"}
    assert allowed(ours, registry.snapshot.skills["plain"]).secrets == {}
    assert ours.decide(None, [registry.snapshot.skills["thing"]]).secrets == {}  # code that came with a call


def test_the_network_is_for_the_skill_of_one_source_and_for_all_that_a_run_lays_out(place: Place) -> None:
    place.approve()
    remote, local = place.skill, replace(place.skill, origin=None)

    def network(settings: ScriptSettings, *laid_out: Skill) -> bool:
        given = replace(settings, origins=(SITE,), approvals=str(place.file))
        return ExecutionPolicy(place.registry, given).decide(None, laid_out).network

    mine = ScriptSettings(network_of=("thing",))
    assert network(mine, local) and not network(mine, remote) and not network(mine, local, remote)
    assert not network(mine)  # code that came with a call
    assert network(ScriptSettings(network_of=(f"{SITE}#thing",)), remote)
    assert network(ScriptSettings(network=True))


def test_what_runs_takes_a_grant_whatever_else_allows_it(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_skill(tmp_path / name, scripts__run_py="")
    registry = Registry([tmp_path])
    registry.load()
    one, two = (registry.snapshot.skills[name] for name in ("one", "two"))
    ours = ExecutionPolicy(registry, ScriptSettings())

    def refusal(skill: Skill | None, laid_out: Sequence[Skill], *grants: tuple[str, May]) -> str:
        made = Permissions([Grant(("*",), (Pattern(path),), frozenset({what})) for path, what in grants])
        try:
            ours.decide(skill, laid_out, permissions=made)
        except RunRefusedError as error:
            return str(error).partition(" is not run for you")[0] if error.by == "grant" else error.by
        return ""

    assert refusal(one, [one], ("one", "scripts")) == ""
    assert refusal(one, [one], ("one", "read"), ("one", "code"), ("two", "scripts")) == "A script of one"
    assert refusal(None, [], ("two", "code")) == ""
    assert refusal(None, [], ("**", "scripts")) == "Code"
    assert refusal(None, [one, two], ("**", "code")) == ""
    assert refusal(None, [one, two], ("one", "code"), ("two", "scripts")) == "Code with the files of two"


@pytest.mark.anyio
async def test_scripts_ask_before_anything_is_prepared(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "is_off_forbidden", lambda: False)
    settings = ScriptSettings(sandbox="off", approvals=str(place.file), origins=(SITE,))
    scripts = Scripts(place.registry, settings)
    workspace = scripts.workspace()
    try:
        with pytest.raises(RequestError, match="never approved"):
            await scripts.run(place.skill, "scripts/run.py", workspace)
        with pytest.raises(RequestError, match="never approved"):  # code that came with a call may import it
            await scripts.run(None, "main.py", workspace, skills={"thing": place.skill})
        place.approve()
        assert (await scripts.run(place.skill, "scripts/run.py", workspace)).stdout == "1\n"
    finally:
        scripts.close()
