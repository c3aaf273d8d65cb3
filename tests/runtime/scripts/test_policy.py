"""The execution policy: origins, approvals by digest, secrets, network access and grants."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from catalog.forest import load_registry
from mcp_skills_server.access.grants import Grant, May, Pattern, Permissions
from mcp_skills_server.catalog.fetched import UNKNOWN
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import MirroredRoot
from mcp_skills_server.errors import RequestError, StaleFileError
from mcp_skills_server.model import Skill
from mcp_skills_server.runtime.scripts import approvals, sandbox
from mcp_skills_server.runtime.scripts.approvals import Approval
from mcp_skills_server.runtime.scripts.policy import ExecutionPolicy, RunRefusedError, RunRights, canonical, reference
from mcp_skills_server.runtime.scripts.runner import RunRequest, Scripts
from mcp_skills_server.runtime.scripts.settings import ScriptSettings
from rpc.build import toml, write
from tables import each_row
from wire import write_skill

SITE = "https://example.com"
OTHER = "https://other.example"


class Mirror:
    """A root of skills fetched from `SITE`, and an approvals file."""

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
        """Return the refusal of a script if only these origins are allowed."""
        with pytest.raises(RunRefusedError) as caught:
            rights(self.policy(*origins), skill or self.skill)
        assert caught.value.by == "source"
        return str(caught.value)


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    return Mirror(tmp_path)


def rights(policy: ExecutionPolicy, skill: Skill) -> RunRights:
    """Return the rights of a script of this skill, which is the only one laid out."""
    return policy.decide(skill, [skill])


def test_fetched_skill_needs_allowed_origin_and_approval(mirror: Mirror) -> None:
    assert "--allow-scripts-of" in mirror.refusal()
    assert "was never approved" in mirror.refusal(SITE)
    mirror.approve()
    rights(mirror.policy(SITE), mirror.skill)
    assert "--allow-scripts-of" in mirror.refusal()
    assert "--allow-scripts-of" in mirror.refusal(OTHER)
    mirror.approve(OTHER)
    assert "was never approved" in mirror.refusal(SITE)
    mirror.approve("")
    unknown = replace(mirror.skill, origin=UNKNOWN)
    assert "--allow-scripts-of" in mirror.refusal("", canonical(UNKNOWN), skill=unknown)


@pytest.mark.parametrize("path", ["scripts/run.py", "references/a.md", "scripts/more.py", "SKILL.md"])
def test_change_of_any_file_revokes_approval(mirror: Mirror, path: str) -> None:
    mirror.approve()
    file = mirror.folder / "thing" / path
    before = file.read_bytes() if file.exists() else None
    file.write_bytes((before or b"") + b"# More.\n")
    message = mirror.refusal(SITE)
    assert "changed since it was approved on 1970-01-02" in message
    assert message.endswith(f"approve ROOT thing --digest {mirror.registry.digest_over(mirror.skill)}")
    if before is None:
        file.unlink()
    else:
        file.write_bytes(before)
    rights(mirror.policy(SITE), mirror.skill)


@pytest.mark.parametrize("damage", [lambda file: file.chmod(0o666), lambda file: file.write_bytes(b"[]")])
def test_invalid_approvals_file_approves_nothing(mirror: Mirror, damage: Callable[[Path], Any]) -> None:
    mirror.approve()
    damage(mirror.file)
    assert "must repair the approvals file" in mirror.refusal(SITE)


def test_refusal_is_logged_once_with_the_command(mirror: Mirror, caplog: pytest.LogCaptureFixture) -> None:
    policy = mirror.policy(SITE)
    for _ in range(2):
        with pytest.raises(RunRefusedError):
            rights(policy, mirror.skill)
    (line,) = caplog.messages
    command = f"mcp-skills-server scripts approve {SITE} thing"
    assert f"thing was never approved, and its scripts are not run; {command}" in line


def test_unused_approvals_file_is_logged(mirror: Mirror, caplog: pytest.LogCaptureFixture) -> None:
    mirror.policy(SITE)
    ExecutionPolicy(mirror.registry, ScriptSettings())
    assert caplog.messages == []
    mirror.policy()
    assert caplog.messages == [f"--approvals {mirror.file} is not used without --allow-scripts-of ORIGIN"]


@each_row(
    ("given", "expected"),
    [
        ("https://Example.com/", "https://example.com"), ("https://example.com/a", "https://example.com/a"),
        ("HTTPS://example.com:443/.well-known/agent-skills/index.json", "https://example.com"),
        ("http://example.com:80/Team", "http://example.com/Team"), ("https://example.com:8443?key=s", "https://example.com:8443"),
        ("oci://registry.example/skills:1.0", "oci://registry.example/skills:1.0"),
        ("skills.zip", os.path.realpath("skills.zip")), (UNKNOWN, ""),
    ],
)  # fmt: skip
def test_origin_has_one_canonical_form(given: str, expected: str) -> None:
    assert canonical(given) == expected


def test_refusal_names_archive_without_its_path(mirror: Mirror) -> None:
    given = "/srv/private/team.zip"
    for origins in ((), (canonical(given),)):
        message = mirror.refusal(*origins, skill=replace(mirror.skill, origin=given))
        assert "comes from team.zip" in message
        assert "private" not in message


def test_secret_is_bound_to_skill_and_source(tmp_path: Path) -> None:
    write(tmp_path / "thing", toml("thing", permissions='secrets = ["KEY"]'))
    registry = Registry([MirroredRoot(str(tmp_path), SITE)])
    registry.load()
    remote = registry.snapshot.skills["thing"]
    other, local = replace(remote, origin=OTHER), replace(remote, origin=None)
    file, digest = tmp_path / "approvals.json", registry.digest_over(remote)
    approvals.update(file, lambda _: [Approval(origin, "thing", digest, 0) for origin in (SITE, OTHER)])
    secrets = {"thing": {"KEY": "mine"}, f"{OTHER}#thing": {"KEY": "theirs"}}
    assert (reference(remote), reference(local)) == (f"{SITE}#thing", "thing")
    policy = ExecutionPolicy(registry, ScriptSettings(secrets=secrets, origins=(SITE, OTHER), approvals=str(file)))
    assert rights(policy, local).secrets == {"KEY": "mine"}
    assert rights(policy, other).secrets == {"KEY": "theirs"}
    assert rights(policy, remote).secrets == {}
    needs = ["KEY", *(f"K{number}" for number in range(20))]
    with pytest.raises(RunRefusedError, match=rf"^thing needs {', '.join(needs[:20])} and 1 more, which") as caught:
        policy.decide(remote, [remote], needs=needs)
    assert caught.value.by == "secret"


def test_script_gets_only_secrets_declared_in_manifest(tmp_path: Path) -> None:
    write(tmp_path / "thing", toml("thing", permissions='secrets = ["KEY"]'))
    write(tmp_path / "plain", toml("plain"))
    registry = load_registry(tmp_path)
    secrets = {"KEY": "k", "OTHER": "o"}
    policy = ExecutionPolicy(registry, ScriptSettings(secrets={"thing": secrets, "plain": secrets}))
    assert rights(policy, registry.snapshot.skills["thing"]).secrets == {"KEY": "k"}
    assert rights(policy, registry.snapshot.skills["plain"]).secrets == {}
    assert policy.decide(None, [registry.snapshot.skills["thing"]]).secrets == {}  # code of a call
    (tmp_path / "thing" / "skill.toml").write_text("invalid")
    registry.refresh()
    assert rights(policy, registry.snapshot.skills["thing"]).secrets == {}


def test_network_needs_permission_of_all_skills_of_a_run(mirror: Mirror) -> None:
    mirror.approve()
    remote, local = mirror.skill, replace(mirror.skill, origin=None)

    def network(settings: ScriptSettings, *laid_out: Skill) -> bool:
        given = replace(settings, origins=(SITE,), approvals=str(mirror.file))
        return ExecutionPolicy(mirror.registry, given).decide(None, laid_out).network

    of_local = ScriptSettings(network_of=("thing",))
    assert network(of_local, local)
    assert not network(of_local, remote)
    assert not network(of_local, local, remote)
    assert not network(of_local)  # code of a call
    assert network(ScriptSettings(network_of=(f"{SITE}#thing",)), remote)
    assert network(ScriptSettings(network=True))


def test_run_needs_a_grant_for_scripts_or_code(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_skill(tmp_path / name, scripts__run_py="")
    registry = load_registry(tmp_path)
    one, two = (registry.snapshot.skills[name] for name in ("one", "two"))
    policy = ExecutionPolicy(registry, ScriptSettings())

    def refusal(skill: Skill | None, laid_out: Sequence[Skill], *grants: tuple[str, May]) -> str:
        """Return the subject of the refusal for want of a grant; "" if it may run."""
        permissions = Permissions([Grant(("*",), (Pattern(path),), frozenset({may})) for path, may in grants])
        try:
            policy.decide(skill, laid_out, permissions=permissions)
        except RunRefusedError as error:
            by, message = error.by, str(error)
        else:
            return ""
        assert by == "grant"
        return message.partition(" is not run for you")[0]

    assert refusal(one, [one], ("one", "scripts")) == ""
    assert refusal(one, [one], ("one", "read"), ("one", "code"), ("two", "scripts")) == "A script of one"
    assert refusal(None, [], ("two", "code")) == ""
    assert refusal(None, [], ("**", "scripts")) == "Code"
    assert refusal(None, [one, two], ("**", "code")) == ""
    assert refusal(None, [one, two], ("one", "code"), ("two", "scripts")) == "Code with the files of two"


@pytest.mark.anyio
async def test_policy_is_checked_before_layout(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "is_off_forbidden", lambda: False)
    scripts = Scripts(mirror.registry, ScriptSettings(sandbox="off", approvals=str(mirror.file), origins=(SITE,)))
    workspace, request = scripts.workspace(), RunRequest(skill=mirror.skill, path="scripts/run.py")
    with closing(scripts):
        with pytest.raises(RequestError, match="never approved"):
            await scripts.run(request, workspace)
        with pytest.raises(RequestError, match="never approved"):  # code of a call could import it
            await scripts.run(RunRequest(skill=None, path="main.py", skills={"thing": mirror.skill}), workspace)
        mirror.approve()
        assert (await scripts.run(request, workspace)).stdout == "1\n"
        file = mirror.folder / "thing" / "scripts" / "run.py"
        before = file.stat()
        file.write_text("print(2)\n")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        with pytest.raises(StaleFileError):
            await scripts.run(request, workspace)
