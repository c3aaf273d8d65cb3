"""Deterministic overviews of synthetic skills."""

from __future__ import annotations

import re
from itertools import product
from typing import Final

from mcp_skills_server.dialects.runtime import Offer, Overview

_AREAS: Final = re.findall(
    r"\w+",
    "archive audit billing booking budget cargo census charter clinic colour contract courier credit customs "
    "depot design donor draft energy estate export faculty ferry fleet forecast freight garden grant harbour "
    "health hiring import intake invoice journal kitchen ledger lending library licence market medal meter museum "
    "notice orchard parcel patent payroll permit pension pilot planning policy postal print pupil quality quarry "
    "queue recall refund rental repair report reserve return roster route safety salary sample school season "
    "security sensor shelf signal spare stock storage supplier survey tariff tax tender ticket timber tour trade "
    "transit tuition vendor vessel voucher warranty waste water weather yard",
)
_TASKS: Final = re.findall(
    r"\w+",
    "adding balancing batching booking brief budget bundle check checklist cleaning closing comparison conversion "
    "copying counting dashboard deadline delivery digest draft drafting entry estimate export extraction filing "
    "forecast form formatting grading guide handover import index inspection inventory key labels layout letter "
    "lines linking listing lookup mapping match memo merge minutes monitor naming notes numbers opening order "
    "outline overview packing page patch plan planning poster preview pricing proof query ranking reading receipt "
    "record redaction reminder renewal report request review rotation routing rules sampling schedule score "
    "search setup signing sorting split summary survey table template testing tracking transfer translation "
    "update upload voice wording",
)


def build_overview(count: int, folders: int = 0) -> Overview:
    """Return `count` skills, flat or in folders of very different size.

    Descriptions have 30 to 1,000 characters.
    """
    offers: list[Offer] = []
    pairs = [f"{area}-{task}" for area, task in product(_AREAS, _TASKS)]
    step = len(pairs) // count
    for number in range(count):
        name = pairs[number * step]
        words = f"Does the {name.replace('-', ' ')} for a team. Use when somebody asks for it"
        description = words + ", or wants to know how it went last time" * (number * 7 % 23) + "."
        # Folder sizes halve: a half, a quarter, and so on down to one skill.
        rank = number * 7_919 % count
        folder = min((count // (rank + 1)).bit_length() - 1, folders - 1) if folders else 0
        path = f"{_AREAS[folder * 3]}/{name}" if folders else name
        offers.append(Offer(name, description, path=path))
    return Overview(sorted(offers, key=lambda offer: offer.path))
