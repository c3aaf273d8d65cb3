"""Serve the skills of a database: `python examples/database_source.py skills.db` writes one, and lists its skills.

The table `files` has a row for each file of a skill; a change of a row is served within the polling interval.
"""

import sqlite3
import sys
from collections.abc import Mapping, Sequence

from anyio import to_thread

from mcp_skills_server import open_registry
from mcp_skills_server.sources.kinds import Kind
from mcp_skills_server.sources.listed import Entry, ListedSource
from mcp_skills_server.sources.source import UnreachableError

TABLE = "create table if not exists files (skill text, path text, body blob, primary key (skill, path))"
TEA = b"---\nname: tea\ndescription: Makes tea. Use when somebody wants tea.\n---\n\nBoil water.\n"


class Database(ListedSource):
    """The skills of `sqlite:FILE`."""

    async def entries(self) -> Sequence[Entry]:
        """Each skill with a fingerprint over its rows."""
        query = (
            "select skill, group_concat(path || ':' || hex(body)) from (select * from files order by path) group by 1"
        )
        return [Entry(name, rows) for name, rows in await self._rows(query)]

    async def read(self, entry: Entry) -> Mapping[str, tuple[bytes, bool]]:
        """The files of one skill, none of them executable."""
        rows = await self._rows("select path, body from files where skill = ?", entry.name)
        return {path: (body, False) for path, body in rows}

    async def _rows(self, query: str, *values: str) -> list[tuple[str, bytes]]:
        def ask() -> list[tuple[str, bytes]]:
            connection = sqlite3.connect(f"file:{self.origin.removeprefix('sqlite:')}?mode=ro", uri=True)
            try:
                return connection.execute(query, values).fetchall()
            finally:
                connection.close()

        try:
            return await to_thread.run_sync(ask)
        except sqlite3.Error as error:
            raise UnreachableError(str(error)) from None


KIND = Kind("database", lambda root: root.startswith("sqlite:"), Database, is_polled=True)


def main(file: str) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute(TABLE)
        connection.execute("insert or replace into files values ('tea', 'SKILL.md', ?)", (TEA,))
    connection.close()
    with open_registry(f"sqlite:{file}", kinds=[KIND]) as registry:
        registry.load()
        for path, skill in registry.snapshot.skills.items():
            print(f"{path}: {skill.description}")


if __name__ == "__main__":
    main(sys.argv[1])
