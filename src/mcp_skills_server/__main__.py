"""What `python -m mcp_skills_server` and the installed command run."""

import sys

from mcp_skills_server.catalog import collector


def main() -> None:
    """Run the command line and exit."""
    try:
        with collector.paused():  # all that the imports make stays, and looking through it takes a fortieth of a start
            from mcp_skills_server import cli
        cli.main()
    except KeyboardInterrupt:  # before a command has begun, which ends by itself
        sys.exit(130)


if __name__ == "__main__":
    main()
