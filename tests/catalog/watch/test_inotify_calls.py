"""What an instance of inotify answers once it is closed: an error of the system, whatever is asked."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("inotify is of Linux", allow_module_level=True)

from mcp_skills_server.catalog.watch import inotify_calls as calls
from mcp_skills_server.catalog.watch.inotify_calls import Inotify


@pytest.mark.parametrize("what", ["read", "add", "remove"])
def test_what_is_closed_answers_with_an_error_of_the_system(tmp_path: Path, what: str) -> None:
    it = Inotify()
    watch = it.add(str(tmp_path), calls.CREATE)
    (tmp_path / "file").touch()  # there would be something to read
    it.close()
    it.close()
    assert it.fileno() == -1
    calls_of = {
        "read": lambda: it.read(0),
        "add": lambda: it.add(str(tmp_path), calls.CREATE),
        "remove": lambda: it.remove(watch),
    }
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        calls_of[what]()
