"""A skill with misbehaving scripts, and helpers that find the processes they leave."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from catalog.forest import write_files

SKILL_MD = (
    "---\nname: zoo\ndescription: Holds scripts that misbehave, for tests.\n"
    "metadata:\n  env: API_KEY LDAP_URL, TZ lower\n---\n\nLook, do not touch.\n"
)

PYTHON = {
    "tell": "import json, os, sys; print(json.dumps([sys.argv, dict(os.environ), os.getcwd(), os.listdir('.')]))",
    "read": "import sys; print(repr(sys.stdin.read()))",
    "sleep": "import time\nprint('awake', flush=True)\ntime.sleep(600)",
    "stubborn": "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('no', flush=True)\n"
    "while True: time.sleep(600)",
    "polite": "import signal, sys, time\n"
    "def end(*_):\n    print('goodbye', flush=True)\n    sys.exit(0)\n"
    "signal.signal(signal.SIGTERM, end)\nprint('here', flush=True)\ntime.sleep(600)",
    "flood": "import os\nblock = b'x' * (1 << 20)\nfor _ in range(10):\n    os.write(1, block)\n    os.write(2, block)",
    "hog": "blocks = []\nwhile True: blocks.append(bytearray(16 << 20))",
    "huge": "with open('huge', 'wb') as file:\n    while True: file.write(bytes(1 << 20)); file.flush()",
    "many": "import sys, time\nfor each in range(40):\n    open(f'part{each}', 'wb').write(bytes(1 << 20))\n"
    "if len(sys.argv) > 1: time.sleep(600)",
    "deep": "import os\nfor _ in range(1100):\n    os.mkdir('deep'); os.chdir('deep')\nopen('end', 'w').close()",
    "locked": "import os\nos.makedirs('a/b'); open('a/b/c', 'w').close(); os.chmod('a/b', 0); os.chmod('a', 0)",
    "connect": "import socket, sys\nwith socket.create_connection(('127.0.0.1', int(sys.argv[1])), 2) as s: "
    "print(s.recv(9).decode())",
    "spoil": "import os\ntop = os.environ['SKILL_DIR']\nos.chmod(top, 0o755)\nopen(top + '/new', 'w').close()",
    "snoop": "import os, sys\nfor each in os.listdir('/proc'):\n    try:\n"
    "        sys.stdout.write(open(f'/proc/{each}/environ', errors='replace').read())\n    except OSError: pass",
    "want": "import importlib, socket, sys\nif sys.argv[1] != 'network': importlib.import_module(sys.argv[1])\n"
    "socket.create_connection(('192.0.2.1', 9), 2)",
    "look": "import os, sys\nprint(os.path.exists(sys.argv[1]), os.getuid())",
    "bytes": "import os, sys\nos.write(1, b'\\xff\\xfe' + 'äö€'.encode())",
    "shared": "import mmap, time\nheld = []\nwhile len(held) < 16:\n    held.append(mmap.mmap(-1, 64 << 20))\n"
    "    held[-1].write(bytes(64 << 20))\ntime.sleep(600)",
    "nameless": "import os, time\nheld = []\nfor each in range(16):\n    held.append(open(f'x{each}', 'wb', 0))\n"
    "    os.unlink(f'x{each}')\n    held[-1].write(bytes(1 << 20))\ntime.sleep(600)",
    "breed": "import os, time\ncount = 0\ntry:\n    while count < 400:\n        if not os.fork(): time.sleep(600)\n"
    "        count += 1\nexcept OSError: pass\nprint(count)",
    "queues": "import socket, sys\npairs = []\ntry:\n    while True: pairs.append(socket.socketpair())\n"
    "except OSError: pass\nqueued = 0\nfor pair in pairs:\n    for end in pair:\n        end.setblocking(False)\n"
    "        if sys.argv[1:]: end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)\n"
    "        try:\n            while True: queued += end.send(bytes(65536))\n        except BlockingIOError: pass\n"
    "print(queued)",
    "tables": "import ctypes, time\nlibc = ctypes.CDLL(None)\nlibc.mmap.restype = ctypes.c_void_p\nsize = 1 << 37\n"
    "base = libc.mmap(None, ctypes.c_size_t(size), 1, 0x4022, -1, ctypes.c_long(0))\n"
    "libc.madvise(ctypes.c_void_p(base), ctypes.c_size_t(size), 15)  # no huge pages\n"
    "for at in range(base, base + size, 2 << 20): ctypes.c_char.from_address(at).value\ntime.sleep(600)",
    "waiting": "import socket, time\nserver = socket.socket(socket.AF_UNIX)\nserver.bind('\\0zoo')\n"
    "server.listen(4096)\nfor _ in range(1000):\n    with socket.socket(socket.AF_UNIX) as client:\n"
    "        client.connect('\\0zoo')\n        client.setblocking(False)\n        try:\n"
    "            while True: client.send(bytes(65536))\n        except BlockingIOError: pass\ntime.sleep(600)",
    "connected": "import socket, time\npair = socket.socketpair()\ntime.sleep(600)",
    "mapped": "import ctypes, os, time\nlibc = ctypes.CDLL(None)\nfor _ in range(16):\n"
    "    with open('x', 'wb+', 0) as file:\n        file.write(bytes(1 << 20))\n        os.unlink('x')\n"
    "        libc.mmap(None, ctypes.c_size_t(4096), 1, 1, file.fileno(), ctypes.c_long(0))\ntime.sleep(600)",
    "lib": "WORD = 'imported'",
    "main": "import lib, os; print(lib.WORD, open(os.environ['SKILL_DIR'] + '/data/table.csv').read())",
    "pool": "from concurrent.futures import ProcessPoolExecutor as Pool\n"
    "if __name__ == '__main__':\n    with Pool(2) as pool: print(sum(pool.map(abs, [-1, -2])))",
}
SHELL = {
    "three": "echo out; echo err >&2; exit 3",
    "killed": "kill -SEGV $$",
    "stop": "kill -STOP $$",
    "litter": "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do sleep 600 & done; echo done",
    "daemon": "setsid sh -c 'setsid sleep 600 & sleep 600' & echo left",
    "quiet": "setsid sleep 600 >/dev/null 2>&1 & echo left",
    "keep": 'cat note 2>/dev/null; echo "$1" >> note',
    "pipe": "yes | head -n 1",
    "link": "ln -s / away; ln -s /nowhere/at/all gone; echo linked",
    "go": "pwd; echo $HOME $TMPDIR; echo x > $TMPDIR/x",
    "write": "for each in / /etc /usr /skills /skills/zoo /proc /dev /home /workspace /tmp /dev/shm; do\n"
    "    (: > $each/new) 2>/dev/null && echo $each\ndone\ntrue",
    "status": "grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status",
    "share": 'cat "$1/note" && echo from inside > "$1/answer"',
    "limits": "ulimit -c; ulimit -n; ulimit -f",
}
OTHERS: Mapping[str, str | bytes] = {
    "direct": "#!/bin/sh\necho direct $1\n",
    "direct.xyz": "#!/usr/bin/env sh\necho env $1\n",
    "plain": "#!/bin/sh\necho direct\n",
    "crlf": b"#!/bin/sh\r\necho direct\r\n",
    "nowhere": "#!/no/such/interpreter\n",
    "junk": bytes(range(256)) * 4,
    "badformat": b"#!" + bytes(range(1, 32)) * 9,
    "types.ts": "const n: number = 1; console.log(n)\n",
    "tell.js": "console.log(JSON.stringify(process.argv.slice(2)), process.version)\n",
    "module.mjs": "import os from 'node:os'; console.log(typeof os.platform())\n",
    "tell.pl": "print join(',', @ARGV), qq{\\n};\n",
    "tell.bash": "a=(1 2); echo ${a[1]} $BASH_VERSION\n",
    "ünï cødé.sh": 'printf "%s|" "$@"\n',
    "SHOUT.PY": "print('loud')\n",
}
EXECUTABLE = ("direct", "direct.xyz", "crlf", "nowhere", "junk", "badformat")


def write(top: Path) -> Path:
    """Write the skill to the root `top`, and return `top`."""
    scripts = top / "zoo" / "scripts"
    write_files(top / "zoo", {"SKILL.md": SKILL_MD, "data/table.csv": "a,b\n"})
    write_files(scripts, {f"{name}.py": text for name, text in PYTHON.items()})
    write_files(scripts, {f"{name}.sh": text for name, text in SHELL.items()})
    write_files(scripts, OTHERS)
    for name in EXECUTABLE:
        (scripts / name).chmod(0o755)
    return top


def processes_with(text: str) -> list[int]:
    """Return the processes, zombies too, with this text in the command line or environment."""
    found: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                shown = Path("/proc", name, "environ").read_bytes() + Path("/proc", name, "cmdline").read_bytes()
            except OSError:
                continue
            if text.encode() in shown:
                found.append(int(name))
    return found


def zombies() -> list[str]:
    """Return the stat lines of the zombie children of this process."""
    found: list[str] = []
    for name in os.listdir("/proc"):
        try:
            stat = Path("/proc", name, "stat").read_text() if name.isdigit() else ""
        except OSError:
            continue
        fields = stat.rpartition(")")[2].split()
        if fields and fields[0] == "Z" and int(fields[1]) == os.getpid():
            found.append(stat)
    return found
