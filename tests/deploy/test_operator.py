"""An agent of the certified `oidc-provider`, at two replicas behind haproxy.

It runs where `make interop` has installed the provider, and is skipped where it has not.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlencode

import pytest

from deploy.test_walk import deployed, names
from interop import test_oidc_provider as provider
from web.test_oauth import own
from wire import DEADLINE

pytestmark = [pytest.mark.needs_program("haproxy", "redis-server"), provider.pytestmark]

GRANTED = """
[oauth]
issuer = "{issuer}"
audience = "{audience}"
groups-claim = "realm_access.roles"
[[grant]]
who = ["group:finance"]
skills = ["finance/**"]
"""


@contextmanager
def issuer(port: int) -> Iterator[SimpleNamespace]:
    """The provider, for the page and the endpoint behind this port."""
    with provider.issuer(port) as url:
        yield SimpleNamespace(url=url)


def token_of_an_agent(url: str, audience: str) -> str:
    """Ask the provider for a token by a client's own secret (RFC 6749, 4.4), for this resource (RFC 8707)."""
    asked = {
        "grant_type": "client_credentials", "client_id": "agent", "client_secret": "a made-up secret of an agent",
        "scope": "skills:read", "resource": audience,
    }  # fmt: skip
    with urllib.request.urlopen(f"{url}/token", urlencode(asked).encode(), timeout=DEADLINE) as answer:
        return json.load(answer)["access_token"]


def test_an_agent_of_a_certified_provider_goes_through_the_proxy(tmp_path: Path) -> None:
    with deployed(tmp_path, issuer, GRANTED) as deployment:
        proxy = deployment.proxy
        deployment.tokens["agent"] = token_of_an_agent(deployment.login.url, own(proxy.port))
        clients = [deployment.at(each, "agent") for each in (proxy, *deployment.replicas)]
        assert [names(each) for each in clients] == [{"refunds", "tax"}] * 3
