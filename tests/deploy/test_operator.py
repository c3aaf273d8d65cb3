"""An operator's walk: the certified `oidc-provider`, two replicas with the page, Redis, and haproxy before them.

It runs where `make interop` has installed the provider, and is skipped where it has not.
"""

from __future__ import annotations

import json
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlencode

import pytest

from deploy.test_walk import HEARD, PROMPTS, call, deployed, names
from interop import test_oidc_provider as provider
from interop.test_oidc_provider import Browser
from web.proxies import until
from web.test_oauth import own
from web.ui.serving import get, words
from wire import DEADLINE, write_skill

pytestmark = [pytest.mark.needs_program("haproxy", "redis-server"), provider.pytestmark]

GRANTED = """
ui = true
metrics = true
[oauth]
issuer = "{issuer}"
audience = "{audience}"
ui-client-id = "page"
groups-claim = "realm_access.roles"
[[grant]]
who = ["group:finance"]
skills = ["finance/**"]
[[grant]]
who = ["token:robot"]
skills = ["**"]
may = ["admin"]
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


def test_a_person_and_an_agent_of_a_certified_provider_go_through_the_proxy_and_outlive_a_replica(
    tmp_path: Path,
) -> None:
    with deployed(tmp_path, issuer, GRANTED) as deployment:
        proxy, person = deployment.proxy, Browser()
        page = f"http://127.0.0.1:{proxy.port}/ui"

        # A person signs in at the provider's own forms and sees what the grant gives.
        place, text = person.get(f"{page}/oauth/begin")
        place, text = person.submit(place, text, login="ann", password="x")
        place, text = person.submit(place, text)  # consent
        assert place.startswith(f"{page}/oauth/callback"), text
        shown = words(person.get(f"{page}/")[1])
        assert "refunds" in shown and "tax" in shown and "papers" not in shown and " ann " in shown

        # An agent with a token of the provider lists, proves and loads, at the proxy and at each replica.
        deployment.tokens["agent"] = token_of_an_agent(deployment.login.url, own(proxy.port))
        clients = [deployment.at(each, "agent") for each in (proxy, *deployment.replicas)]
        assert [names(each) for each in clients] == [{"refunds", "tax"}] * 3
        session = call(clients[0], "load", names=["tax"])[1]["session"]

        # A new skill is heard of at both replicas, and one that the grant does not give is not.
        streams = [each.listen(number, **HEARD) for number, each in enumerate(clients)]
        write_skill(tmp_path / "skills" / "research" / "notes")
        write_skill(tmp_path / "skills" / "finance" / "audit")
        for stream, each in zip(streams, clients, strict=True):
            stream.until(PROMPTS)
            assert names(each) == {"refunds", "tax", "audit"}

        # One replica dies: the person stays signed in, and the conversation goes on.
        deployment.replicas[0].process.send_signal(signal.SIGKILL)
        deployment.replicas[0].process.wait(DEADLINE)
        again = deployment.at(proxy, "agent")
        loaded = call(again, "load", session=session, names=["audit"], mode="add")[1]["active_skills"]
        assert [each["name"] for each in loaded] == ["tax", "audit"]
        proxy.sees("replica-1", "DOWN")
        assert "audit" in words(person.get(f"{page}/")[1])

        # The operator reads what there is, and takes the grant away: nobody sees a skill any more.
        left = deployment.replicas[1]
        metrics = get(left, "/metrics", Authorization="Bearer a-made-up-token-0123456789")
        assert metrics.status == 200 and b"skills_redis_up 1.0" in metrics.body, metrics.body
        config = tmp_path / "config.toml"
        config.write_text(config.read_text().replace("group:finance", "group:nobody"))
        left.process.send_signal(signal.SIGHUP)
        until(lambda: not deployment.at(proxy, "agent").every_skill())
        assert "refunds" not in words(person.get(f"{page}/")[1])
