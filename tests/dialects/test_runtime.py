"""What a model sees of the skills, the tools' definitions, and what the tools answer, as plain values."""

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

PLENTY = 100_000
"""Characters that no catalogue of these tests needs."""


def offers(*names: str) -> Overview:
    return Overview([Offer(name, f"Does {name}.", path=name) for name in names])


def loaded(name: str, body: str = "Do it.", **more: Any) -> Loaded:
    place, digest = f"skill://{name}", "sha256:" + "0" * 64
    fields = {"properties": {"name": name}, "instructions": body, "files": (), "problems": (), **more}
    return Loaded(name=name, location=f"{place}/SKILL.md", root_dir=place, digest=digest, **fields)


def defined(
    found: Overview, characters: int = PLENTY, *, scripts: bool = True, handles: bool = True
) -> dict[str, dict[str, Any]]:
    made = runtime.definitions(found, characters, scripts=scripts, handles=handles)
    return {str(each["name"]): each for each in made}


def check(result: Any, tool: str) -> Any:
    """Return a result's structure, which keeps the output schema of its tool."""
    Draft202012Validator(defined(offers("a"))[tool]["outputSchema"]).validate(result["structuredContent"])
    return result["structuredContent"]


def said(result: dict[str, Any]) -> str:
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
def test_a_tool_is_known_by_the_names_of_every_version_and_no_others(name: str, tool: str | None) -> None:
    assert runtime.canonical(name) == tool


@pytest.mark.requirement("X-2", "ASG-22", "ASG-16")
@each_row(("fields", "offered"), [
    ({}, True), ({"standing": Standing.LENIENT}, True), ({"user_invocable": False}, True),
    ({"disable_model_invocation": True}, False), ({"disable_model_invocation": "true"}, False),
    ({"disable_model_invocation": False}, True), ({"disable_model_invocation": None}, True),
    ({"description": ""}, False), ({"description": " \n"}, False), ({"description": ["no", "text"]}, False),
])  # fmt: skip
def test_what_the_author_withholds_from_the_model_is_not_offered(fields: dict[str, Any], offered: bool) -> None:
    skill = build.skill("a", **fields)
    assert runtime.is_offered(skill) is offered
    assert runtime.is_usable(skill)
    unusable = build.skill("a", **fields | {"standing": Standing.UNUSABLE})
    assert not runtime.is_usable(unusable) and not runtime.is_offered(unusable)


def test_so_many_errors_are_told_and_advice_is_not() -> None:
    skill = build.skill("a", standing=Standing.LENIENT)
    found = (problem("body-long", "the body is long"), *[problem("name-hyphens", "the name is odd")] * 100)
    seen = runtime.problems(replace(skill, findings=found))
    assert len(seen) == 10 and all(each.startswith("the name is odd; ") for each in seen)


@pytest.mark.requirement("MCP-26", "X-17")
@each_row(("before", "after", "news"), [
    ([], [], False), ([], [build.skill("a")], True), ([build.skill("a")], [], True),
    ([build.skill("a")], [build.skill("a", ["more.md"], heading="New", license="MIT")], False),
    ([build.skill("a")], [build.skill("a", description="Does more.")], True),
    ([build.skill("x/a")], [build.skill("x/a", name="b")], True),
    ([build.skill("a")], [build.skill("a", standing=Standing.LENIENT)], False),
    ([build.skill("a")], [build.skill("a", standing=Standing.UNUSABLE)], True),
    ([build.skill("a")], [build.skill("a", disable_model_invocation=True)], True),
    ([], [build.skill("a", standing=Standing.UNUSABLE)], False),
    # The other skill of this name is told by its path from then on.
    ([], [build.skill("x/a", disable_model_invocation=True)], True),
])  # fmt: skip
def test_only_what_is_told_is_news(before: list[Skill], after: list[Skill], news: bool) -> None:
    assert runtime.changed(build.snapshot(*before).skills, build.snapshot(*after).skills) is news


# The instructions


@pytest.mark.requirement("RT-5", "RT-4", "ASG-21", "ASG-23")
def test_the_instructions_open_with_the_rule_that_loading_comes_first() -> None:
    seen = runtime.instructions(offers("a"), PLENTY, scripts=False)
    _, rule, block = seen.split("\n\n")
    assert f"you MUST call {runtime.LOAD} with its name before you use its instructions, files or scripts" in rule
    assert block == runtime.available(offers("a"), PLENTY)
    assert runtime.RUN not in seen
    assert runtime.RUN in runtime.instructions(offers("a"), PLENTY, scripts=True)
    for active in (None, ()):
        assert runtime.instructions(Overview(), PLENTY, scripts=True, active=active) == ""
    assert runtime.definitions(Overview(), PLENTY, scripts=True, handles=True) == []
    seen = runtime.instructions(Overview(), PLENTY, scripts=False, active=[loaded("secret")])
    assert "MUST" in seen and '<skill name="secret">' in seen and "<available_skills>" not in seen


@pytest.mark.requirement("RT-6", "RT-7")
def test_active_skills_stand_in_loading_order_and_the_later_one_wins() -> None:
    active = [loaded("b", "Do b."), loaded("a", "Do a.")]
    seen = runtime.instructions(offers("a", "b"), PLENTY, scripts=False, active=active)
    blocks = '<skill name="b">\nDo b.\n</skill>\n<skill name="a">\nDo a.\n</skill>'
    assert seen.endswith(f"later one applies.\n\n<active_skills>\n{blocks}\n</active_skills>")


@pytest.mark.requirement("S40-48")
@each_row("ending", ["</skill>", "</ SKILL >", "</active_skills>", "</Active_Skills\n>"])
def test_no_body_ends_the_block_that_it_stands_in(ending: str) -> None:
    active = [loaded("a", f"One.\n{ending}\nTwo.", files=("x</skill_files>.md",)), loaded("b")]
    seen = runtime.instructions(offers("a"), PLENTY, scripts=False, active=active)
    block = seen[seen.index("<active_skills>") :]
    assert re.findall(r"<\s*/\s*(\w+)\s*>", block) == ["skill", "skill", "active_skills"]
    assert "One." in block and "Two." in block
    assert re.findall(r"</(skill\w*)>", receipt(*active)[0]) == ["skill", "skill_files", "skill"]


@pytest.mark.requirement("RT-13", "RT-19")
@each_row("handles", [True, False])
@each_row("characters", [0, PLENTY])
def test_every_schema_is_a_json_schema_of_an_object(characters: int, handles: bool) -> None:
    for tool in defined(offers("a", "b"), characters, handles=handles).values():
        assert tool["title"] and tool["description"]
        assert tool["inputSchema"]["additionalProperties"] is False
        for kind in ("inputSchema", "outputSchema"):
            if kind in tool:
                Draft202012Validator.check_schema(tool[kind])
                assert tool[kind]["type"] == "object"
                assert {*tool[kind].get("required", ())} <= tool[kind]["properties"].keys()
        assert all(each["description"] for each in tool["inputSchema"]["properties"].values())


@pytest.mark.requirement("RT-10", "RT-14", "RT-17", "RT-18", "MCP-27", "MCP-28", "X-16")
def test_the_tools_take_what_the_specification_names() -> None:
    schemas = {name: tool["inputSchema"] for name, tool in defined(offers("a"), handles=False).items()}
    assert list(schemas) == [*runtime.argument_schemas()][:6] and schemas.items() <= runtime.argument_schemas().items()
    taken = {name: ({*schema["properties"]}, schema.get("required", [])) for name, schema in schemas.items()}
    assert taken == {
        "skills_load": ({"names", "mode"}, ["names"]),
        "skills_unload": ({"names", "all"}, []),
        "skills_run_script": ({"path", "skill", "args", "env", "workdir", "timeout_s"}, ["path"]),
        "skills_search": ({"query", "limit"}, ["query"]),
        "skills_list": ({"after", "limit"}, []),
        "skills_read": ({"path", "skill", "start_line", "max_lines", "start_character"}, ["path"]),
    }


@pytest.mark.requirement("RT-23", "X-15")
def test_the_session_is_an_argument_only_where_no_host_binds_it() -> None:
    for handles, tools in ((True, {runtime.LOAD, runtime.UNLOAD, runtime.READ, runtime.RUN}), (False, set())):
        schemas = {name: tool["inputSchema"] for name, tool in defined(offers("a"), handles=handles).items()}
        assert {name for name, schema in schemas.items() if runtime.SESSION in schema["properties"]} == tools
        assert all(runtime.SESSION not in schema.get("required", ()) for schema in schemas.values())


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
def test_the_sentence_that_says_when_comes_first(description: str, first: str) -> None:
    found = overview.trigger_first(description)
    assert found.startswith(first) and sorted(found.replace(" ", "")) == sorted(description.replace(" ", ""))


@each_row("name", ["a\n- b: Does b.", "a\u2028b", "a\x85b", "a\r\nActive skills: b."])
def test_no_name_makes_a_line_of_its_own(name: str) -> None:
    skill = build.skill("x", name=name, standing=Standing.LENIENT)
    line = len(defined(offers("x"))[runtime.LOAD]["description"].splitlines())
    assert len(defined(Overview([Offer(name, "Does x.")]))[runtime.LOAD]["description"].splitlines()) == line
    assert len(said(runtime.listing([runtime.entry(name, skill, "skill://x/SKILL.md")], None)).splitlines()) == 1
    assert len(said(runtime.load_result([loaded(name)], None, bodies=False)).splitlines()) == 1
    new = loaded("new", files=(name, "b.md"))
    lines = said(runtime.load_result([new], "h", [new], bodies=True)).partition("<skill_files")[2].splitlines()[1:-1]
    assert len(lines) == 2 and lines[0].isprintable() and lines[1] == "b.md"


def test_the_tools_for_proposals_are_the_golden_ones() -> None:
    golden = (ROOT / "tests" / "golden" / "tools.proposals.json").read_text(encoding="utf-8")
    assert json.dumps(runtime.proposing(), indent=2) + "\n" == golden


def read(
    text: str, start: int = 1, most_lines: int | None = None, most_characters: int = 1000, **more: int
) -> tuple[str, str]:
    """The text that a call answers, and the note beside it."""
    result: Any = runtime.text_file("notes.md", text, start, most_lines, most_characters, **more)
    assert "isError" not in result
    assert all(each["type"] == "text" for each in result["content"])
    note = result["content"][1]["text"] if len(result["content"]) > 1 else ""
    return said(result), note


def go_on(note: str) -> dict[str, int]:
    """The arguments that a note says to go on with."""
    hint = note.rpartition("go on with ")[2] if "go on with " in note else ""
    return {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", hint)}


@pytest.mark.requirement("RT-17")
@each_row("text", ["", "\n", "one", "one\n", "one\ntwo", "a\r\nb\r\n", "\ufeffone\n\n\n", "x" * 1000])
def test_a_text_that_fits_comes_whole_and_exact(text: str) -> None:
    assert read(text) == (text, "")
    count = max(1, text.removesuffix("\n").count("\n") + 1)
    read(text, count)
    beyond: Any = runtime.text_file("notes.md", text, count + 1, None, 1000)
    assert beyond["isError"] is True
    assert said(beyond) == f"notes.md has {count} lines; give a start_line up to {count}"


THREE = "one\ntwo\nthree"


@pytest.mark.requirement("RT-17")
@each_row(("asked", "part", "about", "next_line"), [
    ((THREE, 1, None, 7), "one\ntwo\n", "lines 1 to 2 of 3 of notes.md", 3),
    *(((THREE, 1, None, most), "one\n", "lines 1 to 1 of 3", 2) for most in (3, 6)),
    ((f"{THREE}\nfour\n", 2, 2), "two\nthree\n", "lines 2 to 3 of 4", 4),
    *(((THREE, 3, most), "three", "lines 3 to 3 of 3", None) for most in (None, 1, 2)),
    (("short\n" + "x" * 50 + "\nlast\n", 2, None, 20), "x" * 20, "line 2 is cut after 20 characters", 2),
])  # fmt: skip
def test_a_part_tells_where_it_lies(asked: tuple[Any, ...], part: str, about: str, next_line: int | None) -> None:
    seen, note = read(*asked)
    assert seen == part and about in note
    assert go_on(note).get("start_line") == next_line


@pytest.mark.requirement("RT-17")
@given(st.text(st.sampled_from("ab\n\r\u2028ü\x0b"), max_size=60), st.none() | st.integers(1, 5), st.integers(1, 80))
@example("one long line", None, 4)
@example("one\ntwo\n", None, 4)
def test_the_notes_lead_through_any_text(text: str, most_lines: int | None, most_characters: int) -> None:
    whole, hint = "", {"start_line": 1}
    for _ in range(len(text) + 2):
        part, note = read(text, hint.pop("start_line"), most_lines, most_characters, **hint)
        assert len(part) <= most_characters + 1  # a line end is given for nothing
        whole += part
        hint = go_on(note)
        if not hint:
            break
    assert whole == text and not hint


@pytest.mark.requirement("RT-17")
@each_row(("path", "media", "size", "shown"), [
    ("a/icon.png", "image/png", 256, True), ("a/photo.JPG", "image/jpeg", 256, True),
    ("a/ping.mp3", "audio/mpeg", 256, True), ("a/icon.png", "image/png", 257, False),
    ("a/ping.mp3", "audio/mpeg", 257, False), ("a/font.woff2", "font/woff2", 9, False),
    ("a/palette.unheard-of", "application/octet-stream", 9, False), ("a/drawing.tiff", "image/tiff", 9, False),
])  # fmt: skip
def test_a_picture_or_sound_comes_as_such_else_as_a_link(path: str, media: str, size: int, shown: bool) -> None:
    raw, target = b"\xff\0" * (size // 2) + b"x" * (size % 2), "skill://a/target"
    result: Any = runtime.binary_file(path, target, raw, 256)
    words, block = result["content"]
    assert "isError" not in result
    if shown:
        assert words["text"].startswith(f"{path} ({media}, 256 bytes)")  # for a host that shows text alone
        assert (block["type"], block["mimeType"]) == (media.partition("/")[0], media)
        assert base64.b64decode(block["data"], validate=True) == raw
        return
    assert block == {"type": "resource_link", "uri": target, "name": path, "mimeType": media, "size": size}
    assert all(each in words["text"] for each in (path, media, f"{size} bytes", target))
    (unserved,) = runtime.binary_file(path, None, raw, 256)["content"]
    assert f"{path} is not a text file" in unserved["text"] and "cannot be shown" in unserved["text"]


def receipt(*fresh: Loaded, session: str | None = "h", bodies: bool = True, **more: Any) -> tuple[str, Any]:
    result: Any = runtime.load_result(fresh, session, fresh, bodies=bodies, **more)
    return said(result), check(result, runtime.LOAD)


@pytest.mark.requirement("RT-13", "RT-21", "X-15")
@each_row("bodies", [True, False])
@each_row("session", [None, "a-handle"])
def test_text_and_structure_of_a_receipt_tell_the_same(session: str | None, bodies: bool) -> None:
    old = loaded("old", "Old words.")
    new = loaded("new", "New words.", files=("references/guide.md", "scripts/run.py"), problems=("the name is odd",))
    result: Any = runtime.load_result([old, new], session, [new], bodies=bodies, shows="either")
    structure, seen = check(result, runtime.LOAD), said(result)
    assert structure.get(runtime.SESSION) == session
    assert [each["name"] for each in structure["active_skills"]] == ["old", "new"]
    assert seen.startswith("Active skills: old, new. Where two conflict, the later one applies.")
    assert (session is not None) is ("Session: a-handle" in seen)
    assert "the name is odd" in seen and structure["active_skills"][1]["problems"] == ["the name is odd"]
    for words in ("New words.", "references/guide.md", "scripts/run.py"):
        assert (words in seen) is (words in json.dumps(structure)) is bodies
    assert "Old words." not in seen and "Old words." not in json.dumps(structure)
    assert ("at the top" in seen) is not bodies
    assert "at the top" not in said(runtime.load_result([new], None, bodies=False))


@pytest.mark.requirement("RT-13", "RT-22", "ASG-27", "ASG-28")
def test_a_body_in_a_result_is_wrapped_with_its_place_and_its_files_where_the_client_looks() -> None:
    about = {"name": "new", "license": "MIT"}
    new = loaded("new", "New words.", properties=about, files=("references/guide.md",), problems=("the name is odd",))
    seen, structure = receipt(new, shows="either")
    assert seen == (
        'Active skills: new. Session: h (give it as "session" to the skills tools).\n\n'
        '<skill name="new" location="skill://new/SKILL.md" root_dir="skill://new">\nNew words.\n</skill>\n'
        '<skill_files skill="new">\nreferences/guide.md\n</skill_files>\n'
        '<skill_problems skill="new">\nthe name is odd\n</skill_problems>'
    )
    place = {"name": "new", "location": "skill://new/SKILL.md", "root_dir": "skill://new", "digest": new.digest}
    body = {"instructions": "New words.", "files": ["references/guide.md"]}
    assert structure["active_skills"] == [{**place, "properties": about, "problems": ["the name is odd"], **body}]
    text, bare = receipt(new)
    assert text == seen and bare["active_skills"] == [{**place, "properties": about, "problems": ["the name is odd"]}]
    pointing, whole = receipt(new, shows="structure")
    assert whole == structure and "New words." not in pointing and "guide.md" not in pointing
    # Should the host one day show the text alone, the model still learns where they are.
    assert "structured content" in pointing and f"SKILL.md with {runtime.READ}" in pointing
    assert "active_skills" not in said(runtime.load_result([new], "h", bodies=True, shows="structure"))


@pytest.mark.requirement("ASG-28")
def test_a_long_list_of_files_is_cut_and_says_so() -> None:
    for count, cut in ((199, None), (200, None), (201, 1), (900, 700)):
        files = tuple(f"references/{number:04}/a-file-of-some-name.md" for number in range(count))
        seen, structure = receipt(loaded("new", LONG, files=files), shows="either")
        listed = seen.partition("<skill_files")[2].splitlines()[1:-1]
        assert listed == [*files[:200], *([f"({cut} more are not shown)"] if cut else [])]
        assert len(seen) < 40_000
        assert structure["active_skills"][0].get("files_not_shown") == cut


LONG = "".join(f"Step {number} of many, told in some words.\n" + "\n" * (number % 5 == 4) for number in range(1_700))


def pointer(shown: str) -> dict[str, str]:
    """The arguments that a cut body says to read on with."""
    return dict(re.findall(r'(\w+)="?([^",.\]]+(?:\.md)?)', shown.rpartition("\n\n[")[2].partition("skills_read")[2]))


@each_row("size", [20_000, 38_000, 60_000])
def test_a_body_is_cut_at_a_paragraph_and_says_where_to_read_on(size: int) -> None:
    body = LONG[:size]
    seen, structure = receipt(loaded("a", body, line=5), shows="either")
    shown = structure["active_skills"][0]["instructions"]
    assert shown in seen
    assert len(seen) < 40_000 and len(shown) < 38_400
    if size <= 38_000:
        assert shown == body
        return
    kept, on = shown.rpartition("\n\n[")[0], pointer(shown)
    assert (on["skill"], on["path"]) == ("a", "SKILL.md")
    rest = "\n".join(body.split("\n")[int(on["start_line"]) - 5 :])
    assert kept + "\n\n" + rest == body
    assert len(kept) > 37_000


@each_row(("files", "most"), [((), 1_000), (("abcdef",), 990), (("x" * 96,) * 9, 500)])
def test_a_body_leaves_room_for_the_files_but_never_more_than_half(files: tuple[str, ...], most: int) -> None:
    for size in (most, most + 1):
        seen, _ = receipt(loaded("a", "x" * size, files=files), characters=1_000)
        assert (f"[The first {most} of {size} characters." in seen) is (size > most)


def test_one_line_that_is_too_long_goes_on_at_a_character() -> None:
    for body, on in (("# A\n" + "x" * 50_000, "=5."), ("x" * 50_000, "=4, start_character=20001.")):
        seen, _ = receipt(loaded("a", body, line=4), characters=20_000)
        assert f'path="SKILL.md", start_line{on}' in seen


def test_skills_that_are_loaded_together_share_what_a_result_may_hold() -> None:
    seen, structure = receipt(loaded("short"), *(loaded(f"long-{n}", LONG) for n in range(4)), shows="either")
    assert len(seen) < 40_000 and len(json.dumps(structure)) < 42_000
    short, *bodies = [each["instructions"] for each in structure["active_skills"]]
    assert short == "Do it."
    assert all(9_000 < len(each) < 9_900 and pointer(each)["skill"] == f"long-{n}" for n, each in enumerate(bodies))


def test_a_description_is_not_repeated() -> None:
    long = "Draws maps of rivers, lakes and roads."
    among = [("a", long), ("b", "x"), ("c", long), ("d", "x"), ("e", long[:26]), ("f", long[:26])]
    entries = [runtime.entry(name, build.skill(name, description=text), "skill://x") for name, text in among]
    result: Any = runtime.listing(entries, None)
    seen = [each["description"] for each in result["structuredContent"]["skills"]]
    again = "The same description as a."
    assert seen == [long, "x", again, "x", long[:26], long[:26]]  # what is short is as well repeated
    assert "- c: The same description as a." in said(result)


def test_a_long_listing_has_descriptions_of_one_length() -> None:
    said_of = {f"s{n}": f"{n:03}" + "words " * 170 for n in range(200)} | {"x": "Does x."}
    skills = {name: build.skill(name, description=words) for name, words in said_of.items()}
    entries = [runtime.entry(name, skill, "skill://x") for name, skill in skills.items()]
    result: Any = runtime.listing(entries, None)
    seen = [each["description"] for each in result["structuredContent"]["skills"]]
    assert sum(map(len, seen)) <= 38_000 and len({each[3:] for each in seen[:-1]}) == 1
    assert seen[0].endswith("words...") and seen[-1] == "Does x." and seen[0] in said(result)
    few: Any = runtime.listing(entries[:30], None)
    assert few["structuredContent"]["skills"] == entries[:30]


def test_news_are_one_line_in_text_and_structure() -> None:
    for added, removed, words in ((2, 1, "2 added and 1 removed"), (1, 0, " 1 added"), (0, 1_200, " 1,200 removed")):
        news = runtime.change_notice(added, removed)
        assert f"{words}." in news and runtime.LIST in news and "\n" not in news
        assert f"{words} or more." in runtime.change_notice(added, removed, uncounted=True)
    for tool, found, first in (
        (runtime.SEARCH, runtime.listing([], None, note=news), "No skill matches."),
        (runtime.LOAD, runtime.load_result([], None, bodies=True, note=news), "Active skills: none."),
    ):
        assert said(found).split("\n")[0] == first
        assert said(found).splitlines()[-1] == news == check(found, tool)["note"]
    unknown = f"They name unknown skills: {', '.join(['x' * 100, *'y' * 19])}."
    assert runtime.depends_on([], ["x" * 101, *"y" * 20]) == unknown and runtime.depends_on([], []) is None


def test_proposals_are_listed_with_what_the_reviewer_said() -> None:
    told = {"name": "a", "principal": "p", "reason": "r", "state": "pending"}
    found = runtime.proposal_list([{**told, "id": "1"}, {**told, "id": "2", "state": "rejected", "message": "No."}])
    assert said({**found}) == "1 a: pending\n2 a: rejected, No."
    assert said({**runtime.proposal_list([])}) == "You have proposed nothing here."


@pytest.mark.requirement("X-2")
def test_a_listing_tells_the_same_twice_and_marks_what_is_wrong() -> None:
    odd = replace(build.skill("odd", standing=Standing.LENIENT), findings=(problem("name-hyphens", "the name is odd"),))
    plain = runtime.entry("a", build.skill("a"), "skill://a/SKILL.md", title="A", version="1", tags=["x"])
    odd = replace(odd, origin="https://example.com")
    result: Any = runtime.listing([plain, runtime.entry("odd", odd, "skill://odd/SKILL.md")], "odd")
    structure = check(result, runtime.LIST)
    first, second = structure["skills"]
    told = {"name": "a", "description": "Does a.", "location": "skill://a/SKILL.md"}
    assert first == {**told, "title": "A", "version": "1", "tags": ["x"]}
    assert second.keys() == {"name", "description", "location", "problems", "origin"}
    assert structure["next_after"] == "odd"
    lines = said(result).splitlines()
    assert lines[0] == "- a: Does a."
    assert lines[1].startswith("- odd [from https://example.com]: Does odd. [has problems: the name is odd; ")
    assert 'after="odd"' in lines[2] and runtime.LIST in lines[2]


TOLD: dict[str, Any] = {
    "path": "scripts/run.py", "exit_code": 0, "stdout": "done\n", "stderr": "", "duration_ms": 12, "timed_out": False,
    "stdout_truncated": False, "stderr_truncated": False, "sandbox": "none", "user": 1000, "sandbox_gaps": [],
}  # fmt: skip
FILES = [{"path": f"/workspace/{name}", "size": 1} for name in ("a.txt", "b/c.bin")]


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
def test_what_came_of_a_script_is_told_and_a_failure_marked(more: dict[str, Any], words: str) -> None:
    result: Any = runtime.script_result(TOLD | more)
    assert check(result, runtime.RUN) == TOLD | more
    assert words in said(result) and "None" not in said(result)
    told = "Gaps: " in said(result), "New or changed" in said(result)
    assert told == (bool(more.get("sandbox_gaps")), bool(more.get("files")))
    assert result.get("isError", False) is ("exit_code" in more)


def test_a_file_without_text_comes_as_a_picture_or_in_base64_up_to_a_limit() -> None:
    picture: Any = runtime.output_file("/workspace/a.png", b"x", 1)
    assert picture["content"][1]["type"] == "image"
    sheet: Any = runtime.output_file("/workspace/ü b.xlsx", b"xy", 2)
    assert sheet["content"][1]["resource"]["uri"] == "workspace:///%C3%BC%20b.xlsx"
    for path in ("/workspace/a.png", "/workspace/a.xlsx"):
        assert runtime.output_file(path, b"xyz", 2)["isError"] is True
    paths = ("/workspace/a/b", "workspace/a", "/workspaces/a", "a/workspace/b", "/a")
    assert [runtime.in_workspace(path) for path in paths] == ["a/b", None, None, None, None]


@pytest.mark.requirement("RT-18")
def test_only_files_below_scripts_can_be_run() -> None:
    skill = build.skill("a", ["scripts/run.py", "scripts/lib/x.sh", "scripts.py", "x/scripts/y.py", "Scripts/z.py"])
    assert list(runtime.scripts_of(skill)) == ["scripts/lib/x.sh", "scripts/run.py"]
