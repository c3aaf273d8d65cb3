"""`proposals`: look at what models proposed, and approve or reject it."""

from __future__ import annotations

import os
from typing import Literal

import click

from mcp_skills_server.authoring import lift
from mcp_skills_server.catalog.registry import Registry
from mcp_skills_server.catalog.roots import Limits
from mcp_skills_server.commands.features.records import AuditOptions, start_audit
from mcp_skills_server.commands.fields import flag, many, option, output_format, takes
from mcp_skills_server.commands.opening import proposals_at
from mcp_skills_server.commands.options import ProposalOptions, index_of
from mcp_skills_server.commands.printing import say, say_json, say_lines, say_table
from mcp_skills_server.errors import UsageError
from mcp_skills_server.proposals import approval
from mcp_skills_server.proposals.review import Review, review
from mcp_skills_server.proposals.store import LOCAL, Proposal, ProposalStore
from mcp_skills_server.telemetry.events import Events, Use


class LookOptions(ProposalOptions):
    root: tuple[str, ...] = many(
        "The folder that is served, where it is not the one that the proposal was made for, or "
        "this one with git.",
        "ROOT",
    )
    form: Literal["table", "json"] = output_format("table", "json")


class ListOptions(LookOptions):
    every: bool = flag("Also list decided proposals.", "--all")


class DecisionOptions(LookOptions, AuditOptions, heading="The decision"):
    message: str = option("", "A message to the proposer.", metavar="TEXT")


class ApproveProposalOptions(DecisionOptions, heading="The decision"):
    scripts: bool = flag("Also accept the scripts that it brings, which you have read.")


@click.group()
def proposals() -> None:
    """Review the proposals of models to a server with --proposals: approve or reject them.

    \b
    Examples:
      mcp-skills-server serve ~/skills --proposals ~/proposals
      mcp-skills-server proposals list --proposals ~/proposals
      mcp-skills-server proposals diff ID --proposals ~/proposals
      mcp-skills-server proposals approve ID --proposals ~/proposals --message "thank you"
    """


@proposals.command("list")
@takes(ListOptions)
def list_(options: ListOptions) -> None:
    """Print the pending proposals, the newest first."""
    shown = [
        proposal
        for proposal in _store(options).list()
        if options.every or proposal.state == "pending"
    ]
    if options.form == "json":
        say_json([proposal.as_json() for proposal in shown])
        return
    rows = [
        (
            proposal.id,
            proposal.name,
            proposal.principal,
            proposal.state,
            " ".join(proposal.reason.split()),
        )
        for proposal in shown
    ]
    header = ("ID", "SKILL", "PRINCIPAL", "STATE", "REASON")
    say_table(header, rows, empty="no proposal is pending")


@proposals.command()
@click.argument("id_", metavar="ID")
@takes(LookOptions)
def show(options: LookOptions, id_: str) -> None:
    """Print ID in full: its proposer and reason, its problems, similar skills, and its files."""
    store = _store(options)
    reviewed = _reviewed(options, store, id_)
    proposal = reviewed.proposal
    measured = lift.remembered(index_of(None), reviewed.digest)
    texts = {path: raw.decode("utf-8", "replace") for path, raw in store.files(proposal).items()}
    if options.form == "json":
        notes = {key: getattr(reviewed, key) for key in ("problems", "scripts", "alike")}
        notes["lift"] = measured
        files = {**texts, **dict.fromkeys(proposal.removed)}  # null for a removed file
        say_json({**proposal.as_json(), "files": files, **notes, "outdated": reviewed.is_outdated})
        return
    kind = "a new skill" if proposal.is_new else "a change"
    say(f"{proposal.id}: {proposal.name}, {kind}, {proposal.state}")
    host, message = proposal.host or "unknown", proposal.message or "no message"
    say(f"  proposed by {proposal.principal} at {proposal.proposed}, host {host}")
    say(f"  reason: {proposal.reason}")
    if proposal.reviewer:
        say(f"  {proposal.state} by {proposal.reviewer} at {proposal.decided}: {message}")
    if reviewed.is_outdated:
        say("  outdated: the skill has changed since; it cannot be approved")
    notes = {"wrong": reviewed.problems, "script": reviewed.scripts, "alike": reviewed.alike}
    notes["lift"] = measured
    for name, lines in notes.items():
        for line in lines:
            say(f"  {name}: {line}")
    for path in proposal.removed:
        say(f"  removes {path}")
    for path, text in texts.items():
        say(f"--- {path}")
        say_lines(text.removesuffix("\n"))


@proposals.command()
@click.argument("id_", metavar="ID")
@takes(LookOptions)
def diff(options: LookOptions, id_: str) -> int:
    """Print what ID changes, first in the skill's use and permissions. Exit code 1 if anything."""
    reviewed = _reviewed(options, _store(options), id_)
    proposal, difference = reviewed.proposal, reviewed.difference
    if options.form == "json":
        first, lines = (), ()
        if difference is not None:
            first, lines = difference.important, difference.others
        say_json(proposal.as_json() | {"first": first, "lines": lines})
    elif difference is not None:
        say(f"{proposal.name}: {proposal.id}")
        for line in difference.important:
            say(f"  {line}")
        say_lines("\n".join(difference.others))
    return int(difference is not None)


@proposals.command()
@click.argument("id_", metavar="ID")
@takes(ApproveProposalOptions)
def approve(options: ApproveProposalOptions, id_: str) -> None:
    """Write ID into its folder atomically. A server that follows the folder shows it at once."""
    store = _store(options)
    with _registry(store.get(id_), options) as registry:
        events = _audited(options)
        made = approval.approve(
            registry, store, id_, reviewer=LOCAL, message=options.message, scripts=options.scripts
        )
    _record(events, "approve", made)


@proposals.command()
@click.argument("id_", metavar="ID")
@takes(DecisionOptions)
def reject(options: DecisionOptions, id_: str) -> None:
    """Reject ID; its proposer sees --message."""
    events = _audited(options)
    made = approval.reject(_store(options), id_, reviewer=LOCAL, message=options.message)
    _record(events, "reject", made)


def _store(options: LookOptions) -> ProposalStore:
    store = proposals_at(options.proposals, [os.path.realpath(root) for root in options.root])
    if store is None:
        raise UsageError("give the folder of the proposals by --proposals DIR")
    return store


def _reviewed(options: LookOptions, store: ProposalStore, id_: str) -> Review:
    proposal = store.get(id_)
    with _registry(proposal, options) as registry:
        return review(registry, store, proposal, registry.snapshot)


def _registry(proposal: Proposal, options: LookOptions) -> Registry:
    """Return a registry of the given roots, or else of the root that the proposal is for."""
    return Registry([*map(os.path.abspath, options.root)] or [proposal.root], Limits(hidden=True))


def _audited(options: AuditOptions) -> Events:
    """Return events with the audit log, if any, as reader; it is opened before any decision."""
    events = Events()
    start_audit(options, events, stdout_is_free=False)
    return events


def _record(events: Events, what: Literal["approve", "reject"], proposal: Proposal) -> None:
    use = Use(what, proposal.name, proposal.id, proposal.base)
    events.emit_decision(use, proposer=proposal.principal, reviewer=LOCAL)
    say(f"{proposal.id}: {proposal.name} is {proposal.state}")
