"""Scripts of others run where their origin is named and they are approved as they stand, and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from catalog.forest import loaded
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

    def approve(self, origin: str = SITE) -> None:
        digest = self.registry.digest_over(self.skill)
        approvals.update(self.file, lambda _: [Approval(origin, "thing", digest, 86400.0)])

    def policy(self, *origins: str) -> ExecutionPolicy:
        return ExecutionPolicy(self.registry, ScriptSettings(origins=origins, approvals=str(self.file)))

    def refusal(self, *origins: str, skill: Skill | None = None) -> str:
        with pytest.raises(RunRefusedError) as refused:
            allowed(self.policy(*origins), skill or self.skill)
        assert refused.value.by == "source"
        return str(refused.value)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def allowed(policy: ExecutionPolicy, skill: Skill) -> RunRights:
    """What a script of a skill gets of which nothing else is laid out."""
    return policy.decide(skill, [skill])


def test_fetched_skill_needs_allowed_origin_and_approval(place: Place) -> None:
    assert "--allow-scripts-of" in place.refusal()
    assert "was never approved" in place.refusal(SITE)
    place.approve()
    allowed(place.policy(SITE), place.skill)
    assert "--allow-scripts-of" in place.refusal()
    assert "--allow-scripts-of" in place.refusal(OTHER)
    place.approve(OTHER)
    assert "was never approved" in place.refusal(SITE)
    place.approve("")
    unknown = replace(place.skill, origin=UNKNOWN)
    assert "--allow-scripts-of" in place.refusal("", canonical(UNKNOWN), skill=unknown)


@pytest.mark.parametrize("path", ["scripts/run.py", "references/a.md", "scripts/more.py", "SKILL.md"])
def test_change_of_any_file_revokes_approval(place: Place, path: str) -> None:
    place.approve()
    file = place.folder / "thing" / path
    before = file.read_bytes() if file.exists() else None
    file.write_bytes((before or b"") + b"# More.\n")
    said = place.refusal(SITE)
    assert "changed since it was approved on 1970-01-02" in said and "approve ROOT thing --digest sha256:" in said
    assert said.endswith(place.registry.digest_over(place.skill))
    if before is None:
        file.unlink()
    else:
        file.write_bytes(before)
    allowed(place.policy(SITE), place.skill)


@pytest.mark.parametrize("spoil", [lambda file: file.chmod(0o666), lambda file: file.write_bytes(b"[]")])
def test_invalid_approvals_file_approves_nothing(place: Place, spoil: Callable[[Path], Any]) -> None:
    place.approve()
    spoil(place.file)
    assert "must repair the approvals file" in place.refusal(SITE)


def test_refusal_is_logged_once_with_the_command(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    policy = place.policy(SITE)
    for _ in range(2):
        with pytest.raises(RunRefusedError):
            allowed(policy, place.skill)
    (line,) = caplog.messages
    assert f"thing was never approved, and its scripts are not run; mcp-skills-server approve {SITE} thing" in line


def test_unused_approvals_file_is_logged(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.policy(SITE)
    ExecutionPolicy(place.registry, ScriptSettings())
    assert caplog.messages == []
    place.policy()
    assert caplog.messages == [f"--approvals {place.file} is not used without --allow-scripts-of ORIGIN"]


@each_row(
    ("given", "spelled"),
    [
        ("https://Example.com/", "https://example.com"), ("https://example.com/a", "https://example.com/a"),
        ("HTTPS://example.com:443/.well-known/agent-skills/index.json", "https://example.com"),
        ("http://example.com:80/Team", "http://example.com/Team"), ("https://example.com:8443?key=s", "https://example.com:8443"),
        ("oci://registry.example/skills:1.0", "oci://registry.example/skills:1.0"),
        ("skills.zip", os.path.realpath("skills.zip")), (UNKNOWN, ""),
    ],
)  # fmt: skip
def test_origin_has_one_canonical_form(given: str, spelled: str) -> None:
    assert canonical(given) == spelled


def test_refusal_names_archive_without_its_path(place: Place) -> None:
    given = "/srv/private/team.zip"
    for origins in ((), (canonical(given),)):
        said = place.refusal(*origins, skill=replace(place.skill, origin=given))
        assert "comes from team.zip" in said and "private" not in said


def test_secret_is_bound_to_skill_and_source(tmp_path: Path) -> None:
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
    wanted = ["KEY", *(f"K{number}" for number in range(20))]
    with pytest.raises(RunRefusedError, match=rf"^thing needs {', '.join(wanted[:20])}, which") as missing:
        ours.decide(remote, [remote], needs=wanted)
    assert missing.value.by == "secret"


def test_script_gets_only_secrets_declared_in_manifest(tmp_path: Path) -> None:
    write(tmp_path / "thing", toml("thing", permissions='secrets = ["KEY"]'))
    write(tmp_path / "plain", toml("plain"))
    registry = loaded(tmp_path)
    given = {"KEY": "k", "OTHER": "o"}
    ours = ExecutionPolicy(registry, ScriptSettings(secrets={"thing": given, "plain": given}))
    assert allowed(ours, registry.snapshot.skills["thing"]).secrets == {"KEY": "k"}
    assert allowed(ours, registry.snapshot.skills["plain"]).secrets == {}
    assert ours.decide(None, [registry.snapshot.skills["thing"]]).secrets == {}  # code that came with a call
    (tmp_path / "thing" / "skill.toml").write_text("no manifest")
    registry.refresh()
    assert allowed(ours, registry.snapshot.skills["thing"]).secrets == {}


def test_network_needs_permission_of_all_skills_of_a_run(place: Place) -> None:
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


def test_run_needs_a_grant_for_scripts_or_code(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_skill(tmp_path / name, scripts__run_py="")
    registry = loaded(tmp_path)
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
async def test_policy_is_checked_before_layout(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "is_off_forbidden", lambda: False)
    scripts = Scripts(place.registry, ScriptSettings(sandbox="off", approvals=str(place.file), origins=(SITE,)))
    workspace = scripts.workspace()
    with closing(scripts):
        with pytest.raises(RequestError, match="never approved"):
            await scripts.run(place.skill, "scripts/run.py", workspace)
        with pytest.raises(RequestError, match="never approved"):  # code that came with a call may import it
            await scripts.run(None, "main.py", workspace, skills={"thing": place.skill})
        place.approve()
        skill = place.skill
        assert (await scripts.run(skill, "scripts/run.py", workspace)).stdout == "1\n"
        swap(place.folder / "thing" / "scripts" / "run.py", "print(2)\n")
        with pytest.raises(StaleFileError):
            await scripts.run(skill, "scripts/run.py", workspace)


def swap(file: Path, text: str) -> None:
    seen = file.stat()
    file.write_text(text)
    os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))
