"""Intake of proposals: validation, limits, and storage outside the served roots."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from catalog.forest import skills, write_files
from catalog.test_views import ANN, grant, views_of
from mcp_skills_server.catalog.recalls import Advisory, Recalls
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import Limits, MirroredRoot
from mcp_skills_server.errors import RequestError, UsageError
from mcp_skills_server.model import SKILL_MD, Snapshot
from mcp_skills_server.model.digests import digest_of
from mcp_skills_server.proposals import intake
from mcp_skills_server.proposals.approval import UnwritableError, approve
from mcp_skills_server.proposals.intake import MAX_BYTES, MAX_FILES, MAX_LINES
from mcp_skills_server.proposals.review import review
from mcp_skills_server.proposals.store import LOCAL, MAX_PER_PRINCIPAL, Proposal, ProposalStore, decode, encode
from tables import each_row
from wire import write_skill

DRAFT = Proposal(id="", name="tea/green", principal="token:ann", reason="The user corrected me twice.", host="wire")


def manifest(name: str) -> str:
    return f"---\nname: {name}\ndescription: Does a thing when it is asked to.\n---\n\n# It\n"


GREEN = {SKILL_MD: manifest("green")}


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    write_skill(tmp_path / "skills" / "coffee", references__guide_md="one\n")
    write_skill(tmp_path / "skills" / "group" / "inner")
    with Registry([tmp_path / "skills"]) as loaded:
        yield loaded


def base_of(registry: Registry, path: str) -> str:
    return registry.snapshot.skills[path].files[SKILL_MD].digest


def propose(registry: Registry, store: ProposalStore, draft: Proposal, files: dict[str, str | None]) -> Proposal:
    """Make a proposal of somebody who may read all skills."""
    return intake.propose(registry, store, draft, files, registry.snapshot)


def refusal(registry: Registry, store: ProposalStore, draft: Proposal, files: dict[str, str | None]) -> str:
    """Return why a proposal is refused."""
    with pytest.raises(RequestError) as refused:
        propose(registry, store, draft, files)
    return str(refused.value)


def test_change_needs_current_digest_as_base(registry: Registry, store: ProposalStore, tmp_path: Path) -> None:
    draft, files = replace(DRAFT, name="coffee"), {SKILL_MD: manifest("coffee")}
    message = refusal(registry, store, draft, {**files})
    assert "with the digest sha256:" in message and "give its digest as base" in message
    assert "+# It" in message, "the message contains the diff"
    stale = replace(draft, base="sha256:" + "0" * 64)
    assert "it has changed since" in refusal(registry, store, stale, {**files})
    message = refusal(registry, store, stale, {SKILL_MD: manifest("coffee") + "line\n" * 100})
    assert len(message.splitlines()) == 1 + 60, "a long diff is cut"
    draft = replace(draft, base=base_of(registry, "coffee"))
    assert "no file a.md to" in refusal(registry, store, draft, {"a.md": None})
    assert "changes nothing" in refusal(registry, store, draft, {"references/guide.md": "one\n"})
    proposal = propose(registry, store, draft, {"references/guide.md": None})
    assert proposal.removed == ("references/guide.md",)
    assert store.files(proposal) == {}
    (tmp_path / "skills" / "coffee" / "references" / "guide.md").unlink()
    assert "coffee is being changed; try again" in refusal(registry, store, draft, {**files})


HIDDEN = "\u200b"
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 1\n"


def assert_refused(top: Path, draft: Proposal, files: dict[str, str | None], message: str) -> None:
    """Assert that a proposal for a root with two skills is refused, and leaves no file."""
    write_files(top / "skills", skills("coffee", "group/inner"))
    store = ProposalStore(top / "proposals")
    with Registry([top / "skills"]) as registry:
        assert re.search(message, refusal(registry, store, draft, files))
    assert store.list() == []
    assert sorted(entry.name for entry in top.iterdir()) == ["proposals", "skills"]


@each_row("files, message", [
    ({"../coffee/SKILL.md": "x"}, "leads out"), ({"/etc/passwd": "x"}, "absolute"), ({"C:/x": "x"}, "drive"),
    ({"a\\b": "x"}, "backslash"), ({"a//b": "x"}, "plain path"), ({"a\nb": "x"}, "control character"),
    ({".git/config": "x"}, "never served"), ({".envrc": "x"}, "never served"),
    ({"node_modules/a.js": "x"}, "never served"), ({"a.md": "x", "A.md": "x"}, "A.md|a.md"),
    ({"a": "x", "a/b": "x"}, "a"), ({"con.md": "x"}, "Windows"), ({"in/SKILL.md": manifest("in")}, "at its top"),
    ({"in/skill.md": manifest("in")}, "at its top"),
    ({SKILL_MD: "# no frontmatter"}, "would not be valid"), ({SKILL_MD: manifest("black")}, "would not be valid"),
    ({SKILL_MD: manifest("green") + HIDDEN}, "cannot see"), ({f"a{HIDDEN}.md": "x"}, "invisible|cannot"),
    ({"a.md": "\u202eevil"}, "cannot see"), ({"a.md": "\x1b[2K"}, "cannot see"), ({"a.md": "\0"}, "cannot see"),
    ({"a.md": "\ud800"}, "surrogate"), ({"a.md": "x" * (MAX_BYTES - len(manifest("green")) + 1)}, "524,288 bytes"),
    ({"a.md": "\n" * (MAX_LINES + 1)}, "more than 2,000 lines"), ({"gone.md": None}, "no skill"),
    ({f"a{number}.md": "" for number in range(MAX_FILES)}, "at most 100 files"),
    ({"pyvenv.cfg": "x"}, "leave out pyvenv.cfg"), ({"references/\ufeffa.md": "x"}, "invisible"),
    ({"references/\u2800.md": "x"}, "invisible"), ({"a.md": "visible \u2800\u2800 text"}, "cannot see"),
    *(({"a.md": end * (MAX_LINES + 1)}, "more than 2,000 lines") for end in ("\r", "\f", "a\r\n")),
    ({f"{number}.bin": POINTER for number in range(11)}, r"^([^\n]*lfs-pointer){10}[^\n]*Correct this(?!.*lfs-p)"),
])  # fmt: skip
def test_invalid_files_are_refused(files: dict[str, str | None], message: str, tmp_path: Path) -> None:
    assert_refused(tmp_path, DRAFT, {**GREEN, **files}, message)


@each_row("field, value, message", [
    ("name", "../green", "leads out"), ("name", "/green", "absolute"), ("name", "", "absolute|plain"),
    ("name", "group", "in or around"), ("name", "coffee/inner", "in or around"), ("name", "Coffee", "in or around"),
    ("name", ".hidden", "not a name that is served"), ("name", f"green{HIDDEN}", "invisible"),
    ("name", "a/" * 40 + "green", "deep"), ("reason", "", "reason"), ("reason", "   ", "reason"),
    ("reason", "x" * 2_001, "reason"), ("reason", f"a{HIDDEN}b", "reason"),
    ("reason", "\ufeffBecause", "cannot see"),
])  # fmt: skip
def test_invalid_name_or_reason_is_refused(field: str, value: str, message: str, tmp_path: Path) -> None:
    assert_refused(tmp_path, replace(DRAFT, **{field: value}), GREEN, message)


@each_row(
    "files, message",
    [({}, "no files"), ({"references/a.md": "a"}, "needs a SKILL.md"), ({"skill.md": manifest("green")}, "one skill")],
)
def test_manifest_is_required(files: dict[str, str | None], message: str, tmp_path: Path) -> None:
    assert_refused(tmp_path, DRAFT, files, message)


def test_new_proposal_at_every_limit_is_stored_but_not_served(registry: Registry, store: ProposalStore) -> None:
    files = GREEN | {f"a{number}.md": "" for number in range(MAX_FILES - 2)} | {"lines.md": "\n" * MAX_LINES}
    files["a0.md"] = "x" * (MAX_BYTES - sum(map(len, files.values())))
    proposal = propose(registry, store, replace(DRAFT, reason="x" * 2_000, host="h" * 300), files)
    assert (proposal.state, proposal.is_new, len(proposal.host)) == ("pending", True, 200)
    assert store.get(proposal.id) == proposal == store.list()[0]
    assert store.files(proposal) == {path: text.encode() for path, text in files.items()}
    registry.refresh()
    assert sorted(registry.snapshot.skills) == ["coffee", "group/inner"]


def test_proposal_is_validated_with_limits_of_the_server(tmp_path: Path, store: ProposalStore) -> None:
    write_skill(tmp_path / "skills" / ".agents" / "coffee")
    with Registry([tmp_path / "skills"], Limits(hidden=True, files=2)) as registry:
        draft = replace(DRAFT, name=".agents/coffee", base=base_of(registry, ".agents/coffee"))
        assert propose(registry, store, draft, {SKILL_MD: manifest("coffee")}).state == "pending"
        assert "3 files, 2 are allowed" in refusal(registry, store, DRAFT, {**GREEN, "a.md": "a", "b.md": "b"})


def test_recalled_content_is_not_proposed_again(tmp_path: Path, store: ProposalStore) -> None:
    advisory = Advisory(digest_of(manifest("green").encode()), "It sends files away.", "high")
    (tmp_path / "skills").mkdir()
    with Registry([tmp_path / "skills"], recalls=Recalls([advisory])) as loaded:
        assert "It sends files away." in refusal(loaded, store, DRAFT, {**GREEN})
        assert propose(loaded, store, DRAFT, {SKILL_MD: manifest("green") + "More.\n"}).name == "tea/green"


def test_pending_proposals_are_limited_per_principal_and_in_all(registry: Registry, store: ProposalStore) -> None:
    for _ in range(MAX_PER_PRINCIPAL):
        propose(registry, store, DRAFT, GREEN)
    assert "20 of your proposals wait" in refusal(registry, store, DRAFT, GREEN)
    of_bob = replace(DRAFT, principal="token:bob")
    propose(registry, store, of_bob, GREEN)
    with store.locked():
        store.decide(store.list()[-1], "rejected", "token:bob", "")
    propose(registry, store, DRAFT, GREEN)
    for number in range(200 - MAX_PER_PRINCIPAL - 2):
        proposal = replace(DRAFT, id=f"20261124-{number:012x}", principal=f"token:{number}")
        (store.folder / proposal.id).mkdir()
        (store.folder / proposal.id / "proposal.toml").write_bytes(encode(proposal))
    propose(registry, store, of_bob, GREEN)
    message = refusal(registry, store, of_bob, GREEN)
    assert "200 proposals wait for a decision already; ask a reviewer" in message


def test_linked_fetched_and_nesting_skills_cannot_be_changed(tmp_path: Path, store: ProposalStore) -> None:
    def refusal_of_change(name: str, registry: Registry) -> str:
        draft = replace(DRAFT, name=name, base=base_of(registry, name))
        return refusal(registry, store, draft, {SKILL_MD: manifest(name.rpartition("/")[2])})

    plugin, skill = tmp_path / "plugin", write_skill(tmp_path / "elsewhere" / "linked")
    (tmp_path / "skills").mkdir()
    (tmp_path / "skills" / "linked").symlink_to(skill)
    for folder in ("tea", "nest", "nest/egg"):
        write_skill(plugin / "skills" / folder)
    write_files(plugin, {".claude-plugin/plugin.json": '{"name": "house"}'})
    with Registry([tmp_path / "skills"]) as registry:
        assert "or a link" in refusal_of_change("linked", registry)
    fetched = MirroredRoot(str(tmp_path / "elsewhere"), "https://a.example")
    for root, name, message in (
        (skill, "linked", "a root by itself"),
        (fetched, "linked", "comes from https://a.example"),
        (plugin, "house/nest", "has skills in it"),
    ):
        with Registry([root]) as registry:
            assert message in refusal_of_change(name, registry)
            assert "no folder that is served here" in refusal(registry, store, DRAFT, GREEN)
    with Registry([plugin]) as registry:
        draft = replace(DRAFT, name="house/tea", base=base_of(registry, "house/tea"))
        assert propose(registry, store, draft, {SKILL_MD: manifest("tea")}).place == str(plugin / "skills" / "tea")


def test_refusal_of_nesting_skill_shows_nothing_of_nested_skills(tmp_path: Path, store: ProposalStore) -> None:
    """Its proposer may have no grant for them."""
    write_skill(tmp_path / "skills" / "nest")
    write_skill(tmp_path / "skills" / "nest" / "egg", notes_md="the secret\n")
    with Registry([tmp_path / "skills"]) as registry:
        for base in ("", "sha256:" + "0" * 64, base_of(registry, "nest")):
            for files in ({"egg/notes.md": "x"}, {"egg/notes.md": None}, {"egg/none": None}):
                draft = replace(DRAFT, name="nest", base=base)
                message = refusal(registry, store, draft, {**files})
                assert "has skills in it" in message
                assert "egg" not in message and "secret" not in message


def test_record_round_trips_and_invalid_records_are_skipped(
    store: ProposalStore, caplog: pytest.LogCaptureFixture
) -> None:
    proposal = replace(DRAFT, id="20261124-0123456789ab", reason='"""\n[table]\nstate = "approved"', removed=("a",))
    assert decode(encode(proposal)) == proposal
    for raw in (b"\xff", b"id = 1", b'state = "served"', b"removed = [1]\nstate = 'pending'"):
        with pytest.raises(ValueError, match=r"invalid start byte|not text, or an unknown state"):
            decode(raw)
    (store.folder / proposal.id).mkdir()
    (store.folder / proposal.id / "proposal.toml").write_bytes(encode(replace(proposal, id="20261124-000000000000")))
    assert store.list() == []
    assert "its record has another id" in caplog.text
    for id_ in ("../skills", proposal.id, "x" * 500):
        with pytest.raises(RequestError, match="no proposal"):
            store.get(id_)


def test_world_writable_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(UsageError, match="is writable by other users"):
        ProposalStore(tmp_path)


NAMES = ["a", "A", "..", ".", "", ".git", "SKILL.md", "skill.md", "references", "con", "x" * 300]
PATHS = st.lists(st.sampled_from(NAMES) | st.text(max_size=4), min_size=1, max_size=4).map("/".join)
TEXTS = st.sampled_from([manifest("green"), "x", "---\n", "\u202e", "\x1b[2K", "\0", "\ud800"]) | st.text(max_size=20)
FILES = st.dictionaries(
    st.sampled_from(["notes.md", "references/a.md", "b/c"]) | PATHS, st.just("x") | st.none() | TEXTS, max_size=2
)


@given(
    st.sampled_from(["green", "tea/green"]) | PATHS,
    FILES.map(lambda files: GREEN | files) | FILES,
    st.sampled_from(["", "", "sha256:0"]),
)
def test_any_proposal_writes_only_to_the_store(
    tmp_path_factory: pytest.TempPathFactory, name: str, files: dict[str, str | None], base: str
) -> None:
    top = tmp_path_factory.mktemp("top")
    write_skill(top / "skills" / "coffee")
    before = {path.relative_to(top) for path in top.rglob("*")}
    store = ProposalStore(top / "proposals")
    with Registry([top / "skills"]) as registry:
        with suppress(RequestError):
            proposal = propose(registry, store, replace(DRAFT, name=name, base=base), files)
            event("stored")
            assert store.files(proposal) == {path: text.encode() for path, text in files.items() if text is not None}
        after = {path.relative_to(top) for path in top.rglob("*")}
        assert before <= after
        assert all(path.parts[0] == "proposals" for path in after - before)
        registry.refresh()
        assert [*registry.snapshot.skills] == ["coffee"]


@pytest.fixture
def withheld(tmp_path: Path) -> Iterator[Registry]:
    """A registry with skills of which a proposer sees only some."""
    for path in ("nest", "nest/egg", "plans/secret", "up"):
        write_skill(tmp_path / "skills" / path, notes_md=f"of {path}\n")
    with Registry([tmp_path / "skills"]) as loaded:
        yield loaded


def seen(registry: Registry, *patterns: str) -> Snapshot:
    return views_of(registry, grant("token:ann", *patterns)).for_principal(ANN).snapshot


def outcome(registry: Registry, store: ProposalStore, draft: Proposal, files: dict[str, str | None]) -> str:
    """Return the refusal of a proposal of somebody who may read and propose `nest` and new skills, or ""."""
    name = draft.name.rpartition("/")[2]
    try:
        intake.propose(registry, store, draft, {SKILL_MD: manifest(name), **files}, seen(registry, "nest", "up/*"))
    except RequestError as error:
        return str(error).replace(draft.name, "NAME").replace(name, "NAME")
    return ""


@each_row(("withheld_name", "free_name"), [
    ("plans/secret/new", "plans/others/new"),  # in a withheld skill
    ("plans", "plots"),  # around it
    ("nest/egg", "nest/ham"),  # in a skill that is seen
    ("up/new", "un/new"),  # in a withheld one, which the grant of the skills in it does not show
])  # fmt: skip
def test_refusal_for_a_withheld_skill_reads_as_for_a_free_name(
    tmp_path: Path, withheld_name: str, free_name: str
) -> None:
    for path in ("nest", "nest/egg", "plans/secret", "up"):
        write_skill(tmp_path / "skills" / path)
    store = ProposalStore(tmp_path / "kept")
    with Registry([tmp_path / "skills"]) as registry:
        for base in ("", "sha256:" + "0" * 64):
            drafts = (replace(DRAFT, name=name, base=base) for name in (withheld_name, free_name))
            assert len({outcome(registry, store, draft, {}) for draft in drafts}) == 1


def test_skill_with_withheld_nested_skills_is_changed_but_not_where_these_are(
    withheld: Registry, store: ProposalStore
) -> None:
    draft = replace(DRAFT, name="nest", base=base_of(withheld, "nest"))
    assert outcome(withheld, store, draft, {"notes.md": "better\n"}) == ""
    (proposal,) = store.list()
    root = withheld.roots[0].path
    (Path(root) / "nest/egg/notes.md").write_text("changed meanwhile\n")
    withheld.refresh()
    found = review(withheld, store, proposal, seen(withheld, "nest"))
    assert not found.is_outdated
    assert not [path for path in (*found.before, *found.after) if "egg" in path]
    approve(withheld, store, proposal.id, reviewer=LOCAL)
    assert (Path(root) / "nest/notes.md").read_text() == "better\n"
    assert (Path(root) / "nest/egg/notes.md").read_text() == "changed meanwhile\n"
    assert sorted(withheld.snapshot.skills) == ["nest", "nest/egg", "plans/secret", "up"]
    for path in ("egg/new.md", "Egg/new.md", "egg/notes.md"):
        assert outcome(withheld, store, replace(draft, base=base_of(withheld, "nest")), {path: "x"}) == ""
        with pytest.raises(UnwritableError, match="is no file of nest"):
            approve(withheld, store, store.list()[0].id, reviewer=LOCAL)


def test_refusal_shows_no_local_path_of_an_origin(tmp_path: Path, store: ProposalStore) -> None:
    write_skill(tmp_path / "private" / "tea")
    mirrored = MirroredRoot(str(tmp_path / "private"), "/srv/private/skills.zip")
    with Registry([mirrored]) as registry:
        message = refusal(registry, store, replace(DRAFT, name="tea"), {SKILL_MD: manifest("tea")})
    assert "comes from skills.zip" in message and "/srv" not in message


NAMES_LIKE_OTHERS = ["caf\u00e9/tea", "cafe\u0301/tea", "CAFE\u0301/tea", "Coffee/tea", "CAFE\u0301"]


@each_row("name", [*NAMES_LIKE_OTHERS, "\ufeffgreen", "a\u2800b", "\u2800"])
def test_name_that_a_platform_or_person_cannot_tell_from_another_is_refused(tmp_path: Path, name: str) -> None:
    write_files(tmp_path / "skills", skills("caf\u00e9"))
    why = "in or around" if name in NAMES_LIKE_OTHERS else "invisible|not a name"
    assert_refused(tmp_path, replace(DRAFT, name=name), {SKILL_MD: manifest("tea")}, why)
