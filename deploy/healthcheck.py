"""The image's HEALTHCHECK: does the server of this container answer /healthz? Exit code 0 or 1.

It reads the environment that the server reads. Under stdio there is nothing to ask, and the client sees the end itself.
"""

import http.client
import os
import sys


def main() -> int:
    if os.environ.get("MCP_SKILLS_TRANSPORT", "stdio") != "http":
        return 0
    host, port = os.environ.get("MCP_SKILLS_HOST", "127.0.0.1"), os.environ.get("MCP_SKILLS_PORT", "8000")
    if os.environ.get("MCP_SKILLS_PROBE_ADDRESS"):
        host, _, port = os.environ["MCP_SKILLS_PROBE_ADDRESS"].rpartition(":")
        host = host.strip("[]")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    connection = http.client.HTTPConnection(host, int(port), timeout=3)
    try:
        connection.request("GET", "/healthz")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        print(f"no answer from {host}: {error}")
        return 1
    print(f"/healthz: {status}")
    return 0 if status == 200 else 1


if __name__ == "__main__":
    sys.exit(main())
