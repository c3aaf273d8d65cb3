"""The settings of scripts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Mode: TypeAlias = Literal["required", "off"]
"""Whether scripts run in a sandbox, without which they do not run, or in none."""


@dataclass(frozen=True, slots=True)
class ScriptSettings:
    """The settings by which scripts of skills are run.

    Attributes:
        timeout_s: the time limit of a call that names none.
        max_timeout_s: the longest that a call may ask for.
        output_bytes: how much is kept of each of the two streams.
        concurrent: scripts that may run at once.
        runs: those of one client; None for all but one.
        memory_bytes: of one process.
        file_bytes: of one file that a script writes.
        workspace_bytes: of all files that a script makes, above which it is ended; and of a
            session's work directory, above which it is emptied.
        wait_for_sandbox: try bubblewrap out first. False does so in a thread that runs wait for,
            and where it does not work, logs that and refuses every run.
        network: whether scripts in the sandbox may use the network.
        network_of: skills whose scripts may use it although others may not, as `policy.reference`
            has them.
        secrets: by skill (`policy.reference`), variables for its scripts, of those that its
            `skill.toml` declares.
        folders: folders that scripts in the sandbox may read and write.
        interpreters: program by extension (`.py`), over the built-in map.
        env: names of variables that callers may set for every skill, beside those that a skill
            declares.
        origins: sites and archives whose approved skills may run, as `show` prints their origin.
        roots: whether scripts of a root may run, by its folder as given and absolute; of a root
            with copies those that are approved. What is not named here is decided by `origins`.
        approvals: the file of approvals; None for the user's own.
    """

    timeout_s: float = 60
    max_timeout_s: float = 600
    output_bytes: int = 256 << 10
    concurrent: int = 4
    runs: int | None = None
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
