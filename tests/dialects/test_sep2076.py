"""SEP-2076: skills asked for by name."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mcp_skills_server.dialects import sep2076
from mcp_skills_server.errors import RequestError
from mcp_skills_server.format import arguments, identity
from mcp_skills_server.format.dependencies import Served, resolve
from mcp_skills_server.format.placeholders import MOST_ADDED
from mcp_skills_server.format.uris import segments
from mcp_skills_server.model import LONGEST_PATH, SKILL_MD, Json, Skill, Standing
from steps import growth

from .build import skill, snapshot

VALID = Standing.VALID
ENTRY_KEYS = {"name", "title", "description", "version", "tags", "icons", "arguments", "dependencies"}


def entry(one: Skill, *others: Skill, served: Served | None = None, least: Standing = VALID) -> dict[str, Json]:
    """The skill as it is listed beside the others."""
    return sep2076.entry(one, snapshot(one, *others), served or Served(), least)


def definition(one: Skill, *others: Skill, linked: dict[str, str] | None = None) -> dict[str, Json]:
    """The skill as it is got beside the others."""
    return sep2076.definition(one, snapshot(one, *others), Served(), VALID, instructions="Do it.", linked=linked or {})


# The entry


@pytest.mark.requirement("S76-4", "S76-19")
def test_an_entry_tells_all_that_the_frontmatter_says():
    refunds = skill(
        "acme/refunds",
        ["assets/icon.png", "references/rules.md"],
        title="Refunds",
        version="1.2",
        tags=["billing", "support"],
        icons=[{"src": "assets/icon.png", "sizes": "48x48"}],
        arguments=[{"name": "order", "title": "Order", "description": "Its number.", "required": True}],
        dependencies={
            "tools": ["search"],
            "prompts": ["reply"],
            "resources": ["skill://acme/refunds/references/rules.md"],
        },
    )
    assert entry(refunds, served=Served(tools=["search"], prompts=["reply"])) == {
        "name": "refunds",
        "title": "Refunds",
        "description": "Does refunds.",
        "version": "1.2",
        "tags": ["billing", "support"],
        "icons": [{"src": "skill://acme/refunds/assets/icon.png", "sizes": "48x48", "mimeType": "image/png"}],
        "arguments": [{"name": "order", "title": "Order", "description": "Its number.", "required": True}],
        "dependencies": {
            "tools": ["search"],
            "prompts": [{"type": "ref/prompt", "name": "reply"}],
            "resources": [{"type": "ref/resource", "uri": "skill://acme/refunds/references/rules.md"}],
        },
    }


@pytest.mark.requirement("S76-4")
def test_what_a_skill_does_not_say_leaves_no_key():
    assert entry(skill("a")) == {"name": "a", "description": "Does a."}
    assert entry(skill("a", only={}, standing=Standing.LENIENT), least=Standing.LENIENT) == {"name": "a"}


@pytest.mark.parametrize(
    ("fields", "heading", "expected"),
    [
        ({"title": "Top", "metadata": {"title": "Meta"}}, "Heading", "Top"),
        ({"metadata": {"title": "Meta"}}, "Heading", "Meta"),
        ({}, "Heading", "Heading"),
        ({}, None, None),
        ({"title": "", "metadata": {"title": ""}}, "Heading", "Heading"),
        ({"title": 7, "metadata": "x"}, "Heading", "Heading"),
    ],
)
def test_the_title_is_the_first_that_is_said(fields: dict[str, Any], heading: str | None, expected: str | None):
    assert entry(skill("a", heading=heading, **fields)).get("title") == expected


@pytest.mark.requirement("S76-19", "X-14")
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"version": "2", "metadata": {"version": "1"}}, "2"),
        ({"metadata": {"version": "1.0.3"}}, "1.0.3"),
        ({"version": 2}, "2"),
        ({"version": 0}, "0"),
        ({"version": 1.5}, "1.5"),
        ({"version": "", "metadata": {"version": "1"}}, "1"),
        ({"version": True, "metadata": {"version": "1"}}, "1"),
        ({"version": ["1"]}, None),
        ({"metadata": ["1"]}, None),
        ({}, None),
    ],
)
def test_the_version_comes_from_the_top_level_or_from_metadata(fields: dict[str, Any], expected: str | None):
    assert entry(skill("a", **fields)).get("version") == expected


@pytest.mark.requirement("S76-19", "X-14")
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"tags": ["a", "b"]}, ["a", "b"]),
        ({"tags": "a, b c,d"}, ["a", "b c", "d"]),
        ({"tags": "a b"}, ["a", "b"]),
        ({"tags": ["a", 1, " b ", ""]}, ["a", "b"]),
        ({"metadata": {"tags": "a, b"}}, ["a", "b"]),
        ({"metadata": {"tags": "a b"}}, ["a", "b"]),
        ({"metadata": {"tags": ["a"]}}, ["a"]),
        ({"tags": ["top"], "metadata": {"tags": "meta"}}, ["top"]),
        ({"tags": ", ,"}, None),
        ({"tags": {"a": 1}}, None),
        ({"tags": None}, None),
        ({}, None),
    ],
)
def test_tags_come_from_the_top_level_or_from_metadata(fields: dict[str, Any], expected: list[str] | None):
    assert entry(skill("a", **fields)).get("tags") == expected


@pytest.mark.requirement("S76-4")
@pytest.mark.parametrize(
    ("icons", "expected"),
    [
        ([{"src": "i.png"}], [{"src": "skill://a/i.png", "mimeType": "image/png"}]),
        ([{"src": "i.png", "mimeType": "image/x"}], [{"src": "skill://a/i.png", "mimeType": "image/x"}]),
        ([{"src": "data"}], [{"src": "skill://a/data", "mimeType": "application/octet-stream"}]),
        ([{"src": "https://example.org/i.svg"}], [{"src": "https://example.org/i.svg"}]),
        ([{"src": "i.png"}, {"src": "i.png", "sizes": "any"}], [{"src": "skill://a/i.png", "mimeType": "image/png"}]),
        ([{"mimeType": "image/png"}, {"src": ""}, {"src": 3}, "i.png", None], None),
        ("i.png", None),
    ],
)
def test_icons_of_the_bundle_become_uris(icons: Json, expected: list[Json] | None):
    assert entry(skill("a", ["i.png", "data"], icons=icons)).get("icons") == expected


@pytest.mark.requirement("S76-4")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([{"name": "a"}], [{"name": "a"}]),
        ([{"name": "a", "required": False, "default": "x", "other": 1}], [{"name": "a", "required": False}]),
        ([{"name": "a", "title": "", "description": 3, "required": "yes"}], [{"name": "a"}]),
        (
            [{"name": "a", "title": "1"}, {"name": "b"}, {"name": "a", "title": "2"}],
            [{"name": "a", "title": "1"}, {"name": "b"}],
        ),
        ([{"title": "no name"}, {"name": ""}, "a", None], None),
        ({"a": {}}, None),
        (None, None),
    ],
)
def test_arguments_that_have_a_name_are_listed(arguments: Json, expected: list[Json] | None):
    assert entry(skill("a", arguments=arguments)).get("arguments") == expected


# Dependencies


def dependencies(declared: Json, *others: Skill, served: Served | None = None, least: Standing = VALID) -> Any:
    """What an entry says of them, and what `resolve` says is missing."""
    one = skill("a", ["references/x.md"], dependencies=declared)
    among, served = snapshot(one, *others), served or Served()
    missing = resolve(one, among, served, least).missing
    return sep2076.entry(one, among, served, least).get("dependencies", {}), list(missing)


@pytest.mark.requirement("S76-9", "X-14")
def test_tools_that_the_server_does_not_serve_are_left_out():
    served = Served(tools={"search", "fetch"})
    assert dependencies({"tools": ["search", "other", 3, "fetch"]}, served=served) == (
        {"tools": ["search", "fetch"]},
        ["tool other"],
    )


@pytest.mark.requirement("S76-10", "X-14")
def test_prompts_that_the_server_does_not_serve_are_left_out():
    declared: Json = {
        "prompts": ["reply", {"name": "sum", "type": "ref/prompt"}, {"name": "other"}, {"uri": "x"}, None]
    }
    assert dependencies(declared, served=Served(prompts={"reply", "sum"})) == (
        {"prompts": [{"type": "ref/prompt", "name": "reply"}, {"type": "ref/prompt", "name": "sum"}]},
        ["prompt other"],
    )


@pytest.mark.requirement("S76-11", "X-14")
@pytest.mark.parametrize(
    ("target", "resolves"),
    [
        ("file:///data/{id}", True),
        ("skill://a/SKILL.md", True),
        ("skill://a/references/x.md", True),
        ("skill://a/references/%78.md", True),
        ("skill://acme/b/SKILL.md", True),
        ("skill://acme/b/notes.md", True),
        ("skill://a/references/absent.md", False),
        ("skill://a/references", False),
        ("skill://a", False),
        ("skill://a/../acme/b/SKILL.md", False),
        ("skill://lenient/SKILL.md", False),
        ("skill://unusable/SKILL.md", False),
        ("file:///other", False),
        ("references/x.md", False),
    ],
)
def test_resources_that_cannot_be_read_are_left_out(target: str, resolves: bool):
    others = (
        skill("acme/b", ["notes.md"]),
        skill("lenient", standing=Standing.LENIENT),
        skill("unusable", standing=Standing.UNUSABLE),
    )
    served = Served(resources=["file:///data/{id}"])
    expected = [{"type": "ref/resource", "uri": target}]
    for declared in ([target], [{"uri": target, "type": "ref/resource"}]):
        assert dependencies({"resources": declared}, *others, served=served) == (
            ({"resources": expected}, []) if resolves else ({}, [f"resource {target}"])
        )


def test_what_is_served_depends_on_the_dialect_that_is_pinned():
    lenient = skill("lenient", standing=Standing.LENIENT)
    declared: Json = {"resources": ["skill://lenient/SKILL.md"]}
    assert dependencies(declared, lenient)[0] == {}
    assert dependencies(declared, lenient, least=Standing.LENIENT)[1] == []


@pytest.mark.parametrize(
    "declared", [None, [], "search", {}, {"tools": []}, {"tools": "search", "prompts": 1, "x": ["y"]}]
)
def test_without_dependencies_there_is_no_key(declared: Json):
    assert dependencies(declared, served=Served(tools=["search"])) == ({}, [])
    assert "dependencies" not in entry(skill("a", dependencies=declared))
    assert "dependencies" not in definition(skill("a", dependencies=declared))


# Names


@pytest.mark.requirement("S76-8", "S40-37")
def test_a_skill_is_found_by_its_name_or_by_its_path():
    refunds, other = skill("acme/refunds"), skill("other")
    here = snapshot(refunds, other)
    assert identity.find(here, "refunds", VALID) is refunds
    assert identity.find(here, "acme/refunds", VALID) is refunds
    assert identity.name_of(refunds, here, VALID) == "refunds"


@pytest.mark.requirement("S76-8")
@pytest.mark.parametrize(
    "name", ["", "acme", "Refunds", "refunds/", "/acme/refunds", "acme/refunds/SKILL.md", "../refunds"]
)
def test_an_unknown_name_is_refused_and_named(name: str):
    with pytest.raises(RequestError) as caught:
        identity.find(snapshot(skill("acme/refunds")), name, VALID)
    assert str(caught.value) == f"Unknown skill: {name!r}"


def test_a_long_name_is_not_repeated_whole():
    with pytest.raises(RequestError) as caught:
        identity.find(snapshot(), "x" * 100_000, VALID)
    assert len(str(caught.value)) < 300


@pytest.mark.requirement("S76-8", "S40-37")
def test_skills_that_share_a_name_go_by_their_paths():
    first, second, other = skill("acme/refunds"), skill("globex/refunds"), skill("other")
    here = snapshot(first, second, other)
    assert [identity.name_of(each, here, VALID) for each in (first, second, other)] == [
        "acme/refunds",
        "globex/refunds",
        "other",
    ]
    assert entry(first, second)["name"] == "acme/refunds"
    assert identity.find(here, "globex/refunds", VALID) is second
    with pytest.raises(RequestError) as caught:
        identity.find(here, "refunds", VALID)
    assert str(caught.value) == "Several skills are named 'refunds'; ask for one of: acme/refunds, globex/refunds"


def test_a_skill_path_is_always_accepted_as_a_name():
    top, deep = skill("refunds"), skill("acme/refunds")
    here = snapshot(top, deep)
    assert identity.name_of(top, here, VALID) == "refunds"
    assert identity.find(here, "refunds", VALID) is top
    assert identity.find(here, "acme/refunds", VALID) is deep


@pytest.mark.parametrize("least", [Standing.LENIENT, VALID])
def test_a_name_that_is_another_s_path_is_not_a_skill_s_own(least: Standing):
    holder, deep = skill("refunds", name="payments", standing=least), skill("acme/refunds")
    here = snapshot(holder, deep)
    assert identity.name_of(deep, here, least) == "acme/refunds"
    assert identity.find(here, "refunds", least) is holder


@pytest.mark.requirement("X-2")
def test_a_skill_that_stands_too_low_is_not_there_and_shares_no_name():
    good, broken = skill("good/a"), skill("broken/a", standing=Standing.LENIENT)
    here = snapshot(good, broken)
    assert identity.find(here, "a", VALID) is good
    assert identity.name_of(good, here, VALID) == "a"
    with pytest.raises(RequestError, match="Unknown skill"):
        identity.find(here, "broken/a", VALID)
    assert identity.find(here, "broken/a", Standing.LENIENT) is broken
    with pytest.raises(RequestError, match="Several skills"):
        identity.find(here, "a", Standing.LENIENT)


@pytest.mark.requirement("S76-8")
@given(st.sets(st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join), min_size=1, max_size=8))
def test_every_listed_name_is_its_own_and_leads_back_to_its_skill(paths: set[str]):
    here = snapshot(*map(skill, paths))
    names = {identity.name_of(each, here, VALID): each for each in here.skills.values()}
    assert len(names) == len(paths)
    for name, each in names.items():
        assert identity.find(here, name, VALID) is each


# The definition


@pytest.mark.requirement("S76-6", "S76-7", "S76-19")
def test_a_definition_holds_instructions_and_files():
    one = skill("acme/a", ["notes.md"], dependencies={"resources": ["skill://acme/a/notes.md"]}, title="T", version="1")
    assert definition(one, linked={"notes.md": "The notes"}) == {
        "description": "Does a.",
        "instructions": "Do it.",
        "dependencies": {"resources": [{"type": "ref/resource", "uri": "skill://acme/a/notes.md"}]},
        "files": [
            {
                "name": "notes.md",
                "title": "The notes",
                "uri": "skill://acme/a/notes.md",
                "mimeType": "text/markdown",
                "required": False,
            }
        ],
    }


@pytest.mark.requirement("S76-6")
def test_a_definition_without_a_description_or_files_says_so_by_absence():
    bare = skill("a", only={"name": "a"}, standing=Standing.LENIENT)
    assert definition(bare) == {"instructions": "Do it.", "files": []}


def names_of_files(one: Skill, linked: dict[str, str]) -> list[Any]:
    return [each["name"] for each in sep2076.files(one, linked) if isinstance(each, dict)]


@pytest.mark.requirement("S76-6", "S76-19", "X-14")
def test_linked_files_come_first_in_order_of_appearance_then_the_others_by_path():
    one = skill("a", ["b.md", "a.md", "scripts/run.py", "LICENSE"])
    assert names_of_files(one, {"scripts/run.py": "", "b.md": "B"}) == ["scripts/run.py", "b.md", "LICENSE", "a.md"]
    assert names_of_files(one, {}) == ["LICENSE", "a.md", "b.md", "scripts/run.py"]


@pytest.mark.requirement("S76-6")
def test_a_file_tells_what_the_frontmatter_and_the_link_say():
    said = [
        {"path": "x.md", "title": "X", "description": "About x.", "required": True},
        {"path": "x.md", "title": "second"},
        {"path": "y", "required": "yes", "title": 3},
        {"path": "gone.md", "required": True},
        {"title": "no path"},
    ]
    one = skill("a", ["x.md", "y", "z.md"], only={"name": "a", "files": said})
    assert sep2076.files(one, {"z.md": "Link to z", "x.md": "Link to x"}) == [
        {"name": "z.md", "title": "Link to z", "uri": "skill://a/z.md", "mimeType": "text/markdown", "required": False},
        {
            "name": "x.md",
            "title": "X",
            "uri": "skill://a/x.md",
            "description": "About x.",
            "mimeType": "text/markdown",
            "required": True,
        },
        {"name": "y", "uri": "skill://a/y", "required": False},
    ]


_NAMES = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="/\0"), min_size=1, max_size=6).filter(
    lambda name: name not in {".", ".."}
)
_FILES = st.sets(st.lists(_NAMES, min_size=1, max_size=3).map("/".join), max_size=6)


@pytest.mark.requirement("S76-12", "S76-6", "S40-17")
@given(_FILES, st.randoms(use_true_random=False))
def test_every_file_but_skill_md_is_told_once_with_a_uri_that_can_be_read(files: set[str], random: Any):
    one = skill("acme/a", files)
    here = snapshot(one)
    others = [path for path in one.files if path != SKILL_MD]
    linked = dict.fromkeys(random.sample(others, random.randint(0, len(others))), "text")
    told = [each for each in sep2076.files(one, linked) if isinstance(each, dict)]
    assert sorted(str(each["name"]) for each in told) == others
    for each in told:
        parts = segments(str(each["uri"]))
        assert parts is not None
        assert here.find(parts, VALID) == (one, each["name"])


# Arguments


TOPIC: dict[str, Json] = {"name": "topic", "required": True}
TONE: dict[str, Json] = {"name": "tone", "default": "calm"}
BARE: dict[str, Json] = {"name": "bare"}


def filled(text: str, given_values: dict[str, Any], *declared: dict[str, Json]) -> str:
    return arguments.fill_in(text, declared, given_values, "letters")


@pytest.mark.requirement("S76-6", "S76-7")
@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("{{topic}}", {"topic": "tea"}, "tea"),
        ("{{topic}} and {{topic}}", {"topic": "tea"}, "tea and tea"),
        ("{{topic}}/{{tone}}/{{bare}}.", {"topic": "tea"}, "tea/calm/."),
        ("{{tone}}", {"topic": "tea", "tone": "loud"}, "loud"),
        ("{{tone}}", {"topic": "tea", "tone": ""}, ""),
        ("{{topic}}", {"topic": ""}, ""),
        ("{{topic}} {{tone}}", {"topic": "{{tone}}", "tone": "{{topic}}"}, "{{tone}} {{topic}}"),
        ("{{topic}}", {"topic": r"\1 \g<0> $1"}, r"\1 \g<0> $1"),
        ("{{topic}}", {"topic": "日本語 🦀\n"}, "日本語 🦀\n"),
        (
            "{topic} {{ topic }} {{Topic}} {{other}} $topic",
            {"topic": "tea"},
            "{topic} {{ topic }} {{Topic}} {{other}} $topic",
        ),
        ("{{{topic}}}", {"topic": "tea"}, "{tea}"),
        ("{{topic", {"topic": "tea"}, "{{topic"),
        ("no placeholder", {"topic": "tea"}, "no placeholder"),
    ],
)
def test_declared_placeholders_are_filled_in_one_pass_and_nothing_else(
    text: str, values: dict[str, Any], expected: str
):
    assert filled(text, values, TOPIC, TONE, BARE) == expected


def test_names_that_begin_alike_or_hold_signs_are_told_apart():
    declared: list[dict[str, Json]] = [{"name": "a"}, {"name": "ab"}, {"name": "a.b"}, {"name": "a|b"}]
    values = {"a": "1", "ab": "2", "a.b": "3", "a|b": "4"}
    assert filled("{{a}} {{ab}} {{a.b}} {{a|b}} {{axb}}", values, *declared) == "1 2 3 4 {{axb}}"


@pytest.mark.requirement("S76-8")
def test_a_required_argument_that_is_missing_is_refused_and_named():
    with pytest.raises(RequestError, match="Missing required argument 'topic' of skill 'letters'"):
        filled("{{topic}}", {"tone": "loud"}, TOPIC, TONE)


def test_required_counts_only_when_it_is_true():
    assert filled("{{a}}", {}, {"name": "a", "required": "yes"}) == ""


def test_an_argument_that_is_not_declared_is_refused_and_named():
    with pytest.raises(RequestError, match="has no argument 'colour'; it declares: topic, tone"):
        filled("", {"topic": "tea", "colour": "red"}, TOPIC, TONE)
    with pytest.raises(RequestError, match="has no argument 'colour'; it declares: none"):
        filled("", {"colour": "red"})


@pytest.mark.parametrize("value", [None, 1, True, ["tea"], {"a": "b"}])
def test_an_argument_that_is_no_text_is_refused_and_named(value: Any):
    with pytest.raises(RequestError, match="Argument 'topic' of skill 'letters' must be a string"):
        filled("{{topic}}", {"topic": value}, TOPIC)


@pytest.mark.parametrize("default", [None, 3, ["x"]])
def test_a_default_that_is_no_text_is_empty(default: Json):
    assert filled("[{{a}}]", {}, {"name": "a", "default": default}) == "[]"


@given(st.text(), st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=5), max_size=4))
def test_any_argument_may_hold_any_text(text: str, values: dict[str, str]):
    assume("{{" not in text and not any("{" in name or "}" in name for name in values))
    declared: list[dict[str, Json]] = [{"name": name} for name in values]
    marked = "".join("\0{{" + name + "}}" for name in values)
    assert filled(text + marked, values, *declared) == text + "".join("\0" + value for value in values.values())


@given(
    st.dictionaries(
        st.sampled_from(
            ["title", "description", "version", "tags", "icons", "arguments", "dependencies", "files", "metadata"]
        ),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.sampled_from(["name", "src", "path", "uri", "tools", "resources", "title"]), inner)
            ),
            max_leaves=8,
        ),
    )
)
def test_no_frontmatter_is_too_odd_to_be_shown(fields: dict[str, Any]):
    one = skill("a", ["x.md"], only={"name": "a", **fields}, standing=Standing.LENIENT)
    told = entry(one, least=Standing.LENIENT)
    assert set(told) <= ENTRY_KEYS
    assert all(isinstance(told.get(key, ""), str) for key in ("name", "title", "description", "version"))


# What a client's words cost


def _filled(text: str, given_values: dict[str, str], *names: str) -> str:
    return arguments.fill_in(text, [{"name": name} for name in names], given_values, "letters")


@pytest.mark.parametrize("over", [0, 1])
def test_arguments_make_a_body_longer_by_so_much_and_no_more(over: int):
    places = 64
    value = "v" * (MOST_ADDED // places + len("{{topic}}") + over)
    if over:
        with pytest.raises(RequestError, match=r"'letters' longer by more than 1,048,576 characters"):
            _filled("{{topic}}" * places, {"topic": value}, "topic")
    else:
        assert len(_filled("{{topic}}" * places, {"topic": value}, "topic")) == MOST_ADDED + len("{{topic}}") * places


def test_three_hundred_places_for_a_long_argument_are_refused_before_they_are_filled():
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match="longer by more than"):
            _filled("{{topic}} " * 300, {"topic": "x" * 900_000}, "topic")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_body_longer_than_the_bound_is_filled_in_as_well():
    body = "x" * 2 * MOST_ADDED + "{{topic}}"
    assert _filled(body, {"topic": "tea"}, "topic").endswith("xtea")


@pytest.mark.parametrize("shape", ["{{a}}", "{{", "{{{{a}}", "}}", "{{a", "{{a}", "{{no}}"])
def test_filling_in_takes_steps_as_long_as_the_body_whatever_is_declared(shape: str):
    def call(times: int) -> Callable[[], object]:
        names = ["a", *(f"n{each}" for each in range(times))]
        return lambda: _filled(shape * times, {"a": "b"}, *names)

    assert growth(call, 500) <= 5


@given(st.text("{}ab", max_size=40), st.dictionaries(st.sampled_from(["a", "b", "ab"]), st.text("{}ab", max_size=3)))
def test_filling_in_is_what_replacing_one_after_the_other_place_would_be(body: str, values: dict[str, str]):
    expected, rest = "", body
    while rest:
        name = next((each for each in values if rest.startswith("{{" + each + "}}")), None)
        expected += rest[0] if name is None else values[name]
        rest = rest[1:] if name is None else rest[len(name) + 4 :]
    assert _filled(body, values, *values) == expected


def test_skills_that_share_a_name_are_told_in_part():
    many = [skill(f"{each:04}/same") for each in range(1000)]
    with pytest.raises(RequestError, match="and 980 more") as caught:
        identity.find(snapshot(*many), "same", VALID)
    assert len(str(caught.value)) < 500


def test_a_name_longer_than_any_path_is_none():
    long = skill("a", name="x" * (LONGEST_PATH + 1))
    there = snapshot(long)
    assert identity.name_of(long, there, VALID) == "a"
    assert identity.known(there, long.name, VALID) is None
    assert identity.known(there, "a", VALID) is long
