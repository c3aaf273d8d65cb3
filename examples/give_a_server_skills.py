"""An MCP server that has a tool, a prompt and resources of its own, and a folder of skills on top.

Run it with `python examples/give_a_server_skills.py`; it speaks MCP on stdin and stdout.
"""

from pathlib import Path

from mcp.server.mcpserver import MCPServer

from mcp_skills_server import Registry, attach

TICKETS = {"7": "The printer prints in green only. A new cartridge did not help."}

server = MCPServer("tickets", version="1.0.0")


@server.tool()
def read_ticket(number: str) -> str:
    """The text of a support ticket."""
    return TICKETS[number]


@server.prompt()
def handover(number: str) -> str:
    """Ask for a handover of a ticket."""
    return f"Summarise ticket {number} for the next shift."


@server.resource("tickets://open")
def open_tickets() -> str:
    """The numbers of the open tickets."""
    return ", ".join(TICKETS)


@server.resource("tickets://{number}")
def ticket(number: str) -> str:
    """One ticket."""
    return TICKETS[number]


# Last, so that what the server has by now is joined with the skills.
attach(server, Registry([Path(__file__).parent / "skills"]))

if __name__ == "__main__":
    server.run("stdio")
