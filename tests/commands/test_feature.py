"""The seam of features: a small one is a file and a row, and has its option, route, reader, gauge and line of state."""

from __future__ import annotations

import sys
from pathlib import Path

from web.http_wire import http_serving
from wire import FIXTURES

SEEN = """
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from mcp_skills_server import cli
from mcp_skills_server.commands.features import table
from mcp_skills_server.commands.features.feature import Feature
from mcp_skills_server.commands.fields import option
from mcp_skills_server.telemetry.gauge import Gauge
from mcp_skills_server.web.part import Routes


class Seen(Feature, heading="Seen (--transport http)"):
    seen: str | None = option(None, "Show at this path which methods were called.", metavar="PATH")

    def start(self, server):
        self.methods = []
        self.end = server.runtime.events.subscribe(lambda event: self.methods.append(event.method))

    def part(self, server):
        answer = lambda _: PlainTextResponse(" ".join(self.methods))
        return Routes(lambda _: [Route(self.seen, answer)])

    def gauges(self):
        return {"skills_seen": Gauge("Calls that were seen.", len(self.methods))}

    def state(self):
        return f"seen: {len(self.methods)}"

    def stop(self):
        self.end()


table.FEATURES = (*table.FEATURES, Seen)
cli.main()
"""


def test_a_feature_in_one_file_and_one_row(tmp_path: Path) -> None:
    program = tmp_path / "seen.py"
    program.write_text(SEEN)
    variable = {"MCP_SKILLS_SEEN": "/seen"}  # the option's own, without a line for it anywhere
    with http_serving(FIXTURES, "--metrics", command=[sys.executable, str(program)], environment=variable) as server:
        server.send("GET", "/.well-known/agent-skills/index.json")
        assert server.send("GET", "/seen").body == b"GET"
        assert b"skills_seen 1.0" in server.send("GET", "/metrics").body
        assert b"seen: 1" in server.send("GET", "/readyz?verbose").body
