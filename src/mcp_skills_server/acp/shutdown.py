"""When the proxy is to end: the editor has gone, or a signal has come."""

from __future__ import annotations

import os

from mcp_skills_server.transport.descriptors import wait_for_hang_up


class Shutdown:
    """Waits for that.

    An editor that has gone shows at once, even while the agent reads nothing and so nobody reads the editor.

    Args:
        editor: the descriptor that the editor writes to.

    Attributes:
        at_once: the grace begins now, whatever the agent still says.
    """

    def __init__(self, editor: int) -> None:
        self.at_once = False
        self._deaf = False
        self._editor = editor
        self._woken, self._waker = os.pipe()

    def begin(self, *, at_once: bool = False, deaf: bool = False) -> None:
        """The editor has gone. Safe in a handler of signals, and to call twice.

        Args:
            at_once: a signal wants the end.
            deaf: it is the agent that reads no more, which alone is no reason to end it.
        """
        self.at_once = self.at_once or at_once
        self._deaf = self._deaf or deaf
        os.write(self._waker, b"x")  # no lock, for a second signal may come while the first is being handled

    def wait(self) -> None:
        """Wait for that. Where the agent reads no more, the editor's descriptor is closed on the way."""
        open_ = True
        while True:
            if open_ and wait_for_hang_up(self._editor, self._woken):
                return
            os.read(self._woken, 1)
            if not self._deaf or self.at_once:
                return
            if open_:
                os.close(self._editor)
                open_ = False
