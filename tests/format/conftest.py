"""Fixtures of the format tests."""

from __future__ import annotations

import pytest
import yaml

from mcp_skills_server.format import yaml_reader


@pytest.fixture(params=["libyaml", "without libyaml"])
def _each_parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run with the fast parser, and with the one of a PyYAML without libyaml."""
    assert yaml_reader.IS_FAST is (yaml_reader._PARSER is not yaml.SafeLoader) is yaml.__with_libyaml__
    if request.param == "without libyaml":
        monkeypatch.setattr(yaml_reader, "_PARSER", yaml.SafeLoader)
