"""Actions and code that really run, each without a sandbox and, where it works, with one."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcp_skills_server.catalog.roots import MirroredRoot
from mcp_skills_server.rpc import execution
from mcp_skills_server.rpc.blobs import BlobStore
from mcp_skills_server.runtime.scripts import approvals, processes, runner, sandbox
from mcp_skills_server.runtime.scripts.approvals import Approval
from mcp_skills_server.runtime.scripts.settings import ScriptSettings
from rpc.build import ACTIONS, CallFailedError, Desk, toml, write
from tables import each_row

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="POSIX processes")]

PYTHON = 'language = "python"\nentrypoint = "code/main.py"\nexport = "main"'
SHELL = 'entrypoint = "code/main.sh"'
FIELDS = {"status", "run_id", "summary", "output", "output_blobs", "logs_preview"}


@pytest.fixture(scope="module", params=["off", pytest.param("required", marks=pytest.mark.needs_program("bwrap"))])
def box(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where work directories are made; and nobody is refused, so that root can test what others do."""
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setattr(sandbox, "is_off_forbidden", lambda: False)
    monkeypatch.setattr(processes, "GRACE_S", 0.4)
    monkeypatch.setattr(runner, "SLOT_TIMEOUT_S", 0.2)
    return place


def desk(box: Any, *roots: Path | MirroredRoot, allow_code: bool = False, **chosen: Any) -> Desk:
    blobs = chosen.pop("blobs", None)
    given: dict[str, Any] = {"timeout_s": 20, "output_bytes": 4096, **chosen}
    return Desk(*roots, scripts=ScriptSettings(sandbox=box, **given), allow_code=allow_code, blobs=blobs)


def left(temporary: Path, pattern: str = "session-*") -> list[Path]:
    return [*temporary.rglob(pattern)]


async def run(desk: Desk, method: str = "execute_skill", **params: Any) -> Any:
    reported = await desk.call(method, **params)
    assert set(reported) == (FIELDS if reported["status"] == "completed" else FIELDS | {"error"})
    assert reported["run_id"].startswith("run_") and reported["summary"] and "\n" not in reported["summary"]
    return reported


async def failed(desk: Desk, method: str = "execute_skill", **params: Any) -> tuple[str, str]:
    reported = await run(desk, method, **params)
    assert reported["status"] == "failed" and reported["output"] is None
    return reported["error"]["type"], reported["error"]["message"]


def python(top: Path, code: str, **more: Any) -> Path:
    return write(top / "thing", toml("thing", runtime=PYTHON), code__main_py=code, **more)


def shell(top: Path, code: str, **more: Any) -> Path:
    return write(top / "thing", toml("thing", runtime=SHELL), code__main_sh=code, **more)


# Actions


@pytest.mark.requirement("SP-25", "SP-27", "SP-28", "SP-33")
async def test_the_action_of_the_seed_runs_as_its_page_calls_it(box: Any, temporary: Path) -> None:
    served = desk(box, ACTIONS, secrets={"salesforce/leads-sync": {"SALESFORCE_API_KEY": "k", "OTHER": "o"}})
    made = await served.call("create_blob", content="name,mail\na,b\nc,d\n", kind="text/csv")
    assert set(made) == {"blob_id", "size_bytes"} and made["size_bytes"] == 18
    args = {"sheet_blob": made["blob_id"], "env": "prod"}
    reported = await run(served, name="salesforce.leads.sync", args=args)
    assert reported["status"] == "completed", reported
    assert reported["output"] == {"env": "prod", "leads": 2, "authorised": True}
    assert "2 leads for prod" in reported["logs_preview"] and reported["output_blobs"] == []
    assert not left(temporary)


async def test_what_a_run_leaves_becomes_blobs(box: Any) -> None:
    served = desk(box, ACTIONS)
    reported = await run(served, name="salesforce.contacts.export")
    (blob,) = reported["output_blobs"]
    assert (reported["status"], reported["output"]) == ("completed", {"contacts": 2})
    whole = await served.call("read_blob", blob_id=blob, mode="full")
    assert whole["content"].startswith("name,mail\nAda Lovelace") and whole["truncated"] is False
    assert (await served.call("read_blob", blob_id=blob, max_bytes=4)) == {"content": "name", "truncated": True}
    tail = await served.call("read_blob", blob_id=blob, mode="sample_tail", max_bytes=4)
    assert tail == {"content": "com\n", "truncated": True}


@pytest.mark.requirement("SP-25", "SP-32")
async def test_a_program_finds_its_blobs_and_prints_its_output(box: Any) -> None:
    served = desk(box, ACTIONS)
    blobs = [(await served.call("create_blob", content=text))["blob_id"] for text in ("a\nb\n", "c\n")]
    reported = await run(served, name="text.line-count", input_blobs=blobs, timeout_ms=600_000)
    assert reported["status"] == "completed"
    assert (reported["output"], reported["logs_preview"]) == ({"lines": 3}, "counted\n")


async def test_arguments_reach_a_program_as_a_file(tmp_path: Path) -> None:
    shell(tmp_path, 'cat "$SKILL_WORKSPACE/args.json"')
    deep: Any = 1
    for _ in range(50):
        deep = [deep]
    args = {"é": ["\n", None, 1.5], "deep": deep}
    assert (await run(desk("off", tmp_path), name="thing", args=args))["output"] == args
    assert (await run(desk("off", tmp_path), name="thing"))["output"] == {}


async def test_a_function_is_given_the_arguments_and_finds_its_neighbours(box: Any, tmp_path: Path) -> None:
    code = "import near\ndef main(args):\n    print('said')\n    return {'got': args, 'near': near.X}\n"
    python(tmp_path, code, code__near_py="X = 5\n")
    reported = await run(desk(box, tmp_path), name="thing", args={"a": "é"})
    assert reported["output"] == {"got": {"a": "é"}, "near": 5} and reported["logs_preview"] == "said\n"


@each_row(("line", "kind", "said"), [
    ("raise ValueError('two\\nlines')", "ValueError", "two\nlines"), ("(", "SyntaxError", "was never closed"),
    ("pass\nmain = 3", "LookupError", "main.py has no function main"),
    ("return {1, 2}", "TypeError", "not JSON serializable"), ("raise SystemExit(3)", "execution_failed", "exit code 3"),
    ("return float('nan')", "ValueError", "not JSON compliant"),
    ("raise SystemExit(0)", "execution_failed", "without a result"),
    ("import os; os.kill(os.getpid(), 9)", "execution_failed", "exit code 137"),
    ("return 'x' * 2_000_000", "execution_failed", "more than 1,048,576 bytes"),
])  # fmt: skip
@pytest.mark.requirement("SP-20")
async def test_a_function_that_fails_is_a_result(tmp_path: Path, line: str, kind: str, said: str) -> None:
    python(tmp_path, f"def main(args):\n    {line}\n")
    reported = await run(desk("off", tmp_path), name="thing")
    assert reported["error"]["type"] == kind and said in reported["error"]["message"]
    assert ("Traceback" in reported["logs_preview"]) is (kind != "execution_failed")


async def test_a_program_that_fails_is_a_result(tmp_path: Path) -> None:
    shell(tmp_path, "echo oops >&2; exit 3")
    assert await failed(desk("off", tmp_path), name="thing") == ("execution_failed", "oops")
    shell(tmp_path, "head -c 10000 /dev/zero | tr '\\0' x")
    kind, said = await failed(desk("off", tmp_path), name="thing")
    assert kind == "output_too_long" and "output_blobs" in said


@each_row("timeout_ms", [600_001, 10**9, 10**400])  # the last one is no number of floating point
async def test_a_time_over_the_operators_is_refused(timeout_ms: int) -> None:
    kind, said = await failed(desk("off", ACTIONS), name="text.line-count", timeout_ms=timeout_ms)
    assert kind == "not_run" and "at most 600 seconds" in said


@each_row(("runtime", "kind", "said"), [
    ('entrypoint = "../other/main.py"', "not_executable", "is not a file of the skill"),
    ('language = "python"', "not_executable", "is not an action with an entry point"),
    ('entrypoint = "code/main.sh"\nexport = "main"', "unsupported_runtime", "only exports of Python"),
    ('language = "ruby"\nentrypoint = "code/main.py"\nexport = "main"', "unsupported_runtime", "only exports"),
    ('entrypoint = "code/main.py"\nexport = 3', "unsupported_runtime", "only exports of Python"),
    ('entrypoint = "code/notes.txt"', "not_run", "its extension is not one of"),
])  # fmt: skip
async def test_what_cannot_run_is_told(tmp_path: Path, runtime: str, kind: str, said: str) -> None:
    files = {"code__main_py": "", "code__main_sh": "", "code__notes_txt": "Notes."}
    write(tmp_path / "thing", toml("thing", runtime=runtime), **files)
    reported = await failed(desk("off", tmp_path), name="thing")
    assert reported[0] == kind and said in reported[1]
    for name in ("weather", "writing.tone", "skills.protocol.guide"):  # instructions
        assert (await failed(desk("off", ACTIONS), name=name))[0] == "not_executable"


@pytest.mark.requirement("SP-33")
async def test_only_declared_secrets_are_handed_on(box: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT_BACK", "1")
    text = toml("thing", runtime=PYTHON, permissions='secrets = ["API_KEY"]')
    write(tmp_path / "thing", text, code__main_py="import os\ndef main(args):\n    return dict(os.environ)\n")
    reported = await failed(desk(box, tmp_path), name="thing")
    assert reported == ("secret_missing", "thing needs API_KEY, which the operator of this server has not given to it")
    other = {"other": {"API_KEY": "not this one"}, "https://example.com#thing": {"API_KEY": "nor this"}}
    assert (await failed(desk(box, tmp_path, secrets=other), name="thing")) == reported
    given = {**other, "thing": {"API_KEY": "k", "OTHER": "o"}}
    seen = (await run(desk(box, tmp_path, secrets=given), name="thing"))["output"]
    assert seen["API_KEY"] == "k" and not {"OTHER", "KEPT_BACK"} & set(seen)
    assert set(seen) <= {
        "API_KEY", "HOME", "LANG", "LC_CTYPE", "PATH", "PWD", "SKILL_DIR", "SKILL_WORKSPACE", "TMPDIR", "SKILL_RUN",
    }  # fmt: skip


@pytest.mark.requirement("SP-30", "SP-31", "SP-32")
async def test_a_sandboxed_action_can_do_little(box: Any, tmp_path: Path) -> None:
    if box == "off":
        pytest.skip("this is what the sandbox is for")
    code = (
        "import os, socket\n"
        "def main(args):\n"
        "    open('/workspace/new', 'w').close()\n"
        "    return [os.getuid(), os.environ['HOME'], os.listdir('/skills'), os.environ['SKILL_DIR'],\n"
        "            os.access('/skills/acme.thing', os.W_OK), [name for _, name in socket.if_nameindex()]]\n"
    )
    write(tmp_path / "thing", toml("acme.thing", runtime=PYTHON), code__main_py=code, name="thing")
    reported = await run(desk(box, tmp_path), name="acme.thing")
    assert reported["output"] == [65534, "/workspace", ["acme.thing"], "/skills/acme.thing", False, ["lo"]]


# What a run leaves, made by an enemy


async def test_neither_links_nor_pipes_nor_directories_become_blobs(box: Any, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    shell(
        tmp_path / "root",
        f'cd "$SKILL_WORKSPACE/output_blobs" && ln -s {secret} a && mkfifo b && mkdir c && echo d > d && ln d e\n'
        "echo f > f",
    )
    served = desk(box, tmp_path / "root")
    reported = await run(served, name="thing")
    (blob,) = reported["output_blobs"]
    assert (await served.call("read_blob", blob_id=blob))["content"] == "f\n"


@each_row("left", [
    "ln -s /etc/passwd result.json", "mkfifo result.json", "mkdir result.json",
    "rm -rf output_blobs; ln -s / output_blobs",
])  # fmt: skip
async def test_a_result_that_is_no_file_is_none(box: Any, tmp_path: Path, left: str) -> None:
    code = f"os.chdir(os.environ['SKILL_WORKSPACE'])\n    os.system('{left}')\n    os._exit(0)\n"
    python(tmp_path, f"import os\ndef main(args):\n    {code}")
    kind, said = await failed(desk(box, tmp_path), name="thing")
    assert kind == "execution_failed" and "without a result" in said


@each_row("gone", ["", "/output_blobs"])
async def test_what_a_run_took_away_is_no_output(tmp_path: Path, gone: str) -> None:
    shell(tmp_path, f'rm -rf "$SKILL_WORKSPACE{gone}"; echo 1')
    reported = await run(desk("off", tmp_path), name="thing")
    assert (reported["output"], reported["output_blobs"], reported["logs_preview"]) == (1, [], "")


async def test_arguments_too_deep_to_be_written_are_refused() -> None:
    served, levels = desk("off", ACTIONS), 1000
    while True:
        args = f'{{"name":"text.line-count","args":{{"x":{"[" * levels}{"]" * levels}}}}}'
        answer = await served.send(f'{{"jsonrpc":"2.0","id":1,"method":"execute_skill","params":{args}}}'.encode())
        if answer["error"]["code"] != -32700:  # the deepest that can be read
            break
        levels -= 1
    assert (answer["error"]["code"], answer["error"]["message"]) == (-32602, "args is nested too deeply")


@each_row(("loop", "most_bytes", "owners", "kept"), [
    ("$(seq 100); do echo $i > f$i; done", 64 << 20, 0, 64),
    ("1 2 3; do head -c 40 /dev/zero > f$i; done", 100, 0, 2),
    ("1; do echo more > f$i; done", 100, 4, 0),  # each of four owners has as much as it may
])  # fmt: skip
async def test_blobs_of_a_run_are_bounded_in_number_and_bytes(
    tmp_path: Path, loop: str, most_bytes: int, owners: int, kept: int
) -> None:
    shell(tmp_path, f'cd "$SKILL_WORKSPACE/output_blobs"; for i in {loop}')
    blobs = BlobStore(most_bytes=most_bytes)
    for number in range(owners):
        blobs.add(b"x" * 25, "text/plain", f"owner {number}")
    reported = await run(desk("off", tmp_path, blobs=blobs), name="thing")
    assert (reported["status"], len(reported["output_blobs"])) == ("completed", kept)
    assert "some files in output_blobs are above the limits" in reported["logs_preview"]


async def test_blobs_of_a_call_are_there_and_not_too_many() -> None:
    served = desk("off", ACTIONS)
    for method, params in (
        ("execute_skill", {"name": "text.line-count", "input_blobs": ["blob:1"]}),
        ("execute_skill", {"name": "text.line-count", "input_blobs": ["../../etc/passwd"]}),
        ("read_blob", {"blob_id": "blob:1"}),
    ):
        with pytest.raises(CallFailedError, match="Unknown blob") as caught:
            await served.call(method, **params)
        assert caught.value.code == -32602
    assert caught.value.data == {"blob_id": "blob:1"}
    made = [await served.call("create_blob", content="a\ud800\n") for _ in range(execution.MAX_INPUT_BLOBS + 1)]
    names = [each["blob_id"] for each in made]
    assert (await served.call("read_blob", blob_id=names[0]))["content"] == "a\ufffd\n"
    with pytest.raises(CallFailedError, match="at most 64 blobs"):
        await served.call("execute_skill", name="text.line-count", input_blobs=names)
    reported = await run(served, name="text.line-count", input_blobs=names[:-1] * 2)
    assert (reported["status"], reported["output"]) == ("completed", {"lines": 64})


async def test_what_waits_takes_no_room_on_disk(tmp_path: Path, temporary: Path) -> None:
    code = 'until [ -e "$SKILL_WORKSPACE/stop" ]; do sleep 0.05; done'
    served = desk("off", shell(tmp_path / "root", code).parent, concurrent=1)
    blob = (await served.call("create_blob", content="x" * 500_000))["blob_id"]
    reported: list[Any] = []
    async with anyio.create_task_group() as tasks:

        async def one() -> None:
            reported.append(await run(served, name="thing", input_blobs=[blob]))
            if len(reported) == 4:
                (written,) = left(temporary, f"blobs/{blob[5:]}")  # by the one that runs
                (written.parent.parent / "stop").touch()

        for _ in range(5):
            tasks.start_soon(one)
    assert [each["status"] for each in reported] == ["failed"] * 4 + ["completed"]
    assert {each["error"]["type"] for each in reported[:4]} == {"not_run"}
    assert "1 scripts are running already" in reported[0]["error"]["message"]
    assert not left(temporary)


async def test_a_run_that_is_taken_back_leaves_nothing(tmp_path: Path, temporary: Path) -> None:
    os.mkfifo(gate := tmp_path / "gate")
    served = desk("off", shell(tmp_path / "root", f"echo > {gate}; sleep 60").parent)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(served.call, "execute_skill", name="thing"))
        await anyio.to_thread.run_sync(gate.read_text)  # it runs
        assert left(temporary)
        tasks.cancel_scope.cancel()
    assert not left(temporary)


@pytest.mark.requirement("SP-26", "X-27")
@each_row(("language", "code", "entrypoint", "output"), [
    ("python", "print(1 + 1)", None, 2),
    ("Python", "def f(args):\n    return [args['a']]", "f", ["b"]),
    ("py", "import json, os\nprint(open(os.environ['SKILL_WORKSPACE'] + '/args.json').read())", None, {"a": "b"}),
    ("sh", "echo '\"x\"'", None, "x"),
    ("shell", "echo $0 | sed 's,.*/,,'", None, "main.sh\n"),
])  # fmt: skip
async def test_code_runs_in_the_known_languages(
    box: Any, language: str, code: str, entrypoint: str | None, output: Any
) -> None:
    served = desk(box, ACTIONS, allow_code=True)
    given = {"language": language, "code": code, "entrypoint": entrypoint, "args": {"a": "b"}}
    reported = await run(served, "run_code", **given)
    assert (reported["status"], reported["output"]) == ("completed", output), reported
    kind, said = await failed(desk(box, ACTIONS), "run_code", **given)
    assert kind == "execution_disabled" and "--allow-code" in said


@pytest.mark.requirement("SP-26", "SP-32")
async def test_code_sees_the_skills_that_are_mounted_and_its_blobs(box: Any) -> None:
    served = desk(box, ACTIONS, allow_code=True)
    blob = (await served.call("create_blob", content="from a blob"))["blob_id"]
    code = (
        "cd $SKILL_DIR; ls; head -c 16 weather/resources/table.md; "
        'cat "$SKILL_WORKSPACE/blobs/$(ls $SKILL_WORKSPACE/blobs)"'
    )
    mounted = ["weather", "salesforce.leads.sync", "weather", "skills.protocol.guide"]
    reported = await run(served, "run_code", language="sh", code=code, mount_skills=mounted, input_blobs=[blob])
    assert reported["output"] == "salesforce.leads.sync\nweather\n# Table of 1.2.0from a blob", reported


@each_row(("params", "kind", "said"), [
    ({"language": "cobol"}, "unsupported_runtime", "'cobol' is not supported here; supported: bash, cjs, .* zsh$"),
    ({"language": "../x"}, "unsupported_runtime", "is not supported here"),
    ({"language": "sh", "entrypoint": "main"}, "unsupported_runtime", "name of a Python function"),
    ({"language": "python", "entrypoint": "a.b"}, "unsupported_runtime", "name of a Python function"),
    ({"language": "python", "code": "import nothing_such"}, "execution_failed", "No module named"),
    ({"language": "python", "code": "while True: pass", "timeout_ms": 500}, "timeout", "time limit"),
])  # fmt: skip
async def test_code_that_cannot_run_is_told(params: dict[str, Any], kind: str, said: str) -> None:
    reported = await failed(desk("off", ACTIONS, allow_code=True), "run_code", **{"code": "x", **params})
    assert reported[0] == kind and re.search(said, reported[1])


async def test_an_action_of_a_site_wants_approval_and_has_a_secret_of_its_own(tmp_path: Path) -> None:
    """A site's skill takes the place, by its path, of one that the operator gave a secret."""
    text = toml("thing", runtime=PYTHON, permissions='secrets = ["API_KEY"]')
    code = "import os\ndef main(args):\n    return os.environ['API_KEY']\n"
    for folder in ("site", "mine"):
        write(tmp_path / folder / "thing", text, code__main_py=code)
    roots = (MirroredRoot(str(tmp_path / "site"), "https://example.com"), tmp_path / "mine")
    own: dict[str, Any] = {"secrets": {"thing": {"API_KEY": "mine"}}}
    file = tmp_path / "approvals.json"
    allowed: dict[str, Any] = {"origins": ("https://example.com",), "approvals": str(file)}
    for given, words in (({}, "--allow-scripts-of"), (allowed, "was never approved")):
        served = desk("off", *roots, **own, **given)
        kind, said = await failed(served, name="thing")
        assert kind == "not_run" and words in said
    skill = served.registry.snapshot.skills["thing"]
    approval = Approval("https://example.com", "thing", served.registry.digest_over(skill), 0.0)
    approvals.update(file, lambda _: [approval])
    kind, _ = await failed(served, name="thing")
    assert kind == "secret_missing"
    own["secrets"]["https://example.com#thing"] = {"API_KEY": "theirs"}
    assert (await run(desk("off", *roots, **own, **allowed), name="thing"))["output"] == "theirs"


async def test_sixteen_skills_are_mounted_that_are_there_and_not_one_more(tmp_path: Path) -> None:
    names = [f"thing-{number:02}" for number in range(17)]
    for name in names:
        write(tmp_path / name, toml(name))
    served = desk("off", tmp_path, allow_code=True)
    for wrong, said in ((names, "at most 16 skills can be mounted"), (["gone"], "Unknown skill 'gone'")):
        with pytest.raises(CallFailedError, match=said):
            await served.call("run_code", language="sh", code="true", mount_skills=wrong)
    reported = await run(served, "run_code", language="sh", code="true", mount_skills=names[1:])
    assert reported["status"] == "completed"


async def test_code_of_a_call_mounts_no_skill_that_is_not_approved(tmp_path: Path) -> None:
    write(tmp_path / "site" / "thing", toml("thing", runtime=PYTHON), code__main_py="print('ran')\n")
    site = MirroredRoot(str(tmp_path / "site"), "https://example.com")
    served = desk("off", site, allow_code=True)
    kind, said = await failed(served, "run_code", language="python", code="print(1)", mount_skills=["thing"])
    assert kind == "not_run" and "--allow-scripts-of" in said
    assert (await run(served, "run_code", language="python", code="print(1)"))["output"] == 1
