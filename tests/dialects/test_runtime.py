"""Agent Skills Runtime: server instructions, tool definitions and tool results."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mcp_skills_server.codes import problem
from mcp_skills_server.dialects import runtime
from mcp_skills_server.dialects.runtime import Loaded, Offer, Overview, overview
from mcp_skills_server.model import Skill, Standing
from tables import each_row
from wire import ROOT

from . import build

UNLIMITED = 100_000
"""A limit in characters that no overview of these tests reaches."""


def overview_of(*names: str) -> Overview:
    return Overview([Offer(name, f"Does {name}.", path=name) for name in names])


def loaded(name: str, body: str = "Do it.", **more: Any) -> Loaded:
    root_dir = f"skill://{name}"
    plain = Loaded(name, f"{root_dir}/SKILL.md", root_dir, f"sha256:{'0' * 64}", {"name": name}, body, (), ())
    return plain._replace(**more)


def definitions(overview: Overview, characters: int = UNLIMITED, *, handles: bool = True) -> dict[str, dict[str, Any]]:
    tools = runtime.definitions(overview, characters, scripts=True, handles=handles)
    return {str(tool["name"]): tool for tool in tools}


def structure_of(result: Any, tool: str) -> Any:
    """Return the structured content of a result, validated by the output schema of its tool."""
    schema = definitions(overview_of("a"))[tool]["outputSchema"]
    Draft202012Validator(schema).validate(result["structuredContent"])
    return result["structuredContent"]


def text_of(result: Any) -> str:
    assert result["content"][0]["type"] == "text"
    return result["content"][0]["text"]


@pytest.mark.requirement("X-16", "RT-25")
@each_row(("name", "tool"), [
    ("skills_load", "skills_load"), ("skills.load", "skills_load"), ("skills-load", "skills_load"),
    ("skills.unload", "skills_unload"), ("skills-list", "skills_list"), ("skills.search", "skills_search"),
    ("skills.read", "skills_read"), ("skills-readresource", "skills_read"), ("skills.read_resource", "skills_read"),
    ("skills.run_script", "skills_run_script"), ("skills-run_script", "skills_run_script"),
    ("skills-run-script", "skills_run_script"), ("skills-runscript", "skills_run_script"),
    *((none, None) for none in ("", " ", "load", "skills", "skills_", "Skills_Load", "skills__load", "skill/load")),
])  # fmt: skip
def test_canonical_accepts_the_tool_names_of_every_version_only(name: str, tool: str | None) -> None:
    assert runtime.canonical(name) == tool


@pytest.mark.requirement("X-2", "ASG-22", "ASG-16")
@each_row(("fields", "offered"), [
    ({}, True), ({"standing": Standing.LENIENT}, True), ({"user_invocable": False}, True),
    ({"disable_model_invocation": True}, False), ({"disable_model_invocation": "true"}, False),
    ({"disable_model_invocation": False}, True), ({"disable_model_invocation": None}, False),
    *(({"disable_model_invocation": value}, False) for value in (0, 1, "yes", "on", "false", "", [])),
    ({"description": ""}, False), ({"description": " \n"}, False), ({"description": ["no", "text"]}, False),
])  # fmt: skip
def test_undescribed_or_withheld_skill_is_not_offered(fields: dict[str, Any], offered: bool) -> None:
    skill = build.skill("a", **fields)
    assert runtime.is_offered(skill) is offered and runtime.is_usable(skill)
    unusable = build.skill("a", **fields | {"standing": Standing.UNUSABLE})
    assert not runtime.is_usable(unusable) and not runtime.is_offered(unusable)


def test_problems_are_the_first_ten_errors_without_advice() -> None:
    skill = build.skill("a", standing=Standing.LENIENT)
    advice, error = problem("body-long", "the body is long"), problem("name-hyphens", "the name is odd")
    messages = runtime.problems(replace(skill, findings=(advice, *[error] * 100)))
    assert messages == (error.text,) * 10
    assert error.text.startswith("the name is odd; ")


@pytest.mark.requirement("MCP-26", "X-17")
@each_row(("before", "after", "is_visible"), [
    ([], [], False), ([], [build.skill("a")], True), ([build.skill("a")], [], True),
    ([build.skill("a")], [build.skill("a", ["more.md"], heading="New", license="MIT")], False),
    ([build.skill("a")], [build.skill("a", description="Does more.")], True),
    ([build.skill("x/a")], [build.skill("x/a", name="b")], True),
    ([build.skill("a")], [build.skill("a", standing=Standing.LENIENT)], False),
    ([build.skill("a")], [build.skill("a", standing=Standing.UNUSABLE)], True),
    ([build.skill("a")], [build.skill("a", disable_model_invocation=True)], True),
    ([], [build.skill("a", standing=Standing.UNUSABLE)], False),
    # Another skill of this name is named by its path from then on.
    ([], [build.skill("x/a", disable_model_invocation=True)], True),
])  # fmt: skip
def test_changed_reports_only_differences_that_models_see(
    before: list[Skill], after: list[Skill], is_visible: bool
) -> None:
    assert runtime.changed(build.snapshot(*before).skills, build.snapshot(*after).skills) is is_visible


@pytest.mark.requirement("RT-5", "RT-4", "ASG-21", "ASG-23")
def test_instructions_open_with_the_rule_to_load_first() -> None:
    text = runtime.instructions(overview_of("a"), UNLIMITED, scripts=False)
    _, rule, block = text.split("\n\n")
    assert f"you MUST call {runtime.LOAD} with its name before you use its instructions, files or scripts" in rule
    assert block == runtime.available(overview_of("a"), UNLIMITED)
    assert runtime.RUN not in text
    assert runtime.RUN in runtime.instructions(overview_of("a"), UNLIMITED, scripts=True)


@pytest.mark.requirement("RT-5")
def test_without_skills_there_are_no_instructions_and_no_tools() -> None:
    for active in (None, ()):
        assert runtime.instructions(Overview(), UNLIMITED, scripts=True, active=active) == ""
    assert runtime.definitions(Overview(), UNLIMITED, scripts=True, handles=True) == []
    # A skill that is not in the overview can still be loaded.
    text = runtime.instructions(Overview(), UNLIMITED, scripts=False, active=[loaded("secret")])
    assert "MUST" in text and '<skill name="secret">' in text
    assert "<available_skills>" not in text


@pytest.mark.requirement("RT-6", "RT-7", "S40-48")
def test_instructions_end_with_active_skills_in_loading_order() -> None:
    active = [loaded("b", "Do b.")._replace(origin="https://b.example"), loaded("a", "Do a.")]
    text = runtime.instructions(overview_of("a", "b"), UNLIMITED, scripts=False, active=active)
    blocks = '<skill name="b" origin="https://b.example">\nDo b.\n</skill>\n<skill name="a">\nDo a.\n</skill>'
    assert text.endswith(f"later one applies.\n\n<active_skills>\n{blocks}\n</active_skills>")


@pytest.mark.requirement("RT-13", "RT-19")
@each_row("handles", [True, False])
@each_row("characters", [0, UNLIMITED])
def test_tool_schemas_are_json_schemas_of_objects(characters: int, handles: bool) -> None:
    for tool in definitions(overview_of("a", "b"), characters, handles=handles).values():
        assert tool["title"] and tool["description"]
        assert tool["inputSchema"]["additionalProperties"] is False
        for kind in ("inputSchema", "outputSchema"):
            if kind in tool:
                Draft202012Validator.check_schema(tool[kind])
                assert tool[kind]["type"] == "object"
                assert {*tool[kind].get("required", ())} <= tool[kind]["properties"].keys()
        for argument in tool["inputSchema"]["properties"].values():
            assert argument["description"]


@pytest.mark.requirement("RT-10", "RT-14", "RT-17", "RT-18", "MCP-27", "MCP-28", "X-16")
def test_tools_take_the_arguments_of_the_specification() -> None:
    schemas = {name: tool["inputSchema"] for name, tool in definitions(overview_of("a"), handles=False).items()}
    assert list(schemas) == [*runtime.argument_schemas()][:6]
    assert schemas.items() <= runtime.argument_schemas().items()
    arguments = {name: ({*schema["properties"]}, schema.get("required", [])) for name, schema in schemas.items()}
    assert arguments == {
        "skills_load": ({"names", "mode"}, ["names"]),
        "skills_unload": ({"names", "all"}, []),
        "skills_run_script": ({"path", "skill", "args", "env", "workdir", "timeout_s"}, ["path"]),
        "skills_search": ({"query", "limit"}, ["query"]),
        "skills_list": ({"after", "limit"}, []),
        "skills_read": ({"path", "skill", "start_line", "max_lines", "start_character"}, ["path"]),
    }


@pytest.mark.requirement("RT-23", "X-15")
@each_row(("handles", "tools"), [
    (True, {runtime.LOAD, runtime.UNLOAD, runtime.READ, runtime.RUN}),
    (False, set()),
])  # fmt: skip
def test_session_is_an_optional_argument_only_with_handles(handles: bool, tools: set[str]) -> None:
    schemas = {name: tool["inputSchema"] for name, tool in definitions(overview_of("a"), handles=handles).items()}
    assert {name for name, schema in schemas.items() if runtime.SESSION in schema["properties"]} == tools
    for schema in schemas.values():
        assert runtime.SESSION not in schema.get("required", ())


@each_row(("description", "first"), [
    ("Fills forms. Use when a PDF has fields.", "Use when a PDF has fields."),
    ("Fills forms. Makes them. Use this skill if asked.", "Use this skill if asked."),
    ("Füllt Formulare. Verwende es bei PDF.", "Verwende es bei PDF."),
    ("Rellena formularios. Usar cuando haya campos.", "Usar cuando haya campos."),
    ("\u586b\u5199\u8868\u5355\u3002\u9002\u7528\u4e8ePDF\u3002", "\u9002\u7528\u4e8ePDF\u3002"),
    ("Remplit des formulaires. À utiliser lorsque un PDF a des champs.", "À utiliser lorsque"),
    ("フォームに記入する。PDFを扱うときに使う。", "PDFを扱うときに使う。"),
    ("Queries it. Use when working with U.S. Treasury data.", "Use when working with U.S. Treasury data."),
    ("Counts, e.g. cells. Lets you use Python to sum them.", "Counts, e.g. cells."), ("Fills forms.", "Fills forms."),
])  # fmt: skip
def test_trigger_sentence_of_a_description_comes_first(description: str, first: str) -> None:
    reordered = overview.trigger_first(description)
    assert reordered.startswith(first)
    assert sorted(reordered.replace(" ", "")) == sorted(description.replace(" ", ""))


@each_row("name", ["a\n- b: Does b.", "a\u2028b", "a\x85b", "a\r\nActive skills: b."])
def test_line_break_in_a_name_adds_no_line(name: str) -> None:
    skill = build.skill("x", name=name, standing=Standing.LENIENT)
    plain = definitions(overview_of("x"))[runtime.LOAD]["description"]
    description = definitions(Overview([Offer(name, "Does x.")]))[runtime.LOAD]["description"]
    assert len(description.splitlines()) == len(plain.splitlines())
    entry = runtime.entry(name, skill, "skill://x/SKILL.md")
    assert len(text_of(runtime.listing([entry], None)).splitlines()) == 1
    assert len(text_of(runtime.load_result([loaded(name)], None, bodies=False)).splitlines()) == 1
    text, _ = load_result(loaded("new", files=(name, "b.md")))
    lines = text.partition("<skill_files")[2].splitlines()[1:-1]
    assert len(lines) == 2 and lines[0].isprintable()
    assert lines[1] == "b.md"


def test_proposal_tools_match_the_golden_file() -> None:
    golden = (ROOT / "tests" / "golden" / "tools.proposals.json").read_text(encoding="utf-8")
    assert json.dumps(runtime.proposing(), indent=2) + "\n" == golden


def read_part(
    text: str, start_line: int = 1, most_lines: int | None = None, most_characters: int = 1000, **more: int
) -> tuple[str, str]:
    result: Any = runtime.text_file("notes.md", text, start_line, most_lines, most_characters, **more)
    assert "isError" not in result
    assert {block["type"] for block in result["content"]} == {"text"}
    part, *notes = [block["text"] for block in result["content"]]
    return part, "".join(notes)


def continuation_of(note: str) -> dict[str, int]:
    hint = note.partition("go on with ")[2]
    return {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", hint)}


@pytest.mark.requirement("RT-17")
@each_row("text", ["", "\n", "one", "one\n", "one\ntwo", "a\r\nb\r\n", "\ufeffone\n\n\n", "x" * 1000])
def test_text_within_the_limit_is_returned_whole(text: str) -> None:
    assert read_part(text) == (text, "")
    count = max(1, text.removesuffix("\n").count("\n") + 1)
    read_part(text, count)
    beyond: Any = runtime.text_file("notes.md", text, count + 1, None, 1000)
    assert beyond["isError"] is True
    assert text_of(beyond) == f"notes.md has {count} lines; give a start_line up to {count}"


THREE_LINES = "one\ntwo\nthree"


@pytest.mark.requirement("RT-17")
@each_row(("arguments", "part", "words", "next_line"), [
    ((THREE_LINES, 1, None, 7), "one\ntwo\n", "lines 1 to 2 of 3 of notes.md", 3),
    *(((THREE_LINES, 1, None, most), "one\n", "lines 1 to 1 of 3", 2) for most in (3, 6)),
    ((f"{THREE_LINES}\nfour\n", 2, 2), "two\nthree\n", "lines 2 to 3 of 4", 4),
    *(((THREE_LINES, 3, most), "three", "lines 3 to 3 of 3", None) for most in (None, 1, 2)),
    (("short\n" + "x" * 50 + "\nlast\n", 2, None, 20), "x" * 20, "line 2 is cut after 20 characters", 2),
])  # fmt: skip
def test_part_of_a_text_has_a_note_of_its_position(
    arguments: tuple[Any, ...], part: str, words: str, next_line: int | None
) -> None:
    text, note = read_part(*arguments)
    assert text == part and words in note
    assert continuation_of(note).get("start_line") == next_line


@pytest.mark.requirement("RT-17")
@given(st.text(st.sampled_from("ab\n\r\u2028ü\x0b"), max_size=60), st.none() | st.integers(1, 5), st.integers(1, 80))
@example("one long line", None, 4)
@example("one\ntwo\n", None, 4)
def test_parts_of_any_text_concatenate_to_it(text: str, most_lines: int | None, most_characters: int) -> None:
    whole = ""
    next_part: dict[str, int] = {}
    for _ in range(len(text) + 2):
        part, note = read_part(text, most_lines=most_lines, most_characters=most_characters, **next_part)
        assert len(part) <= most_characters + 1  # the line end does not count
        whole += part
        next_part = continuation_of(note)
        if not next_part:
            break
    assert whole == text and not next_part


@pytest.mark.requirement("RT-17")
@each_row(("path", "media", "size", "shown"), [
    ("a/icon.png", "image/png", 256, True), ("a/photo.JPG", "image/jpeg", 256, True),
    ("a/ping.mp3", "audio/mpeg", 256, True), ("a/icon.png", "image/png", 257, False),
    ("a/ping.mp3", "audio/mpeg", 257, False), ("a/font.woff2", "font/woff2", 9, False),
    ("a/palette.unheard-of", "application/octet-stream", 9, False), ("a/drawing.tiff", "image/tiff", 9, False),
])  # fmt: skip
def test_binary_file_is_an_image_or_audio_block_or_else_a_link(path: str, media: str, size: int, shown: bool) -> None:
    raw, target = b"\xff\0" * (size // 2) + b"x" * (size % 2), "skill://a/target"
    result: Any = runtime.binary_file(path, target, raw, 256)
    words, block = result["content"]
    assert "isError" not in result
    if shown:
        assert words["text"].startswith(f"{path} ({media}, 256 bytes)")  # for hosts that show text alone
        assert block["type"] == media.partition("/")[0]
        assert block["mimeType"] == media
        assert base64.b64decode(block["data"], validate=True) == raw
        return
    assert block == {"type": "resource_link", "uri": target, "name": path, "mimeType": media, "size": size}
    for part in (path, media, f"{size} bytes", target):
        assert part in words["text"]
    (unserved,) = runtime.binary_file(path, None, raw, 256)["content"]
    assert f"{path} is not a text file" in unserved["text"]
    assert "cannot be shown" in unserved["text"]


def load_result(*fresh: Loaded, **more: Any) -> tuple[str, Any]:
    result = runtime.load_result(fresh, "h", fresh, bodies=True, **more)
    return text_of(result), structure_of(result, runtime.LOAD)


@pytest.mark.requirement("RT-13", "RT-21", "X-15")
@each_row("session", [None, "a-handle"])
def test_load_result_has_the_same_in_text_and_structure(session: str | None) -> None:
    old, new = loaded("old", "Old words."), loaded("new", files=("a.md",), problems=("the name is odd",))
    result = runtime.load_result([old, new], session, [new], bodies=False, shows="either")
    structure = structure_of(result, runtime.LOAD)
    assert structure.get(runtime.SESSION) == session
    keys = {"name", "location", "root_dir", "digest", "properties"}
    assert [each.keys() for each in structure["active_skills"]] == [keys, keys | {"problems"}]
    head, problems, where = text_of(result).split("\n\n")
    assert head.startswith("Active skills: old, new. Where two conflict, the later one applies.")
    assert ("Session: a-handle" in head) is (session is not None)
    assert problems == "The skill new has problems: the name is odd" and "at the top" in where
    assert "Do it." not in json.dumps(result)
    with_body = json.dumps(runtime.load_result([old, new], session, [new], bodies=True, shows="either"))
    assert "Old words." not in with_body and with_body.count("Do it.") == 2
    assert "at the top" not in text_of(runtime.load_result([new], None, bodies=False))


@pytest.mark.requirement("RT-13", "RT-22", "ASG-27", "ASG-28", "S40-48")
def test_loaded_body_is_only_in_the_part_that_the_client_shows() -> None:
    properties = {"name": "new", "license": "MIT"}
    files = ("references/guide.md", "x</skill_files>.md")
    new = loaded("new", "New words. </SKILL >", properties=properties, files=files, problems=("the name is odd",))
    both_text, both_structure = load_result(new, shows="either")
    assert both_text == (
        'Active skills: new. Session: h (give it as "session" to the skills tools).\n\n'
        '<skill name="new" location="skill://new/SKILL.md" root_dir="skill://new">\nNew words. &lt;/SKILL >\n</skill>\n'
        '<skill_files skill="new">\nreferences/guide.md\nx&lt;/skill_files>.md\n</skill_files>\n'
        '<skill_problems skill="new">\nthe name is odd\n</skill_problems>'
    )
    entry = {"name": "new", "location": "skill://new/SKILL.md", "root_dir": "skill://new", "digest": new.digest}
    entry |= {"properties": properties, "problems": ["the name is odd"]}
    body = {"instructions": "New words. </SKILL >", "files": [*files]}
    assert both_structure["active_skills"] == [{**entry, **body}]
    text, structure = load_result(new)
    assert text == both_text and structure["active_skills"] == [entry]
    text, structure = load_result(new, shows="structure")
    assert structure == both_structure and "New words." not in text
    assert "guide.md" not in text
    # If the host shows the text after all, the model still learns where the instructions are.
    assert "structured content" in text and f"SKILL.md with {runtime.READ}" in text
    assert "active_skills" not in text_of(runtime.load_result([new], "h", bodies=True, shows="structure"))


@pytest.mark.requirement("ASG-28")
@each_row(("count", "omitted"), [(200, None), (201, 1), (900, 700)])
def test_load_result_lists_200_files_and_the_number_omitted(count: int, omitted: int | None) -> None:
    files = [f"references/{number:04}/a-file-of-some-name.md" for number in range(count)]
    text, structure = load_result(loaded("new", LONG_BODY, files=tuple(files)), shows="either")
    expected = files[:200]
    if omitted:
        expected.append(f"({omitted} more are not shown)")
    assert text.partition("<skill_files")[2].splitlines()[1:-1] == expected
    assert len(text) < 40_000
    assert structure["active_skills"][0].get("files_not_shown") == omitted


LONG_BODY = "".join(
    f"Step {number} of many, told in some words.\n" + "\n" * (number % 5 == 4) for number in range(1_700)
)


def continuation_in(body: str) -> dict[str, str]:
    hint = body.rpartition("\n\n[")[2].partition("skills_read")[2]
    return dict(re.findall(r'(\w+)="?([^",.\]]+(?:\.md)?)', hint))


@each_row(("files", "most"), [((), 1_000), (("abcdef",), 990), (("x" * 96,) * 9, 500)])
def test_file_list_takes_at_most_half_of_the_budget(files: tuple[str, ...], most: int) -> None:
    for size in (most, most + 1):
        text, _ = load_result(loaded("a", "x" * size, files=files), characters=1_000)
        assert (f"[The first {most} of {size} characters." in text) is (size > most)


@each_row(("body", "position"), [
    ("# A\n" + "x" * 50_000, "start_line=5."),
    ("x" * 50_000, "start_line=4, start_character=20001."),
])  # fmt: skip
def test_hint_names_a_character_if_a_line_is_split(body: str, position: str) -> None:
    text, _ = load_result(loaded("a", body, line=4), characters=20_000)
    assert f'path="SKILL.md", {position}' in text


def test_long_bodies_share_the_limit_and_are_truncated_at_a_paragraph() -> None:
    text, structure = load_result(
        loaded("short"), *(loaded(f"long-{n}", LONG_BODY, line=5) for n in range(4)), shows="either"
    )
    assert len(text) < 40_000 and len(json.dumps(structure)) < 42_000
    short, *bodies = [each["instructions"] for each in structure["active_skills"]]
    assert short == "Do it."
    for number, body in enumerate(bodies):
        assert 9_000 < len(body) < 9_900
        assert body in text
        arguments = continuation_in(body)
        assert (arguments["skill"], arguments["path"]) == (f"long-{number}", "SKILL.md")
        rest = LONG_BODY.split("\n")[int(arguments["start_line"]) - 5 :]
        assert "\n\n".join([body.rpartition("\n\n[")[0], "\n".join(rest)]) == LONG_BODY


def test_repeated_description_is_listed_as_a_reference() -> None:
    long = "Draws maps of rivers, lakes and roads."
    short = long[:26]  # shorter than a reference
    skills = [("a", long), ("b", "x"), ("c", long), ("d", "x"), ("e", short), ("f", short)]
    entries = [runtime.entry(name, build.skill(name, description=text), "skill://x") for name, text in skills]
    result: Any = runtime.listing(entries, None)
    descriptions = [each["description"] for each in result["structuredContent"]["skills"]]
    assert descriptions == [long, "x", "The same description as a.", "x", short, short]
    assert "- c: The same description as a." in text_of(result)


def test_long_listing_truncates_descriptions_to_a_common_limit() -> None:
    texts = {f"s{n}": f"{n:03}" + "words " * 170 for n in range(200)} | {"x": "Does x."}
    entries = [runtime.entry(name, build.skill(name, description=text), "skill://x") for name, text in texts.items()]
    result: Any = runtime.listing(entries, None)
    descriptions = [each["description"] for each in result["structuredContent"]["skills"]]
    assert sum(map(len, descriptions)) <= 38_000
    assert len({each[3:] for each in descriptions[:-1]}) == 1
    assert descriptions[0].endswith("words...") and descriptions[-1] == "Does x."
    assert descriptions[0] in text_of(result)
    few: Any = runtime.listing(entries[:30], None)
    assert few["structuredContent"]["skills"] == entries[:30]


@each_row(("added", "removed", "words"), [
    (2, 1, ": 2 added and 1 removed"), (1, 0, ": 1 added"), (0, 1_200, ": 1,200 removed"),
])  # fmt: skip
def test_change_notice_is_one_line_with_both_counts(added: int, removed: int, words: str) -> None:
    notice = runtime.change_notice(added, removed)
    assert f"{words}." in notice and runtime.LIST in notice
    assert "\n" not in notice
    assert f"{words} or more." in runtime.change_notice(added, removed, uncounted=True)


def test_note_is_the_last_line_of_the_text_and_in_the_structure() -> None:
    listing = runtime.listing([], None, note="News.")
    assert text_of(listing) == "No skill matches.\nNews."
    assert structure_of(listing, runtime.SEARCH)["note"] == "News."
    receipt = runtime.load_result([], None, bodies=True, note="News.")
    assert text_of(receipt) == "Active skills: none.\n\nNews."
    assert structure_of(receipt, runtime.LOAD)["note"] == "News."


def test_dependency_notice_names_at_most_20_unknown_skills_truncated() -> None:
    notice = runtime.depends_on([], ["x" * 101, *"y" * 20])
    assert notice == f"They name unknown skills: {', '.join(['x' * 100, *'y' * 19])}."
    assert runtime.depends_on([], []) is None


def test_proposal_list_has_the_message_of_the_reviewer() -> None:
    proposal = {"name": "a", "principal": "p", "reason": "r", "state": "pending"}
    rejected = {**proposal, "id": "2", "state": "rejected", "message": "No."}
    assert text_of(runtime.proposal_list([{**proposal, "id": "1"}, rejected])) == "1 a: pending\n2 a: rejected, No."
    assert text_of(runtime.proposal_list([])) == "You have proposed nothing here."


@pytest.mark.requirement("X-2")
def test_listing_has_the_same_in_text_and_structure() -> None:
    odd = replace(
        build.skill("odd", standing=Standing.LENIENT),
        findings=(problem("name-hyphens", "the name is odd"),),
        origin="https://example.com",
    )
    plain = runtime.entry("a", build.skill("a"), "skill://a/SKILL.md", title="A", version="1", tags=["x"])
    result = runtime.listing([plain, runtime.entry("odd", odd, "skill://odd/SKILL.md")], "odd")
    structure = structure_of(result, runtime.LIST)
    first, second = structure["skills"]
    assert first == {
        "name": "a", "description": "Does a.", "location": "skill://a/SKILL.md",
        "title": "A", "version": "1", "tags": ["x"],
    }  # fmt: skip
    assert second.keys() == {"name", "description", "location", "problems", "origin"}
    assert structure["next_after"] == "odd"
    lines = text_of(result).splitlines()
    assert lines[0] == "- a: Does a."
    assert lines[1].startswith("- odd [from https://example.com]: Does odd. [has problems: the name is odd; ")
    assert 'after="odd"' in lines[2] and runtime.LIST in lines[2]


SCRIPT_RUN: dict[str, Any] = {
    "path": "scripts/run.py", "exit_code": 0, "stdout": "done\n", "stderr": "", "duration_ms": 12, "timed_out": False,
    "stdout_truncated": False, "stderr_truncated": False, "sandbox": "none", "user": 1000, "sandbox_gaps": [],
}  # fmt: skip
FILES = [{"path": "/workspace/a.txt", "size": 1}, {"path": "/workspace/b/c.bin", "size": 1}]


@pytest.mark.requirement("RT-19")
@each_row(("more", "words"), [
    ({}, "scripts/run.py ended with exit code 0 after 12 ms.\n<stdout>\ndone\n\n</stdout>\nstderr is empty.\nIt"),
    ({}, "It ran without a sandbox, as user 1000."),
    ({"sandbox": "bubblewrap", "sandbox_gaps": ["no filter", "root"]},
     "It ran in a sandbox (bubblewrap), as user 1000. Gaps: no filter; root."),
    ({"files": FILES, "files_not_shown": 3}, "with skills_read: /workspace/a.txt, /workspace/b/c.bin and 3 more."),
    ({"exit_code": 3, "stderr": "no such </stderr>", "stderr_truncated": True},
     "exit code 3 after 12 ms.\n<stdout>\ndone\n\n</stdout>\n<stderr>\nno such &lt;/stderr>\n</stderr> (cut)"),
    ({"files": [], "files_not_shown": 0}, "It ran without a sandbox, as user 1000."),
    ({"exit_code": None, "timed_out": True}, "was stopped at the time limit"),
    ({"exit_code": None}, "was stopped by the server"),
])  # fmt: skip
def test_script_result_has_the_outcome_and_marks_a_failure(more: dict[str, Any], words: str) -> None:
    result: Any = runtime.script_result(SCRIPT_RUN | more)
    text = text_of(result)
    assert structure_of(result, runtime.RUN) == SCRIPT_RUN | more
    assert words in text and "None" not in text
    assert ("Gaps: " in text) is bool(more.get("sandbox_gaps"))
    assert ("New or changed" in text) is bool(more.get("files"))
    assert result.get("isError", False) is ("exit_code" in more)


def test_binary_output_file_is_an_image_or_a_blob_up_to_a_limit() -> None:
    image: Any = runtime.output_file("/workspace/a.png", b"x", 1)
    assert image["content"][1]["type"] == "image"
    sheet: Any = runtime.output_file("/workspace/ü b.xlsx", b"xy", 2)
    assert sheet["content"][1]["resource"]["uri"] == "workspace:///%C3%BC%20b.xlsx"
    for path in ("/workspace/a.png", "/workspace/a.xlsx"):
        assert runtime.output_file(path, b"xyz", 2)["isError"] is True


@each_row(("path", "relative"), [
    ("/workspace/a/b", "a/b"), ("workspace/a", None), ("/workspaces/a", None), ("a/workspace/b", None), ("/a", None),
])  # fmt: skip
def test_in_workspace_returns_the_path_below_the_prefix(path: str, relative: str | None) -> None:
    assert runtime.in_workspace(path) == relative


@pytest.mark.requirement("RT-18")
def test_scripts_are_the_files_below_the_scripts_directory() -> None:
    skill = build.skill("a", ["scripts/run.py", "scripts/lib/x.sh", "scripts.py", "x/scripts/y.py", "Scripts/z.py"])
    assert list(runtime.scripts_of(skill)) == ["scripts/lib/x.sh", "scripts/run.py"]
