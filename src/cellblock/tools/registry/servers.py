"""The registry of MCP servers: maps names in code of sessions to servers."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from cellblock.common import config
from cellblock.common.database import Database
from cellblock.errors import InvalidInputError, StoreError
from cellblock.tools.mcp.changes import ToolFacts
from cellblock.tools.mcp.params import ServerParams, digest_of, stored_params

_SCHEMA = """
CREATE TABLE IF NOT EXISTS servers (
    name TEXT NOT NULL,
    root TEXT NOT NULL,
    params TEXT NOT NULL,
    tools_hash TEXT NOT NULL,
    registered REAL NOT NULL,
    PRIMARY KEY (name, root)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tools (
    name TEXT NOT NULL,
    root TEXT NOT NULL,
    tool TEXT NOT NULL,
    facts TEXT NOT NULL,
    PRIMARY KEY (name, root, tool)
) WITHOUT ROWID
"""


_FACTS = """
SELECT facts FROM tools WHERE name = ? AND root = ? AND tool = ?
UNION ALL SELECT '{}' WHERE EXISTS (SELECT 1 FROM tools WHERE name = ? AND root = ?) LIMIT 1
"""


_MAX_FOUND = 1000
"""Maximum number of cached lookups: code can ask for servers by any name."""

_T = TypeVar("_T")


class ServerRegistry:
    """The registered MCP servers: names and parameters. It stores references to the environment, and no secrets.

    A server belongs to the directory of its generated API, its *root*. Sessions whose workspace contains the root can name
    the server. Two projects can therefore have servers with the same name, and neither sees the other's.

    Several processes may use the registry concurrently.

    Args:
        directory: The registry's directory; `config.state_directory` by default. It must be outside every workspace: its
            content decides which programs are started on the host.

    Raises:
        StoreError: The directory cannot be used, or others could change it.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._database = Database(config.state_directory() if directory is None else directory, "servers.db", _SCHEMA)
        self._version: tuple[int, ...] = ()
        self._found: dict[tuple[str | None, ...], Any] = {}
        """Cached lookups for this version of the file."""

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def register(
        self, name: str, params: ServerParams, tools_hash: str, root: str = "", facts: Mapping[str, ToolFacts] | None = None
    ) -> None:
        """Add or replace a server.

        Args:
            name: The server's name.
            params: The server's parameters.
            tools_hash: The hash of its tools when its API was generated.
            root: The directory of its API, absolute and without symbolic links; empty for a server of all sessions.
            facts: Its claims about its tools, by name. They may be false.
        """
        if not isinstance(name, str) or not name or len(name) > 256:
            raise InvalidInputError(f"the name of an MCP server must be a string of 1 to 256 characters, not {name!r}")
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO servers (name, root, params, tools_hash, registered) VALUES (?, ?, ?, ?, ?)",
                (name, root, json.dumps(params.to_dict()), tools_hash, time.time()),
            )
            connection.execute("DELETE FROM tools WHERE name = ? AND root = ?", (name, root))
            connection.executemany(
                "INSERT INTO tools (name, root, tool, facts) VALUES (?, ?, ?, ?)",
                [(name, root, tool, json.dumps(dict(fact))) for tool, fact in (facts or {}).items()],
            )

    def get(self, name: str, root: str | None = None) -> ServerParams:
        """Return the parameters of a server.

        Args:
            name: The server's name.
            root: The directory of its API; by default, the last registered one.

        Raises:
            InvalidInputError: No server with this name is registered.
        """
        with self._database.reading() as connection:
            row = connection.execute(
                "SELECT params FROM servers WHERE name = ? AND (? IS NULL OR root = ?) ORDER BY registered DESC",
                (name, root, root),
            ).fetchone()
        if row is None:
            raise InvalidInputError(f"no MCP server is registered as {name!r}; generate_mcp_sources() registers one")
        try:
            return stored_params(name, json.loads(row[0]))
        except ValueError as error:
            raise StoreError(f"the stored entry of MCP server {name!r} is damaged: register it again ({error})") from error

    def root_within(self, name: str, *directories: str) -> str | None:
        """Return the root of the server that a name means in a session's code, the last registered one, or None.

        Args:
            name: The server's name.
            directories: The session's workspace, and other directories with tools that it may use.

        Called for each call of a tool, always in one thread. New registrations take effect at once.
        """

        def look(connection: sqlite3.Connection) -> str | None:
            rows = connection.execute("SELECT root FROM servers WHERE name = ? ORDER BY registered DESC", (name,)).fetchall()
            roots = [str(root) for (root,) in rows]
            return next((root for root in roots if any(_is_within(root, directory) for directory in directories)), None)

        return self._looked_up((name, *directories), look)

    def digest(self, name: str, root: str) -> str:
        """Return the digest of a server's parameters, which distinguishes servers with the same name; empty if unknown.

        Called for each call, like `root_within`.
        """

        def look(connection: sqlite3.Connection) -> str:
            row = connection.execute("SELECT params FROM servers WHERE name = ? AND root = ?", (name, root)).fetchone()
            return "" if row is None else digest_of(stored_params(name, json.loads(row[0])))

        return self._looked_up((None, None, name, root), look)

    def facts(self, name: str, root: str, tool: str) -> ToolFacts | None:
        """Return a server's claims about a tool from its registration.

        Called for each call, like `root_within`. None: nothing is known about any of its tools. `GONE`: the tool was not
        listed.
        """

        def look(connection: sqlite3.Connection) -> ToolFacts | None:
            row = connection.execute(_FACTS, (name, root, tool, name, root)).fetchone()
            return None if row is None else json.loads(row[0])

        return self._looked_up((None, name, root, tool), look)

    def _looked_up(self, key: tuple[str | None, ...], look: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run a query, and cache the result until the file changes."""
        version = self._database.version()
        if version != self._version or len(self._found) >= _MAX_FOUND:
            self._version, self._found = version, {}
        if key not in self._found:
            with self._database.reading() as connection:
                self._found[key] = look(connection)
        found: _T = self._found[key]
        return found

    def names(self) -> list[str]:
        """Return the names of all registered servers, sorted."""
        with self._database.reading() as connection:
            return [name for (name,) in connection.execute("SELECT DISTINCT name FROM servers ORDER BY name")]

    def all(self) -> list[tuple[str, str, str]]:
        """Return name, root and digest of all registered servers, sorted."""
        with self._database.reading() as connection:
            rows = connection.execute("SELECT name, root, params FROM servers ORDER BY name, root").fetchall()
        return [(name, root, digest_of(stored_params(name, json.loads(params)))) for name, root, params in rows]

    def remove(self, name: str) -> None:
        """Remove all registrations of a server.

        Raises:
            InvalidInputError: No server with this name is registered.
        """
        with self._database.transaction() as connection:
            if connection.execute("DELETE FROM servers WHERE name = ?", (name,)).rowcount == 0:
                raise InvalidInputError(f"no MCP server is registered as {name!r}; 'cellblock tools list' shows which are")
            connection.execute("DELETE FROM tools WHERE name = ?", (name,))


def _is_within(root: str, workspace: str) -> bool:
    return root in ("", workspace) or root.startswith(f"{workspace.rstrip('/')}/")
