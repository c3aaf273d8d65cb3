"""What is read without YAML is what YAML reads, to the line; whatever else is left to it."""

from __future__ import annotations

from hypothesis import event, example, given
from hypothesis import strategies as st

from mcp_skills_server.format import plain_yaml
from mcp_skills_server.format.yaml_reader import YamlReader
from tables import each_row

_KEYS = st.sampled_from(
    ["name", "description", "metadata", "license", "on", "Null", "true", "a-b", "_x", "a" * 101, "1", "-a", "é", "a b"]
) | st.text("ab_-1", min_size=1, max_size=4)
_PIECES = st.sampled_from((
    "a", "word", ":", "#", "'", "\"", "\\", "\\n", "-", "[", "]", "{", "}", ",", "&a", "*a", "!", "!!str", "|",
    ">", "%", "@", "`", "?", "~", "=", "<<", "1", "1.0", "0x1", ".5", "true", "yes", "No", "null", "---", "...",
    "/", "(", " ", "  ", ": ", " #", "- ", "? ", "\t", "\u00e9", "\u2014", "\u65e5\u672c", "\ud83d\ude00",
    "\u00a0", "\u0085", "\u2028", "\ufeff", "\u0007",
))  # fmt: skip
_VALUES = (
    st.lists(_PIECES, max_size=5).map("".join) | st.text(max_size=8) | st.just("Refunds a customer. Use when asked.")
)
_FIELDS = st.tuples(
    st.sampled_from(["", "", "", "  ", "  ", " ", "    "]),
    _KEYS,
    st.sampled_from([": ", ": ", ":", ":  ", " : "]),
    _VALUES,
)
_LINES = (
    _FIELDS.map("".join) | _VALUES | st.sampled_from(["metadata:", "metadata:", "# comment", "", "  ", "- a", "---"])
)
_PLAIN_KEYS = st.lists(st.text("ab_-1", min_size=1, max_size=3).map("k".__add__), min_size=4, max_size=4, unique=True)
_MOSTLY_PLAIN = (
    st.sampled_from(["A b c.", "x, y", "'q'", '"q: #"', "/a/b", "(c)", "a:b", "b#c", "\u00e9t\u00e9", "d  "]) | _VALUES
)
_NEARLY_PLAIN = st.builds(
    "{0[0]}: {1[0]}\n{2}:\n  {0[1]}: {1[1]}\n{3}{0[2]}: {1[2]}\n{0[3]}: {1[3]}".format,
    _PLAIN_KEYS,
    st.lists(_MOSTLY_PLAIN, min_size=4, max_size=4),
    st.sampled_from(["metadata", "other"]),
    st.sampled_from(["  ", "  ", "  ", "", "   ", " "]),
)


@example("metadata:\n  author: me\n  version: '1.0'\nlicense: MIT")
@example("metadata:\nname: a")
@example("a:\n  b: c\n   d: e")
@example("a:\n  b: c\n d: e")
@example("a: b\n  c: d")
@example("a: b\n\n  c")
@example("a: 'it''s'")
@example('a: "b" c')
@example("a: b # c")
@example("a: b:")
@example("a: b\n...")
@example("name: a\nname: b")
@given(st.lists(_LINES, max_size=6).map("\n".join) | _NEARLY_PLAIN)
def test_what_is_read_is_what_yaml_reads(text: str):
    text = f"{text}\n".replace("\r", "\n")
    plain = plain_yaml.read(text)
    event(f"read without YAML: {plain is not None}")
    if plain is None:
        return
    reader = YamlReader(text)
    fields = reader.read()
    assert fields is not None
    assert (plain.fields, list(plain.fields)) == (fields, list(fields))
    assert (plain.lines, plain.metadata, reader.problems) == (reader.lines, reader.metadata, [])


def test_the_frontmatter_that_nearly_every_skill_has_is_read_without_yaml():
    text = "name: a\ndescription: B c: d\nlicense: 'MIT'\nmetadata:\n  author: me\n  version: \"1.0\"\n"
    assert plain_yaml.read(text) is None  # for the colon
    plain = plain_yaml.read(text.replace("c: d", "c, d"))
    assert plain is not None
    assert plain.fields == {
        "name": "a",
        "description": "B c, d",
        "license": "MIT",
        "metadata": {"author": "me", "version": "1.0"},
    }
    assert plain.lines == {"name": 2, "description": 3, "license": 4, "metadata": 5}
    assert plain.metadata == {"author": (6, "me"), "version": (7, "1.0")}


@each_row(
    "text",
    [
        "",
        "a:\n",
        "a: 1\n",
        "a: true\n",
        "a: 'b''c'\n",
        'a: "\\u0041"\n',
        "a: b\na: c\n",
        "yes: b\n",
        "a: b\tc\n",
        "a: b # c\n",
        "a: b:\n",
        "a:\n  b:\n    c: d\n",
        "a:\n  b: c\n d: e\n",
        "a:\nb: c\n",
        "a: b\n  c\n",
        f"a: {'b' * 8200}\n",
    ],
)
def test_what_may_mean_something_else_is_left_to_yaml(text: str):
    assert plain_yaml.read(text) is None
