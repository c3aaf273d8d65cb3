"""`python -m mcp_skills_server`."""

from mcp_skills_server.cli import main

if __name__ == "__main__":
    main()
