"""Execution of actions and of code, without a sandbox and with one."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_skills_server.access.quota import Owner
from mcp_skills_server.catalog.roots import MirroredRoot
from mcp_skills_server.rpc import execution
from mcp_skills_server.rpc.blobs import BlobStore
from mcp_skills_server.runtime.scripts import approvals, processes, runner, sandbox
from mcp_skills_server.runtime.scripts.approvals import Approval
from mcp_skills_server.runtime.scripts.settings import ScriptSettings
from rpc.build import ACTIONS, RpcServer, toml, write
from tables import each_row
from wire import WireError

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="POSIX processes")]

PYTHON = 'language = "python"\nentrypoint = "code/main.py"\nexport = "main"'
SHELL = 'entrypoint = "code/main.sh"'
FIELDS = {"status", "run_id", "summary", "output", "output_blobs", "logs_preview"}


@pytest.fixture(scope="module", params=["off", pytest.param("required", marks=pytest.mark.needs_program("bwrap"))])
def sandbox_mode(request: pytest.FixtureRequest) -> Any:
    """Each value of `--sandbox`; `temporary` allows "off" to root too."""
    return request.param


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the parent of the work directories. Allow root to run scripts without a sandbox."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(sandbox, "is_off_forbidden", lambda: False)
    monkeypatch.setattr(processes, "GRACE_S", 0.4)
    monkeypatch.setattr(runner, "SLOT_TIMEOUT_S", 0.2)
    return folder


def make_rpc(
    sandbox_mode: Any,
    *roots: Path | MirroredRoot,
    allow_code: bool = False,
    blobs: BlobStore | None = None,
    **settings: Any,
) -> RpcServer:
    settings = {"timeout_s": 20, "output_bytes": 4096, **settings}
    return RpcServer(
        *roots, scripts=ScriptSettings(sandbox=sandbox_mode, **settings), allow_code=allow_code, blobs=blobs
    )


def paths_below(temporary: Path, pattern: str = "session-*") -> list[Path]:
    """Return the matching paths below the temporary folder, by default the work directories."""
    return [*temporary.rglob(pattern)]


async def run(rpc: RpcServer, method: str = "execute_skill", **params: Any) -> Any:
    result = await rpc.call(method, **params)
    if result["status"] == "completed":
        assert set(result) == FIELDS
    else:
        assert set(result) == FIELDS | {"error"}
    assert result["run_id"].startswith("run_")
    assert result["summary"]
    assert "\n" not in result["summary"]
    return result


async def assert_fails(rpc: RpcServer, kind: str, message: str, method: str = "execute_skill", **params: Any) -> None:
    """Run something that fails with this type of error, and a message that matches the pattern."""
    result = await run(rpc, method, **params)
    assert (result["status"], result["output"]) == ("failed", None)
    assert result["error"]["type"] == kind
    assert re.search(message, result["error"]["message"])


def write_python(root: Path, code: str, **files: Any) -> Path:
    return write(root / "thing", toml("thing", runtime=PYTHON), code__main_py=code, **files)


def write_shell(root: Path, code: str) -> Path:
    return write(root / "thing", toml("thing", runtime=SHELL), code__main_sh=code)


async def test_output_files_of_a_run_become_blobs(sandbox_mode: Any) -> None:
    rpc = make_rpc(sandbox_mode, ACTIONS)
    result = await run(rpc, name="salesforce.contacts.export")
    (blob,) = result["output_blobs"]
    assert (result["status"], result["output"]) == ("completed", {"contacts": 2})
    whole = await rpc.call("read_blob", blob_id=blob, mode="full")
    assert whole["content"].startswith("name,mail\nAda Lovelace")
    assert whole["truncated"] is False
    assert (await rpc.call("read_blob", blob_id=blob, max_bytes=4)) == {"content": "name", "truncated": True}
    tail = await rpc.call("read_blob", blob_id=blob, mode="sample_tail", max_bytes=4)
    assert tail == {"content": "com\n", "truncated": True}


@pytest.mark.requirement("SP-25", "SP-32")
async def test_program_reads_its_input_blobs_and_prints_its_output(sandbox_mode: Any) -> None:
    rpc = make_rpc(sandbox_mode, ACTIONS)
    blobs = [(await rpc.call("create_blob", content=text))["blob_id"] for text in ("a\nb\n", "c\n")]
    result = await run(rpc, name="text.line-count", input_blobs=blobs, timeout_ms=600_000)
    assert result["status"] == "completed"
    assert (result["output"], result["logs_preview"]) == ({"lines": 3}, "counted\n")


async def test_function_gets_the_arguments_and_imports_sibling_modules(sandbox_mode: Any, tmp_path: Path) -> None:
    code = "import near\ndef main(args):\n    print('printed')\n    return {'got': args, 'near': near.X}\n"
    write_python(tmp_path, code, code__near_py="X = 5\n")
    result = await run(make_rpc(sandbox_mode, tmp_path), name="thing", args={"a": "é"})
    assert result["output"] == {"got": {"a": "é"}, "near": 5}
    assert result["logs_preview"] == "printed\n"


@each_row(("line", "kind", "message"), [
    ("raise ValueError('two\\nlines')", "ValueError", "two\nlines"), ("(", "SyntaxError", "was never closed"),
    ("pass\nmain = 3", "LookupError", "main.py has no function main"),
    ("return {1, 2}", "TypeError", "not JSON serializable"), ("raise SystemExit(3)", "execution_failed", "exit code 3"),
    ("return float('nan')", "ValueError", "not JSON compliant"),
    ("raise SystemExit(0)", "execution_failed", "without a result"),
    ("import os; os.kill(os.getpid(), 9)", "execution_failed", "exit code 137"),
    ("return 'x' * 2_000_000", "execution_failed", "more than 1,048,576 bytes"),
])  # fmt: skip
@pytest.mark.requirement("SP-20")
async def test_failed_function_is_a_result_with_its_error(tmp_path: Path, line: str, kind: str, message: str) -> None:
    write_python(tmp_path, f"def main(args):\n    {line}\n")
    result = await run(make_rpc("off", tmp_path), name="thing")
    assert result["error"]["type"] == kind
    assert message in result["error"]["message"]
    assert ("Traceback" in result["logs_preview"]) is (kind != "execution_failed")


@each_row("timeout_ms", [600_001, 10**9, 10**400])  # the last one is too large for a float
async def test_timeout_over_the_limit_of_the_operator_is_refused(timeout_ms: int) -> None:
    await assert_fails(
        make_rpc("off", ACTIONS), "not_run", "at most 600 seconds", name="text.line-count", timeout_ms=timeout_ms
    )


@each_row(("runtime", "kind", "message"), [
    ('entrypoint = "../other/main.py"', "not_executable", "is not a file of the skill"),
    ('language = "python"', "not_executable", "is not an action with an entry point"),
    ('entrypoint = "code/main.sh"\nexport = "main"', "unsupported_runtime", "only exports of Python"),
    ('language = "ruby"\nentrypoint = "code/main.py"\nexport = "main"', "unsupported_runtime", "only exports"),
    ('entrypoint = "code/main.py"\nexport = 3', "unsupported_runtime", "only exports of Python"),
    ('entrypoint = "code/notes.txt"', "not_run", "its extension is not one of"),
])  # fmt: skip
async def test_action_that_cannot_run_fails_with_the_reason(
    tmp_path: Path, runtime: str, kind: str, message: str
) -> None:
    files = {"code__main_py": "", "code__main_sh": "", "code__notes_txt": "Notes."}
    write(tmp_path / "thing", toml("thing", runtime=runtime), **files)
    await assert_fails(make_rpc("off", tmp_path), kind, message, name="thing")
    for name in ("weather", "writing.tone", "skills.protocol.guide"):  # instructions
        await assert_fails(make_rpc("off", ACTIONS), "not_executable", "", name=name)


@pytest.mark.requirement("SP-33")
async def test_only_declared_secrets_are_passed_to_a_run(
    sandbox_mode: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_SERVER", "1")
    text = toml("thing", runtime=PYTHON, permissions='secrets = ["API_KEY"]')
    write(tmp_path / "thing", text, code__main_py="import os\ndef main(args):\n    return dict(os.environ)\n")
    missing = "^thing needs API_KEY, which the operator of this server has not given to it$"
    await assert_fails(make_rpc(sandbox_mode, tmp_path), "secret_missing", missing, name="thing")
    other = {"other": {"API_KEY": "not this one"}, "https://example.com#thing": {"API_KEY": "nor this"}}
    await assert_fails(make_rpc(sandbox_mode, tmp_path, secrets=other), "secret_missing", missing, name="thing")
    secrets = {**other, "thing": {"API_KEY": "k", "OTHER": "o"}}
    environment = (await run(make_rpc(sandbox_mode, tmp_path, secrets=secrets), name="thing"))["output"]
    assert environment["API_KEY"] == "k"
    assert set(environment) <= {
        "API_KEY", "HOME", "LANG", "LC_CTYPE", "PATH", "PWD", "SKILL_DIR", "SKILL_WORKSPACE", "TMPDIR", "SKILL_RUN",
    }  # fmt: skip


@pytest.mark.requirement("SP-30", "SP-31", "SP-32")
async def test_sandboxed_action_runs_as_nobody_without_network_or_writable_skill(
    sandbox_mode: Any, tmp_path: Path
) -> None:
    if sandbox_mode == "off":
        pytest.skip("needs a sandbox")
    code = (
        "import os, socket\n"
        "def main(args):\n"
        "    open('/workspace/new', 'w').close()\n"
        "    return [os.getuid(), os.environ['HOME'], os.listdir('/skills'), os.environ['SKILL_DIR'],\n"
        "            os.access('/skills/acme.thing', os.W_OK), [name for _, name in socket.if_nameindex()]]\n"
    )
    write(tmp_path / "thing", toml("acme.thing", runtime=PYTHON), code__main_py=code, name="thing")
    result = await run(make_rpc(sandbox_mode, tmp_path), name="acme.thing")
    assert result["output"] == [65534, "/workspace", ["acme.thing"], "/skills/acme.thing", False, ["lo"]]


async def test_links_fifos_and_directories_do_not_become_blobs(sandbox_mode: Any, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    write_shell(
        tmp_path / "root",
        f'cd "$SKILL_WORKSPACE/output_blobs" && ln -s {secret} a && mkfifo b && mkdir c && echo d > d && ln d e\n'
        "echo f > f",
    )
    rpc = make_rpc(sandbox_mode, tmp_path / "root")
    result = await run(rpc, name="thing")
    (blob,) = result["output_blobs"]
    assert (await rpc.call("read_blob", blob_id=blob))["content"] == "f\n"


@each_row("command", [
    "ln -s /etc/passwd result.json", "mkfifo result.json", "mkdir result.json",
    "rm -rf output_blobs; ln -s / output_blobs",
])  # fmt: skip
async def test_result_that_is_no_regular_file_is_ignored(sandbox_mode: Any, tmp_path: Path, command: str) -> None:
    code = f"os.chdir(os.environ['SKILL_WORKSPACE'])\n    os.system('{command}')\n    os._exit(0)\n"
    write_python(tmp_path, f"import os\ndef main(args):\n    {code}")
    await assert_fails(make_rpc(sandbox_mode, tmp_path), "execution_failed", "without a result", name="thing")


@each_row("deleted", ["", "/output_blobs"])
async def test_run_that_deletes_its_workspace_has_no_output_blobs(tmp_path: Path, deleted: str) -> None:
    write_shell(tmp_path, f'rm -rf "$SKILL_WORKSPACE{deleted}"; echo 1')
    result = await run(make_rpc("off", tmp_path), name="thing")
    assert (result["output"], result["output_blobs"], result["logs_preview"]) == (1, [], "")


async def test_unusable_temporary_directory_is_a_failed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault is none of the call's parameters."""
    write_shell(tmp_path, "echo 1")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    await assert_fails(make_rpc("off", tmp_path), "not_run", "its work directory cannot be made", name="thing")


@each_row(("loop", "most_bytes", "owners", "kept"), [
    ("$(seq 100); do echo $i > f$i; done", 64 << 20, 0, 64),
    ("1 2 3; do head -c 40 /dev/zero > f$i; done", 100, 0, 2),
    ("1; do echo more > f$i; done", 100, 4, 0),  # four owners have used up their shares
])  # fmt: skip
async def test_output_blobs_are_limited_in_number_and_bytes(
    tmp_path: Path, loop: str, most_bytes: int, owners: int, kept: int
) -> None:
    write_shell(tmp_path, f'cd "$SKILL_WORKSPACE/output_blobs"; for i in {loop}')
    blobs = BlobStore(most_bytes=most_bytes)
    for number in range(owners):
        blobs.add(b"x" * 25, Owner(f"owner {number}"))
    result = await run(make_rpc("off", tmp_path, blobs=blobs), name="thing")
    assert (result["status"], len(result["output_blobs"])) == ("completed", kept)
    assert "some files in output_blobs are above the limits" in result["logs_preview"]


@pytest.mark.requirement("SP-27")
async def test_input_blobs_must_exist_and_be_at_most_64() -> None:
    rpc = make_rpc("off", ACTIONS)
    for method, params in (
        ("execute_skill", {"name": "text.line-count", "input_blobs": ["blob:1"]}),
        ("execute_skill", {"name": "text.line-count", "input_blobs": ["../../etc/passwd"]}),
        ("read_blob", {"blob_id": "blob:1"}),
    ):
        with pytest.raises(WireError, match="Unknown blob") as caught:
            await rpc.call(method, **params)
        assert caught.value.code == -32602
    assert caught.value.data == {"blob_id": "blob:1"}
    names: list[str] = []
    for _ in range(execution.MAX_INPUT_BLOBS + 1):
        blob = await rpc.call("create_blob", content="a\ud800\n")
        assert (set(blob), blob["size_bytes"]) == ({"blob_id", "size_bytes"}, 5)
        names.append(blob["blob_id"])
    assert (await rpc.call("read_blob", blob_id=names[0]))["content"] == "a\ufffd\n"
    with pytest.raises(WireError, match="at most 64 blobs"):
        await rpc.call("execute_skill", name="text.line-count", input_blobs=names)
    result = await run(rpc, name="text.line-count", input_blobs=names[:-1] * 2)
    assert (result["status"], result["output"]) == ("completed", {"lines": 64})


async def test_waiting_run_writes_no_files(tmp_path: Path, temporary: Path) -> None:
    code = 'until [ -e "$SKILL_WORKSPACE/stop" ]; do sleep 0.05; done'
    rpc = make_rpc("off", write_shell(tmp_path / "root", code).parent, concurrent=1)
    blob = (await rpc.call("create_blob", content="x" * 500_000))["blob_id"]
    results: list[Any] = []

    async def run_one() -> None:
        results.append(await run(rpc, name="thing", input_blobs=[blob]))
        if len(results) == 4:  # the fifth one runs
            (written,) = paths_below(temporary, f"blobs/{blob.removeprefix('blob:')}")
            (written.parent.parent / "stop").touch()

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(run_one)
    assert [each["status"] for each in results] == ["failed"] * 4 + ["completed"]
    assert {each["error"]["type"] for each in results[:4]} == {"not_run"}
    assert "1 scripts are running already" in results[0]["error"]["message"]
    assert not paths_below(temporary)


@pytest.mark.requirement("SP-26", "X-27")
@each_row(("language", "code", "entrypoint", "output"), [
    ("python", "print(1 + 1)", None, 2),
    ("Python", "def f(args):\n    return [args['a']]", "f", ["b"]),
    ("py", "import json, os\nprint(open(os.environ['SKILL_WORKSPACE'] + '/args.json').read())", None, {"a": "b"}),
    ("sh", "echo '\"x\"'", None, "x"),
    ("shell", "echo $0 | sed 's,.*/,,'", None, "main.sh\n"),
])  # fmt: skip
async def test_code_runs_in_each_supported_language(
    sandbox_mode: Any, language: str, code: str, entrypoint: str | None, output: Any
) -> None:
    rpc = make_rpc(sandbox_mode, ACTIONS, allow_code=True)
    params = {"language": language, "code": code, "entrypoint": entrypoint, "args": {"a": "b"}}
    result = await run(rpc, "run_code", **params)
    assert (result["status"], result["output"]) == ("completed", output), result
    await assert_fails(make_rpc(sandbox_mode, ACTIONS), "execution_disabled", "--allow-code", "run_code", **params)


@pytest.mark.requirement("SP-26", "SP-32")
async def test_code_sees_mounted_skills_and_its_input_blobs(sandbox_mode: Any) -> None:
    rpc = make_rpc(sandbox_mode, ACTIONS, allow_code=True)
    blob = (await rpc.call("create_blob", content="from a blob"))["blob_id"]
    code = (
        "cd $SKILL_DIR; ls; head -c 16 weather/resources/table.md; "
        'cat "$SKILL_WORKSPACE/blobs/$(ls $SKILL_WORKSPACE/blobs)"'
    )
    mounted = ["weather", "salesforce.leads.sync", "weather", "skills.protocol.guide"]
    result = await run(rpc, "run_code", language="sh", code=code, mount_skills=mounted, input_blobs=[blob])
    assert result["output"] == "salesforce.leads.sync\nweather\n# Table of 1.2.0from a blob", result


@each_row(("params", "kind", "message"), [
    ({"language": "cobol"}, "unsupported_runtime", "'cobol' is not supported here; supported: bash, cjs, .* zsh$"),
    ({"language": "../x"}, "unsupported_runtime", "is not supported here"),
    ({"language": "sh", "entrypoint": "main"}, "unsupported_runtime", "name of a Python function"),
    ({"language": "python", "entrypoint": "a.b"}, "unsupported_runtime", "name of a Python function"),
    ({"language": "python", "code": "import nothing_such"}, "execution_failed", "No module named"),
    ({"language": "python", "code": "while True: pass", "timeout_ms": 500}, "timeout", "time limit"),
])  # fmt: skip
async def test_code_that_cannot_run_fails_with_the_reason(params: dict[str, Any], kind: str, message: str) -> None:
    rpc = make_rpc("off", ACTIONS, allow_code=True)
    await assert_fails(rpc, kind, message, "run_code", **{"code": "x", **params})


async def test_action_of_a_site_needs_approval_and_its_own_secret(tmp_path: Path) -> None:
    """A skill of a site shadows one of the same path to which the operator gave a secret."""
    text = toml("thing", runtime=PYTHON, permissions='secrets = ["API_KEY"]')
    code = "import os\ndef main(args):\n    return os.environ['API_KEY']\n"
    for folder in ("site", "mine"):
        write(tmp_path / folder / "thing", text, code__main_py=code)
    roots = (MirroredRoot(str(tmp_path / "site"), "https://example.com"), tmp_path / "mine")
    own: dict[str, Any] = {"secrets": {"thing": {"API_KEY": "mine"}}}
    file = tmp_path / "approvals.json"
    allowed: dict[str, Any] = {"origins": ("https://example.com",), "approvals": str(file)}
    for settings, words in (({}, "--allow-scripts-of"), (allowed, "was never approved")):
        rpc = make_rpc("off", *roots, **own, **settings)
        await assert_fails(rpc, "not_run", words, name="thing")
    skill = rpc.registry.snapshot.skills["thing"]
    approval = Approval("https://example.com", "thing", rpc.registry.digest_over(skill), 0.0)
    approvals.update(file, lambda _: [approval])
    await assert_fails(rpc, "secret_missing", "API_KEY", name="thing")
    own["secrets"]["https://example.com#thing"] = {"API_KEY": "theirs"}
    assert (await run(make_rpc("off", *roots, **own, **allowed), name="thing"))["output"] == "theirs"


async def test_at_most_sixteen_existing_skills_are_mounted(tmp_path: Path) -> None:
    names = [f"thing-{number:02}" for number in range(17)]
    for name in names:
        write(tmp_path / name, toml(name))
    rpc = make_rpc("off", tmp_path, allow_code=True)
    for mounted, message in ((names, "at most 16 skills can be mounted"), (["gone"], "Unknown skill 'gone'")):
        with pytest.raises(WireError, match=message):
            await rpc.call("run_code", language="sh", code="true", mount_skills=mounted)
    result = await run(rpc, "run_code", language="sh", code="true", mount_skills=names[1:])
    assert result["status"] == "completed"


async def test_code_cannot_mount_an_unapproved_skill(tmp_path: Path) -> None:
    write(tmp_path / "site" / "thing", toml("thing", runtime=PYTHON), code__main_py="print('ran')\n")
    site = MirroredRoot(str(tmp_path / "site"), "https://example.com")
    rpc = make_rpc("off", site, allow_code=True)
    await assert_fails(
        rpc, "not_run", "--allow-scripts-of", "run_code", language="python", code="print(1)", mount_skills=["thing"]
    )
    assert (await run(rpc, "run_code", language="python", code="print(1)"))["output"] == 1
