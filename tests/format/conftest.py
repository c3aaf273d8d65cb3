"""What the tests of the formats share."""

from __future__ import annotations

import pytest
import yaml

from mcp_skills_server.format import yaml_reader


@pytest.fixture(params=["libyaml", "without libyaml"])
def _each_parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fast parser, and the one that is there when PyYAML was built without it."""
    if request.param == "without libyaml":
        monkeypatch.setattr(yaml_reader, "_PARSER", yaml.SafeLoader)
