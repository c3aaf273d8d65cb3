"""All features of `serve`. A new one is a module of this package and a row here."""

from __future__ import annotations

from typing import Final

from mcp_skills_server.commands.features.endpoints import (
    OAuth,
    PageFeature,
    Publishing,
    SkillsProtocol,
    Webhook,
)
from mcp_skills_server.commands.features.feature import Feature
from mcp_skills_server.commands.features.metrics import PrometheusMetrics
from mcp_skills_server.commands.features.records import Audit, Traces, UsageCounts
from mcp_skills_server.commands.features.replicas import Replicas
from mcp_skills_server.commands.features.shown import PromptsFeature, ToolsFeature
from mcp_skills_server.commands.runtime_options import ScriptsFeature, SearchByMeaning

FEATURES: Final[tuple[type[Feature], ...]] = (
    ToolsFeature,
    PromptsFeature,
    ScriptsFeature,
    OAuth,
    Replicas,
    Publishing,
    Webhook,
    SkillsProtocol,
    PrometheusMetrics,
    PageFeature,
    SearchByMeaning,
    Audit,
    UsageCounts,
    Traces,
)
"""All features, in the order of their start and of their options in the help."""
