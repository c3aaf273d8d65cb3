"""A generated catalogue of 5,568 skills to measure search quality on.

Each skill combines an action, an object and an audience. Many skills are similar, as in a company's
catalogue, and each object has a short name that is in the tags only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from mcp_skills_server.model import SKILL_MD, Reading, Skill, SkillFile, Standing

_ACTIONS: Final = {
    "write": ("Writes {} from scratch", "has to be drafted", "Before writing, Structure, Wording"),
    "review": ("Reviews {} and lists what to improve", "needs feedback", "What to look at, Severity of findings"),
    "explain": ("Explains {} in plain words", "is not understood", "The short answer, An everyday comparison"),
    "fix": ("Finds and repairs faults in {}", "is broken or fails", "Reproduce the fault, Narrow it down, Repair"),
    "migrate": ("Moves {} to another system without loss", "has to be replaced", "Inventory, Dry run, Cutover"),
    "plan": ("Plans {} step by step, with estimates and risks", "needs a schedule", "Milestones, Risks, Estimates"),
    "test": ("Tests {} and reports what fails", "must be verified before it goes live", "Cases, Edge cases, Verdict"),
    "automate": ("Automates {} with a script", "is done by hand again and again", "Trigger, Script, Safety net"),
    "document": ("Documents {} for newcomers", "nobody knows how it works", "Audience, Walkthrough, Glossary"),
    "optimise": ("Makes {} faster or cheaper", "is slow or costs too much", "Measure first, Bottlenecks, Savings"),
    "audit": ("Audits {} for compliance", "an auditor asks for evidence", "Scope, Evidence, Sign-off"),
    "summarise": ("Summarises {} in a few sentences", "there is no time to read all", "Key points, Left out"),
    "convert": ("Converts {} between file formats", "another format is needed", "Input, Mapping, Output"),
    "compare": ("Compares alternatives for {}", "one of several options must be chosen", "Criteria, Scoring, Advice"),
    "monitor": ("Watches {} and raises an alarm", "trouble must be noticed early", "Signals, Thresholds, On call"),
    "tidy": ("Cleans up {} and removes what is obsolete", "clutter has grown", "Keep or drop, Archive, Delete"),
}
"""Verb: description, condition of use, headings."""

_OBJECTS: Final = """
dev release-notes|release notes that tell users what is new in a version|relnotes
dev pull-requests|pull requests and the discussion below them|pr
dev api-clients|client libraries that call a web service|sdk
dev feature-flags|switches that turn features on and off at run time|toggles
dev monorepos|one repository that holds many packages|bazel
ops kubernetes-clusters|Kubernetes clusters, their nodes and workloads|k8s
ops dockerfiles|Dockerfiles and container images|oci
ops ci-pipelines|continuous integration pipelines that build every commit|jenkins
ops tls-certificates|TLS certificates and when they expire|https
ops terraform-modules|infrastructure as code in Terraform|iac
ops alert-rules|alert rules that wake somebody at night|pagerduty
ops dns-records|DNS records of domains and subdomains|nameserver
data slow-queries|database statements that take too long|sql
data spreadsheets|spreadsheets with formulas and pivot tables|excel
data etl-jobs|jobs that load a warehouse every night|airflow
data dashboards|dashboards with charts for managers|tableau
data regular-expressions|patterns that match text|regex
data json-documents|JSON documents and the schemas that describe them|jsonschema
security api-keys|API keys, tokens and other secrets|credentials
security threat-models|threat models of a system and its attackers|stride
security dependency-updates|updates of third party packages with known holes|cve
security firewall-rules|rules about which traffic may pass|ports
security privacy-notices|notices that tell what personal data is kept|gdpr
sales price-lists|price lists, discounts and tiers|pricing
sales product-demos|demonstrations of the product to buyers|presales
sales tender-responses|answers to public tenders|rfp
sales landing-pages|web pages that visitors of a campaign arrive at|conversion
finance expense-reports|expense reports of business trips|reimbursement
finance payroll-runs|monthly payment of wages|salary
finance purchase-orders|orders to suppliers and their approval|procurement
finance bank-statements|bank statements and their bookings|reconciliation
finance stock-portfolios|shares, bonds and their risk|investing
people job-adverts|advertisements of open positions|hiring
people onboarding-plans|first weeks of a new colleague|newcomer
people holiday-rosters|who is away when|vacation
people employment-contracts|contracts between employer and employee|labour-law
design icon-sets|small pictures for buttons and menus|svg
design slide-decks|slides for a talk|powerpoint
design accessibility-reports|whether people with disabilities can use a page|a11y
design print-layouts|layouts of brochures for the printing press|indesign
science literature-surveys|overviews of published papers on a question|citations
science grant-applications|applications for research money|funding
science sensor-readings|measurements from devices in the field|telemetry
science training-sets|labelled examples for machine learning|ml
science neural-networks|neural networks and their layers|deep-learning
home meal-plans|meals for a week and the shopping list|recipes
home travel-itineraries|journeys: trains, flights, hotels and sights|trips
home workout-routines|exercises for strength and endurance|fitness
home bicycle-repairs|brakes, chains and flat tyres of bicycles|bike
home birthday-parties|parties for children and grown-ups|celebration
law rental-contracts|contracts between landlord and tenant|lease
law licence-texts|licences of open source software|spdx
law terms-of-service|terms that users of a service agree to|tos
law patent-claims|claims of an invention|inventor
law complaint-letters|letters that complain about goods or services|consumer
teaching lesson-outlines|outlines of lessons for a school class|curriculum
teaching essay-feedback|remarks on pupils' essays|marking
teaching spelling-drills|words that are often misspelt|orthography
"""
"""Lines of domain, name, description, and a short name for the tags."""

_AUDIENCES: Final = {
    "": "",
    "for-startups": "Made for small companies that have just begun.",
    "for-enterprises": "Made for large organisations with many departments.",
    "for-beginners": "Takes nothing for granted and defines each term.",
    "with-templates": "Comes with forms that only have to be filled in.",
    "in-a-hurry": "Leaves out whatever can wait until tomorrow.",
}


def generated_skills(count: int) -> dict[str, Skill]:
    """Return up to `count` skills by path, those without an audience first, in memory only."""
    return {skill.path: skill for skill in islice(_all(), count)}


def labelled_queries() -> list[dict[str, Any]]:
    """Return queries for the fixtures and these skills, labelled by hand with the expected paths."""
    return json.loads(Path(__file__).with_name("labelled_queries.json").read_text(encoding="utf-8"))


def _all() -> Iterator[Skill]:
    objects = [line.split(" ", 1) for line in _OBJECTS.strip().splitlines()]
    for audience, (domain, fields), verb in product(_AUDIENCES, objects, _ACTIONS):
        slug, what, short = fields.split("|")
        does, when, headings = _ACTIONS[verb]
        name = "-".join(part for part in (verb, slug, audience) if part)
        title = name.replace("-", " ").capitalize()
        description = f"{does.format(what)}. {_AUDIENCES[audience]} Use when it {when}.".replace("  ", " ")
        frontmatter = {"name": name, "description": description, "metadata": {"tags": f"{domain}, {short}"}}
        all_headings = (title, *headings.split(", "))
        opening = f"# {title}\n\n{does.format(what)} when it {when}."
        for heading in all_headings[1:]:
            opening += f"\n\n## {heading}\n\nFor {what}: what to do first and what after it."
        reading = Reading(frontmatter, title, Standing.VALID, (), all_headings, opening)
        path = f"{domain}/{name}"
        file = SkillFile(0, f"{path}/{SKILL_MD}", 1)
        yield Skill(path, 0, path, reading, MappingProxyType({SKILL_MD: file}), (), Standing.VALID)
