"""`make hosts` (tools/hosts): what it makes of what it saw, and its scripted model, which speaks four APIs."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tools.hosts import __main__ as command
from tools.hosts import facts, setting
from tools.hosts.model import FREE, NEEDED, Api, Script, Seen, Step, Tool, Turn, read_request, serving
from tools.hosts.setting import Trace
from tools.pages import between_markers

from commands.calls import seen
from tables import each_row
from wire import DEADLINE

OURS = [Tool(name, "Loads.") for name in NEEDED]


def test_lines_are_found_in_text_and_in_json() -> None:
    body = setting.long_body(2000)
    numbers = facts.lines_in(body)
    assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) > 20
    assert facts.lines_in(json.dumps({"text": body, "again": body})) == numbers
    assert facts.ranges([*numbers[:5], *numbers[9:11], 99]) == "1-5, 10-11, 99"


@each_row(("result", "wanted"), [
    ('{"session":"x","active_skills":[]}', "structuredContent"),
    ('Wall time: 1\nOutput:\n{"active_skills":[{"instructions":"<skill name=\\"x\\">"}]}', "structuredContent"),
    ("Active skills: a.\n\n<skill name='a'>", "text"), ("<untrusted>\n<skill name='a'>", "text"),
    ('<skill name="a">\n{"active_skills": []}', "text and structuredContent"),
    ('{"content":[{"text":"Active skills: a."}],"x":{"active_skills":[]}}', "text and structuredContent"),
    ("Permission denied", "neither text nor structure as sent"),
])  # fmt: skip
def test_the_form_of_a_result(result: str, wanted: str) -> None:
    assert facts.form(result) == wanted


def test_the_made_up_folder_is_the_same_each_time_and_all_its_skills_are_good(tmp_path: Path) -> None:
    first, second = (setting.build(tmp_path / name) for name in "ab")
    assert first == second and len(set(first)) == setting.MANY
    files = [sorted(path.relative_to(tmp_path / name) for path in (tmp_path / name).rglob("*.md")) for name in "ab"]
    assert files[0] == files[1]
    assert all((tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes() for file in files[0])
    setting.write(tmp_path / "a", setting.ADDED, "# Count\n")
    said = seen("validate", tmp_path / "a")
    assert (said["ok"], said["skills"]) == (True, setting.MANY + 1)
    assert [each["skill"] for each in said["notes"] if each["code"] == "body-long"] == ["body-of-60000"]
    assert min([*first, setting.ADDED]) == setting.ADDED


def test_messages_are_read_while_they_are_written(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "trace")
    trace.write_program(["server"])
    tools = [{"name": "skills_load", "description": "LOADS"}]
    lines = [
        {"id": 1, "result": {"instructions": "FIRST"}},
        {"id": 2, "result": {"tools": tools}},
        {"method": "notifications/tools/list_changed"},
        {"id": 3, "result": {"prompts": [{"name": "a"}, {"name": "b"}]}},
    ]
    (tmp_path / "trace" / "out.1").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"id": 4, "re')
    (tmp_path / "trace" / "in.1").write_text('{"method": "tools/list"}\n{"method": "tools/list"}\n')
    assert trace.instructions() == ["FIRST"] and trace.tools() == [{"skills_load": "LOADS"}]
    assert (trace.notices(), trace.prompts(), trace.count("tools/list")) == (1, 2, 2)
    assert trace.wait(lambda: trace.notices() == 1, 5) and not trace.wait(lambda: False, 0)


def finished(tmp_path: Path, answers: dict[str, str]) -> facts.Run:
    """A run in which everything was offered and this came back."""
    trace = Trace(tmp_path / "trace")
    if not trace.folder.exists():
        trace.write_program(["server"])
    tools = [{"name": each.name, "description": "Loads."} for each in OURS]
    (trace.folder / "out.1").write_text(json.dumps({"result": {"instructions": "Rule.", "tools": tools}}) + "\n")
    (trace.folder / "in.1").write_text('{"method": "initialize", "params": {"protocolVersion": "2025-06-18"}}\n')
    seen = Seen("Rule.", OURS, [])
    script = Script(deque(), lambda: True, first=seen, equipped=seen, answers=answers)
    return facts.Run(["a"], script, trace, setting.Ended(0, "", ""), 1, [])


GOOD = {
    "search": "audit-invoice",
    "load": '{"active_skills": ["# audit-invoice"]}',
    "read": setting.MARK,
    "propose": "Proposal 1 for count-twice waits for a person to decide.",
    **{f"load {length}": setting.long_body(length) for length in setting.LONG},
    "added": setting.ADDED,
}


def judged(tmp_path: Path, answers: dict[str, str]) -> facts.Result:
    result = facts.Result("1")
    facts.judge_calls(result, finished(tmp_path, answers))
    return result


def test_a_good_run_has_no_failure_and_a_long_body_that_is_cut_is_none(tmp_path: Path) -> None:
    good = judged(tmp_path, GOOD)
    assert good.failures == [] and good.facts["a body of 60,000 characters"] == "whole"
    cut = judged(tmp_path, GOOD | {f"load {setting.LONG[1]}": setting.long_body(setting.LONG[1])[:30_000]})
    assert cut.failures == [] and cut.facts["a body of 60,000 characters"].startswith("lines 1-")


@each_row("label", ["search", "load", "read", "propose", f"load {setting.LONG[0]}"])
def test_what_does_not_work_is_a_failure(tmp_path: Path, label: str) -> None:
    missing = {key: value for key, value in GOOD.items() if key != label}
    for answers in (missing, missing | {label: "Permission denied"}):
        assert len(judged(tmp_path, answers).failures) == 1


def test_a_server_that_was_never_asked_is_said(tmp_path: Path) -> None:
    run = finished(tmp_path, {})
    (run.trace.folder / "out.1").unlink()
    assert "not accepted: the server answered nothing;" in run.lost()
    (run.trace.folder / "err.1").write_text("no such folder\n")
    (run.trace.folder / "in.1").unlink()
    assert "the server was not asked (it said 'no such folder'); the host ended with 0" in run.lost()


def test_a_host_that_is_not_there_is_named_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "CACHE", tmp_path)
    said = command.measured("codex", namespaced=True)
    assert said.facts == {} and "without --offline" in said.failures[0]
    (tmp_path / "codex").mkdir()
    (tmp_path / "codex" / "failed.txt").write_text("npm error 404")
    assert command.measured("codex", namespaced=True).failures == ["could not be installed: npm error 404"]
    there = tmp_path / "codex" / "node_modules" / ".bin" / "codex"
    there.parent.mkdir(parents=True)
    there.touch()
    assert "could not be started" in command.measured("codex", namespaced=True).failures[0]


def test_without_a_network_of_its_own_every_proxy_leads_nowhere(tmp_path: Path) -> None:
    said = setting.environment(tmp_path, [Path("/node")], {"KEY": "none"}, namespaced=False)
    assert said["HOME"] == str(tmp_path) and said["PATH"].startswith("/node") and said["KEY"] == "none"
    assert said["HTTPS_PROXY"] == said["https_proxy"] == "http://127.0.0.1:9" and "127.0.0.1" in said["NO_PROXY"]
    assert "HTTPS_PROXY" not in setting.environment(tmp_path, [], {}, namespaced=True)


def test_a_program_that_does_not_end_is_ended(tmp_path: Path) -> None:
    waits = "import signal; print('here', flush=True); signal.pause()"
    ended = setting.run([sys.executable, "-c", waits], {}, tmp_path, limit=2)
    assert ended.code is None and "not ended" in ended.reason()
    ended = setting.run([sys.executable, "-c", "import sys; sys.exit('no key')"], {}, tmp_path)
    assert ended.code == 1 and ended.reason() == "ended with 1: no key"


@each_row(("load", "propose", "said"), [
    ("No.\nNever.", None, "refused: No."),
    (setting.long_body(setting.LONG[0]), "It waits for a person.", "runs all the same"),
    (setting.long_body(setting.LONG[0]), '{"name": "count-twice", "state":"pending"}', "runs all the same"),
    (setting.long_body(setting.LONG[0]), "Ask. " * 50, "loads all the same; skills_propose is refused: Ask."),
])  # fmt: skip
def test_what_is_asked_for_is_told_by_the_first_call_that_is_refused(
    tmp_path: Path, load: str, propose: str | None, said: str
) -> None:
    answers = {f"load {setting.LONG[0]}": load} | ({"propose": propose} if propose else {})
    assert facts.refusal(finished(tmp_path, answers)).startswith(said)


def test_what_left_the_group_of_a_run_is_ended(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("needs /proc")
    said = "subprocess.Popen(['sleep', '60'], start_new_session=True, stdout=-3, stderr=-3).pid"
    words = [sys.executable, "-c", f"import subprocess; print({said})"]
    ended = setting.run(words, {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}, tmp_path)
    command_line = Path(f"/proc/{int(ended.out)}/cmdline")
    end = time.monotonic() + DEADLINE
    # A process that is over has no words, also where nobody has asked for its end yet.
    while command_line.exists() and command_line.read_bytes():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_table_takes_the_place_of_the_old_one() -> None:
    columns = {"A 1": {"era": "old | new", "tools": "whole"}, "B": {"failed": "no npm"}}
    made = command.markdown(columns)
    page = f"before\n{command.BEGIN}\nold\n{command.END}\nafter\n"
    new = between_markers(page, made, command.BEGIN, command.END)
    assert new.startswith("before\n") and new.endswith("\nafter\n") and "\nold\n" not in new
    assert r"| era | old \| new |  |" in new and "| failed |  | no npm |" in new
    assert between_markers(new, made, command.BEGIN, command.END) == new
    assert command.read_table(new) == columns and command.read_table("") == {}


def test_columns_of_other_hosts_are_kept() -> None:
    kept = {"Codex 1": {"era": "old"}, "Claude Code 1": {"era": "older"}, "Gone 3": {"era": "none"}}
    merged = command.merge(kept, {"Cline 2": {"era": "new"}, "Codex 2": {"era": "new"}})
    assert merged == {"Codex 2": {"era": "new"}, "Claude Code 1": {"era": "older"}, "Cline 2": {"era": "new"}}
    assert list(merged) == ["Codex 2", "Claude Code 1", "Cline 2"]


CALL = Turn(name="skills_load", arguments={"names": ["ä"]})
PATHS: dict[Api, str] = {
    "anthropic": "/v1/messages?beta=true",
    "responses": "/v1/responses",
    "chat": "/v1/chat/completions",
    "gemini": "/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse",
}


def text(words: str, kind: str = "text") -> dict[str, str]:
    return {"type": kind, "text": words}


LOAD_TOOL = {"name": "mcp__skills__skills_load", "description": "LOADS"}
# The same conversation in each API: instructions, a question, a call, its result; one tool of ours.
BODIES: dict[Api, dict[str, Any]] = {
    "anthropic": {
        "stream": True, "system": [text("INSTRUCTIONS")], "tools": [{**LOAD_TOOL, "input_schema": {}}],
        "messages": [
            {"role": "user", "content": [text("QUESTION")]},
            {"role": "assistant", "content": [text("MINE"), {"type": "tool_use", "id": "1"}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": [text("RESULT")]}, text("REMINDER"),
            ]},
        ],
    },
    "responses": {
        "stream": True, "instructions": "INSTRUCTIONS",
        "tools": [{
            "type": "namespace", "name": "mcp__skills", "description": "REMINDER",
            "tools": [{"type": "function", **LOAD_TOOL}],
        }],
        "input": [
            {"type": "message", "role": "user", "content": [text("QUESTION", "input_text")]},
            {"type": "message", "role": "assistant", "content": [text("MINE", "output_text")]},
            {"type": "function_call", "call_id": "1", "name": "skills_load", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "RESULT"},
        ],
    },
    "chat": {
        "stream": True, "tools": [{"type": "function", "function": LOAD_TOOL}],
        "messages": [
            {"role": "system", "content": "INSTRUCTIONS"},
            {"role": "user", "content": [text("QUESTION"), text("REMINDER")]},
            {"role": "assistant", "content": "MINE", "tool_calls": [{"id": "1"}]},
            {"role": "tool", "tool_call_id": "1", "content": "RESULT"},
        ],
    },
    "gemini": {
        "systemInstruction": {"parts": [{"text": "INSTRUCTIONS"}]}, "tools": [{"functionDeclarations": [LOAD_TOOL]}],
        "contents": [
            {"role": "user", "parts": [{"text": "QUESTION"}, {"text": "REMINDER"}]},
            {"role": "model", "parts": [{"text": "MINE"}, {"functionCall": {"name": "x", "args": {}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "x", "response": {"output": "RESULT"}}}]},
        ],
    },
}  # fmt: skip


@each_row("api", BODIES)
def test_a_request_is_read(api: Api) -> None:
    seen = read_request(api, BODIES[api])
    assert all(word in seen.text for word in ("INSTRUCTIONS", "QUESTION", "REMINDER"))
    # What the model itself said shows nothing that a host handed on.
    assert "MINE" not in seen.text and "RESULT" not in seen.text
    assert list(seen.results) == ["RESULT"]
    group = "mcp__skills" if api == "responses" else None
    assert list(seen.tools) == [Tool("mcp__skills__skills_load", "LOADS", group)]


def test_a_deferred_tool_is_there_when_a_search_brought_it() -> None:
    tool = {**LOAD_TOOL, "defer_loading": True}
    reference = {"type": "tool_reference", "tool_name": "mcp__skills__skills_load"}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [reference]}]}
    assert not read_request("anthropic", {"tools": [tool], "messages": []}).tools
    seen = read_request("anthropic", {"tools": [tool], "messages": [result]})
    assert [each.name for each in seen.tools] == ["mcp__skills__skills_load"]
    assert list(seen.results) == ["mcp__skills__skills_load"]


SKILL_TOOLS = [Tool(f"mcp__skills__{name}", name) for name in NEEDED]
LOAD = Step("load", "skills_load", {"names": ["a"]})
READ = Step("read", "skills_read", {"path": "f"})


def scripted(*steps: Step) -> Script:
    return Script(deque(steps), lambda: True)


def test_steps_come_in_order_and_their_answers_are_kept() -> None:
    talk = scripted(LOAD, READ)
    assert talk.decide(Seen("", SKILL_TOOLS, [])) == Turn(name="mcp__skills__skills_load", arguments={"names": ["a"]})
    read = talk.decide(Seen("", SKILL_TOOLS, ['{"session": "s-1_x"}']))
    # As a model does, it gives the session that it was told.
    assert read == Turn(name="mcp__skills__skills_read", arguments={"path": "f", "session": "s-1_x"})
    assert talk.decide(Seen("", SKILL_TOOLS, ['{"session": "s-1_x"}', "bytes"])).name == ""
    assert talk.answers == {"load": '{"session": "s-1_x"}', "read": "bytes"}


@each_row("search", ["ToolSearch", "tool_search"])
def test_deferred_tools_are_searched_for_freely_first(search: str) -> None:
    talk = scripted(LOAD)
    host = [Tool(search, "")]
    late = talk.decide(Seen("", host, []))
    assert (late.name, late.arguments["query"]) == (search, FREE)
    assert late.kind == ("search" if search == "tool_search" else "function")
    # Nothing was there yet: the same free search again. Then a part: the exact one.
    assert talk.decide(Seen("", host, [""])).arguments["query"] == FREE
    exact = talk.decide(Seen("line", [*host, SKILL_TOOLS[1]], ["", "one"]))
    assert all(name in exact.arguments["query"] for name in NEEDED) and exact.arguments["query"] != FREE
    call = talk.decide(Seen("whole", [*host, *SKILL_TOOLS], ["", "one", "three"]))
    assert call.name == "mcp__skills__skills_load"
    assert talk.found == 1
    assert talk.deferred is not None and talk.deferred.text == "line"
    assert talk.equipped is not None and talk.equipped.text == "whole"


def test_tools_behind_a_bridge_are_called_through_it() -> None:
    talk = scripted(LOAD)
    messages: list[dict[str, Any]] = []

    def turn() -> Turn:
        functions = [{"type": "function", "function": {"name": name}} for name in ("tool_search", "tool_call")]
        return talk.decide(read_request("chat", {"tools": functions, "messages": messages}))

    search = turn()
    assert (search.name, search.kind) == ("tool_search", "function") and "max_results" in search.arguments
    schemas = [json.dumps({"name": tool.name, "description": "LOADS"}) for tool in SKILL_TOOLS]
    shown = "\n".join(f"<function>{schema}</function>" for schema in schemas)
    messages.append({"role": "tool", "content": f"<functions>\n{shown}\n</functions>"})
    call = turn()
    assert call.name == "tool_call"
    assert call.arguments == {"name": "mcp__skills__skills_load", "arguments": LOAD.arguments}
    assert talk.found == len(SKILL_TOOLS)


def test_tools_that_never_come_end_the_conversation() -> None:
    for host, found in (("bash", None), ("ToolSearch", 0)):
        talk = scripted(LOAD)
        turns = [talk.decide(Seen("", [Tool(host, "")], [""] * number)).name for number in range(10)]
        assert turns[0] == ("ToolSearch" if host == "ToolSearch" else "") and turns[-1] == ""
        assert talk.equipped is None and talk.found == found


def test_the_server_records_and_answers() -> None:
    with serving(lambda seen: CALL if seen.tools else Turn("never")) as model:
        peer = HTTPConnection(urlsplit(model.url).netloc, timeout=DEADLINE)

        def post(path: str, body: object) -> tuple[int, bytes]:
            peer.request("POST", path, json.dumps(body))
            answer = peer.getresponse()
            return answer.status, answer.read()

        assert b"skills_load" in post(PATHS["anthropic"], BODIES["anthropic"])[1]
        # Titles and the like are asked for without tools and take no turn of the conversation.
        assert b"skills_load" not in post(PATHS["chat"], {"messages": []})[1]
        assert post("/v1/messages/count_tokens", {"tools": [1]})[0] == 200
        assert post(PATHS["responses"], {"tools": [7]})[0] == 400
        peer.close()
    assert [each.path for each in model.turns()] == [PATHS["anthropic"]]
    assert len(model.faults) == 1 and "/v1/responses" in model.faults[0]
