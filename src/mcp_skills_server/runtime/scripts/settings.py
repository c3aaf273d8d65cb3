"""The settings of script execution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Mode: TypeAlias = Literal["required", "off"]
"""The sandbox mode: "required" refuses to run scripts without one, "off" uses none."""


@dataclass(frozen=True, slots=True)
class ScriptSettings:
    """The operator's settings of script execution.

    Attributes:
        timeout_s: the default time limit of a call.
        max_timeout_s: the largest time limit that a call may set.
        output_bytes: the cap of stdout and stderr, each.
        concurrent: the concurrency limit of all runs.
        memory_bytes: the memory limit of one process.
        file_bytes: the size limit of one file that a script writes.
        workspace_bytes: the size limit of all files of a run, above which the run is ended; and of
            a session's work directory, above which it is emptied.
        sandbox: the sandbox mode.
        wait_for_sandbox: run the sandbox's trial at the start. False runs it in a thread for which
            script calls wait; if it fails, this is logged and every call is refused.
        network: whether scripts in the sandbox may use the network.
        network_of: the skills (`policy.reference`) that may use the network even if others may not.
        secrets: variables for scripts by skill (`policy.reference`); only those that the skill's
            `skill.toml` declares are set.
        folders: folders that scripts in the sandbox may read and write.
        interpreters: programs by extension (`.py`), which override the built-in map.
        env: variables that callers may set for every skill, in addition to those it declares.
        origins: sites and archives whose approved skills may run, as `show` prints their origin.
        roots: whether scripts of a root may run, by its folder as given and absolute. In a root of
            copies only approved skills may run. Roots that are not named depend on `origins`.
        approvals: the path of the approvals file; None for the user's default.
    """

    timeout_s: float = 60
    max_timeout_s: float = 600
    output_bytes: int = 256 << 10
    concurrent: int = 4
    memory_bytes: int = 2 << 30
    file_bytes: int = 64 << 20
    workspace_bytes: int = 256 << 20
    sandbox: Mode = "required"
    wait_for_sandbox: bool = True
    network: bool = False
    network_of: tuple[str, ...] = ()
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    folders: tuple[str, ...] = ()
    interpreters: Mapping[str, str] = field(default_factory=dict[str, str])
    env: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    roots: Mapping[str, bool] = field(default_factory=dict[str, bool])
    approvals: str | None = None
