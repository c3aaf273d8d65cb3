"""`make hosts` (tools/hosts): evaluation of a run, and the scripted model with its four APIs."""

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

from commands.calls import json_of
from tables import each_row
from wire import DEADLINE

TOOLS = [Tool(name, "Loads.") for name in NEEDED]


def test_lines_of_a_body_are_found_in_text_and_json() -> None:
    body = setting.long_body(2000)
    numbers = facts.lines_in(body)
    assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) > 20
    assert facts.lines_in(json.dumps({"text": body, "again": body})) == numbers
    assert facts.ranges([*numbers[:5], *numbers[9:11], 99]) == "1-5, 10-11, 99"


@each_row(("result", "expected"), [
    ('{"session":"x","active_skills":[]}', "structuredContent"),
    ('Wall time: 1\nOutput:\n{"active_skills":[{"instructions":"<skill name=\\"x\\">"}]}', "structuredContent"),
    ("Active skills: a.\n\n<skill name='a'>", "text"), ("<untrusted>\n<skill name='a'>", "text"),
    ('<skill name="a">\n{"active_skills": []}', "text and structuredContent"),
    ('{"content":[{"text":"Active skills: a."}],"x":{"active_skills":[]}}', "text and structuredContent"),
    ("Permission denied", "neither text nor structure as sent"),
])  # fmt: skip
def test_form_of_a_tool_result_is_recognized(result: str, expected: str) -> None:
    assert facts.form(result) == expected


def test_built_skills_are_reproducible_and_valid(tmp_path: Path) -> None:
    names = setting.build(tmp_path / "a")
    assert setting.build(tmp_path / "b") == names
    assert len(set(names)) == setting.MANY
    first, second = (
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*.md")}
        for root in (tmp_path / "a", tmp_path / "b")
    )
    assert first == second
    setting.write(tmp_path / "a", setting.ADDED, "# Count\n")
    report = json_of("validate", tmp_path / "a")
    assert (report["ok"], report["skills"]) == (True, setting.MANY + 1)
    assert [each["skill"] for each in report["notes"] if each["code"] == "body-long"] == ["body-of-60000"]
    assert min([*names, setting.ADDED]) == setting.ADDED


def test_trace_reads_messages_while_they_are_written(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "trace")
    trace.write_program(["server"])
    tools = [{"name": "skills_load", "description": "LOADS"}]
    lines = [
        {"id": 1, "result": {"instructions": "FIRST"}},
        {"id": 2, "result": {"tools": tools}},
        {"method": "notifications/tools/list_changed"},
        {"id": 3, "result": {"prompts": [{"name": "a"}, {"name": "b"}]}},
    ]
    incomplete = '{"id": 4, "re'
    (trace.folder / "out.1").write_text("".join(json.dumps(line) + "\n" for line in lines) + incomplete)
    (trace.folder / "in.1").write_text('{"method": "tools/list"}\n{"method": "tools/list"}\n')
    assert trace.instructions() == ["FIRST"] and trace.tools() == [{"skills_load": "LOADS"}]
    assert (trace.notices(), trace.prompts(), trace.count("tools/list")) == (1, 2, 2)
    assert trace.listing() == 1
    (trace.folder / "out.2").write_text("{}\n")
    assert trace.listing() == 1
    (trace.folder / "out.2").write_text(json.dumps(lines[1], separators=(",", ":")))
    assert trace.listing() == 2
    assert trace.wait(lambda: trace.notices() == 1, 5) and not trace.wait(lambda: False, 0)


def make_run(tmp_path: Path, answers: dict[str, str]) -> facts.Run:
    """Make a run in which the server offered all tools, and the host returned these answers."""
    trace = Trace(tmp_path / "trace")
    if not trace.folder.exists():
        trace.write_program(["server"])
    tools = [{"name": each.name, "description": "Loads."} for each in TOOLS]
    (trace.folder / "out.1").write_text(json.dumps({"result": {"instructions": "Rule.", "tools": tools}}) + "\n")
    (trace.folder / "in.1").write_text('{"method": "initialize", "params": {"protocolVersion": "2025-06-18"}}\n')
    request = Seen("Rule.", TOOLS, [])
    script = Script(deque(), lambda: True, first=request, equipped=request, answers=answers)
    return facts.Run(["a"], script, trace, setting.Ended(0, "", ""), [])


COMPLETE_ANSWERS = {
    "search": "audit-invoice",
    "load": '{"active_skills": ["# audit-invoice"]}',
    "read": setting.MARK,
    "propose": "Proposal 1 for count-twice waits for a person to decide.",
    **{f"load {length}": setting.long_body(length) for length in setting.LONG},
    "added": setting.ADDED,
}


def judge(tmp_path: Path, answers: dict[str, str]) -> facts.Result:
    result = facts.Result("1")
    facts.judge_calls(result, make_run(tmp_path, answers))
    return result


def test_complete_run_has_no_failure_even_with_a_cut_body(tmp_path: Path) -> None:
    result = judge(tmp_path, COMPLETE_ANSWERS)
    assert result.failures == []
    assert result.facts["a body of 60,000 characters"] == "whole"
    cut_body = setting.long_body(setting.LONG[1])[:30_000]
    result = judge(tmp_path, COMPLETE_ANSWERS | {f"load {setting.LONG[1]}": cut_body})
    assert result.failures == []
    assert result.facts["a body of 60,000 characters"].startswith("lines 1-")


@each_row("label", ["search", "load", "read", "propose", f"load {setting.LONG[0]}"])
def test_missing_or_refused_answer_is_a_failure(tmp_path: Path, label: str) -> None:
    missing = {key: value for key, value in COMPLETE_ANSWERS.items() if key != label}
    for answers in (missing, missing | {label: "Permission denied"}):
        assert len(judge(tmp_path, answers).failures) == 1


def test_server_without_answers_or_requests_is_reported(tmp_path: Path) -> None:
    run = make_run(tmp_path, {})
    (run.trace.folder / "out.1").unlink()
    assert "not accepted: the server answered nothing;" in run.lost()
    (run.trace.folder / "err.1").write_text("no such folder\n")
    (run.trace.folder / "in.1").unlink()
    assert "the server was not asked (it said 'no such folder'); the host ended with 0" in run.lost()


def test_missing_host_is_reported_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "CACHE", tmp_path)
    result = command.try_to_measure("codex")
    assert result.facts == {} and "without --offline" in result.failures[0]
    (tmp_path / "codex").mkdir()
    (tmp_path / "codex" / "failed.txt").write_text("npm error 404")
    assert command.try_to_measure("codex").failures == ["could not be installed: npm error 404"]
    program = tmp_path / "codex" / "node_modules" / ".bin" / "codex"
    program.parent.mkdir(parents=True)
    program.touch()  # not executable
    assert "could not be started" in command.try_to_measure("codex").failures[0]


def test_program_is_killed_after_its_time_limit(tmp_path: Path) -> None:
    waits = "import signal; print('here', flush=True); signal.pause()"
    ended = setting.run([sys.executable, "-c", waits], {}, tmp_path, limit=2)
    assert ended.code is None and "not ended" in ended.reason()
    ended = setting.run([sys.executable, "-c", "import sys; sys.exit('no key')"], {}, tmp_path)
    assert ended.code == 1 and ended.reason() == "ended with 1: no key"


@each_row(("load", "propose", "expected"), [
    ("No.\nNever.", None, "refused: No."),
    (setting.long_body(setting.LONG[0]), "It waits for a person.", "runs all the same"),
    (setting.long_body(setting.LONG[0]), '{"name": "count-twice", "state":"pending"}', "runs all the same"),
    (setting.long_body(setting.LONG[0]), "Ask. " * 50, "loads all the same; skills_propose is refused: Ask."),
])  # fmt: skip
def test_refusal_names_the_first_refused_call(tmp_path: Path, load: str, propose: str | None, expected: str) -> None:
    answers = {f"load {setting.LONG[0]}": load}
    if propose is not None:
        answers["propose"] = propose
    assert facts.refusal(make_run(tmp_path, answers)).startswith(expected)


def test_process_outside_the_group_of_a_run_is_killed(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("needs /proc")
    child = "subprocess.Popen(['sleep', '60'], start_new_session=True, stdout=-3, stderr=-3)"
    words = [sys.executable, "-c", f"import subprocess; print({child}.pid)"]
    ended = setting.run(words, {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}, tmp_path)
    command_line = Path(f"/proc/{int(ended.out)}/cmdline")
    deadline = time.monotonic() + DEADLINE
    # The command line of a zombie is empty.
    while command_line.exists() and command_line.read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_new_table_replaces_the_old_one() -> None:
    columns = {"A 1": {"era": "old | new", "tools": "whole"}, "B": {"failed": "no npm"}}
    table = command.markdown(columns)
    page = f"before\n{command.BEGIN}\nold\n{command.END}\nafter\n"
    new = between_markers(page, table, command.BEGIN, command.END)
    assert new.startswith("before\n") and new.endswith("\nafter\n") and "\nold\n" not in new
    assert r"| era | old \| new |  |" in new and "| failed |  | no npm |" in new
    assert between_markers(new, table, command.BEGIN, command.END) == new
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


def text_part(words: str, kind: str = "text") -> dict[str, str]:
    return {"type": kind, "text": words}


LOAD_TOOL = {"name": "mcp__skills__skills_load", "description": "LOADS"}
# The same conversation in each API: instructions, a question, a call, its result, and one tool.
REQUESTS: dict[Api, dict[str, Any]] = {
    "anthropic": {
        "stream": True, "system": [text_part("INSTRUCTIONS")], "tools": [{**LOAD_TOOL, "input_schema": {}}],
        "messages": [
            {"role": "user", "content": [text_part("QUESTION")]},
            {"role": "assistant", "content": [text_part("MINE"), {"type": "tool_use", "id": "1"}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": [text_part("RESULT")]}, text_part("REMINDER"),
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
            {"type": "message", "role": "user", "content": [text_part("QUESTION", "input_text")]},
            {"type": "message", "role": "assistant", "content": [text_part("MINE", "output_text")]},
            {"type": "function_call", "call_id": "1", "name": "skills_load", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "RESULT"},
        ],
    },
    "chat": {
        "stream": True, "tools": [{"type": "function", "function": LOAD_TOOL}],
        "messages": [
            {"role": "system", "content": "INSTRUCTIONS"},
            {"role": "user", "content": [text_part("QUESTION"), text_part("REMINDER")]},
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


@each_row("api", REQUESTS)
def test_request_is_parsed_in_each_api(api: Api) -> None:
    request = read_request(api, REQUESTS[api])
    assert all(word in request.text for word in ("INSTRUCTIONS", "QUESTION", "REMINDER"))
    # The model's own messages and results are not part of the text.
    assert "MINE" not in request.text and "RESULT" not in request.text
    assert list(request.results) == ["RESULT"]
    group = "mcp__skills" if api == "responses" else None
    assert list(request.tools) == [Tool("mcp__skills__skills_load", "LOADS", group)]


def test_deferred_tool_is_available_after_a_search_returned_it() -> None:
    tool = {**LOAD_TOOL, "defer_loading": True}
    reference = {"type": "tool_reference", "tool_name": "mcp__skills__skills_load"}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [reference]}]}
    assert not read_request("anthropic", {"tools": [tool], "messages": []}).tools
    request = read_request("anthropic", {"tools": [tool], "messages": [result]})
    assert [each.name for each in request.tools] == ["mcp__skills__skills_load"]
    assert list(request.results) == ["mcp__skills__skills_load"]


SKILL_TOOLS = [Tool(f"mcp__skills__{name}", name) for name in NEEDED]
LOAD = Step("load", "skills_load", {"names": ["a"]})
READ = Step("read", "skills_read", {"path": "f"})


def make_script(*steps: Step) -> Script:
    return Script(deque(steps), lambda: True)


def test_script_takes_steps_in_order_and_keeps_answers() -> None:
    script = make_script(LOAD, READ)
    assert script.decide(Seen("", SKILL_TOOLS, [])) == Turn(name="mcp__skills__skills_load", arguments={"names": ["a"]})
    read = script.decide(Seen("", SKILL_TOOLS, ['{"session": "s-1_x"}']))
    # Like a model, the script passes the session that the first answer named.
    assert read == Turn(name="mcp__skills__skills_read", arguments={"path": "f", "session": "s-1_x"})
    assert script.decide(Seen("", SKILL_TOOLS, ['{"session": "s-1_x"}', "bytes"])).name == ""
    assert script.answers == {"load": '{"session": "s-1_x"}', "read": "bytes"}


@each_row("search", ["ToolSearch", "tool_search"])
def test_deferred_tools_are_searched_by_topic_before_names(search: str) -> None:
    script = make_script(LOAD)
    host = [Tool(search, "")]
    turn = script.decide(Seen("", host, []))
    assert (turn.name, turn.arguments["query"]) == (search, FREE)
    assert turn.kind == ("search" if search == "tool_search" else "function")
    # No result repeats the search by topic; a partial one leads to a search by names.
    assert script.decide(Seen("", host, [""])).arguments["query"] == FREE
    exact = script.decide(Seen("line", [*host, SKILL_TOOLS[1]], ["", "one"]))
    assert all(name in exact.arguments["query"] for name in NEEDED) and exact.arguments["query"] != FREE
    call = script.decide(Seen("whole", [*host, *SKILL_TOOLS], ["", "one", "three"]))
    assert call.name == "mcp__skills__skills_load"
    assert script.found == 1
    assert script.deferred is not None and script.deferred.text == "line"
    assert script.equipped is not None and script.equipped.text == "whole"


def test_search_is_repeated_until_it_shows_the_tools_of_both_servers() -> None:
    script = make_script(LOAD)
    script.servers = 2
    search = Tool("tool_search", "")
    more = [Tool(f"mcp__more__{name}", "") for name in NEEDED]
    for number, tools in enumerate(([], SKILL_TOOLS[:1], SKILL_TOOLS)):
        turn = script.decide(Seen("", [search, *tools], [""] * number))
        assert (turn.name, turn.arguments["query"]) == ("tool_search", FREE)
    call = script.decide(Seen("", [search, *SKILL_TOOLS, *more], [""] * 3))
    assert call.name == "mcp__more__skills_load"
    assert list(script.offered) == [search, *SKILL_TOOLS, *more]
    result = facts.Result("1")
    run = facts.Run([], script, Trace(Path()), setting.Ended(0, "", ""), [])
    facts.judge_search(result, run)
    assert result.facts["two servers"] == "a search brings skills_search of 2, skills_load of 2, skills_read of 2"
    script.offered = [*SKILL_TOOLS, *(tool for tool in more if "load" not in tool.name)]
    facts.judge_search(result, run)
    assert result.failures == ["two servers: a search for tools brings skills_load of 1 alone"]


def test_tools_behind_a_bridge_are_called_through_it() -> None:
    script = make_script(LOAD)
    messages: list[dict[str, Any]] = []

    def turn() -> Turn:
        functions = [{"type": "function", "function": {"name": name}} for name in ("tool_search", "tool_call")]
        return script.decide(read_request("chat", {"tools": functions, "messages": messages}))

    search = turn()
    assert (search.name, search.kind) == ("tool_search", "function") and "max_results" in search.arguments
    schemas = [json.dumps({"name": tool.name, "description": "LOADS"}) for tool in SKILL_TOOLS]
    shown = "\n".join(f"<function>{schema}</function>" for schema in schemas)
    messages.append({"role": "tool", "content": f"<functions>\n{shown}\n</functions>"})
    call = turn()
    assert call.name == "tool_call"
    assert call.arguments == {"name": "mcp__skills__skills_load", "arguments": LOAD.arguments}
    assert script.found == len(SKILL_TOOLS)


def test_conversation_ends_if_tools_never_appear() -> None:
    for tool, first, found in (("bash", "", None), ("ToolSearch", "ToolSearch", 0)):
        script = make_script(LOAD)
        calls = [script.decide(Seen("", [Tool(tool, "")], [""] * number)).name for number in range(10)]
        assert (calls[0], calls[-1]) == (first, "")
        assert script.equipped is None and script.found == found


def test_model_server_answers_and_records_requests() -> None:
    with serving(lambda request: CALL if request.tools else Turn("never")) as model:
        peer = HTTPConnection(urlsplit(model.url).netloc, timeout=DEADLINE)

        def post(path: str, body: object) -> tuple[int, bytes]:
            peer.request("POST", path, json.dumps(body))
            answer = peer.getresponse()
            return answer.status, answer.read()

        assert b"skills_load" in post(PATHS["anthropic"], REQUESTS["anthropic"])[1]
        # Requests without tools, such as for a title, take no turn of the conversation.
        assert b"skills_load" not in post(PATHS["chat"], {"messages": []})[1]
        assert post("/v1/messages/count_tokens", {"tools": [1]})[0] == 200
        assert post(PATHS["responses"], {"tools": [7]})[0] == 400
        peer.close()
    assert len(model.faults) == 1 and "/v1/responses" in model.faults[0]
