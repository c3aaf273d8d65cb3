"""Entry point of `python -m mcp_skills_server` and of the installed command."""

import sys


def main() -> None:
    """Run the command line and exit."""
    try:
        from mcp_skills_server import cli

        cli.main()
    except KeyboardInterrupt:  # Ctrl-C during the import; commands handle it themselves
        sys.exit(130)


if __name__ == "__main__":
    main()
