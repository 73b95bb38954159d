"""``cellblock open``: shows the page of a server in a session, in the user's browser."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from cellblock.errors import CellblockError
from cellblock.fronts.cli.arguments import SESSIONS, Session
from cellblock.fronts.cli.daemon_access import connected
from cellblock.fronts.cli.problems import OK
from cellblock.fronts.cli.web_console import private_page, show
from cellblock.operations.sessions import Status

_LIFETIME = 12 * 3600.0
"""Seconds for which the page can be used."""
_READ = 5.0
"""Seconds for the browser to read the file with the address."""


def add_to(app: typer.Typer) -> None:
    """Add this command to the program's."""
    app.command("open", rich_help_panel=SESSIONS)(open_)


def open_(
    session: Session,
    port: Annotated[int, typer.Argument(metavar="PORT", min=1, max=65535, help="The port of the server in the session.")],
    url: Annotated[
        str, typer.Option(metavar="URL", help="Use a running 'cellblock serve' on this machine, and return at once.")
    ] = "",
    bare: Annotated[
        bool, typer.Option("--bare", help="Without a frame: the page can load from other servers, and navigate.")
    ] = False,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address instead of opening it.")] = False,
) -> int:
    """Open the page of a server in a session in the browser.

    It is served until Ctrl-C. The address is for this user's browser, once, within two minutes.
    """
    from cellblock.service.store.tokens import Tokens

    with connected() as connection:
        known = connection.call(Status(session))
    token, _ = Tokens().create("open", ("run",), session=known["kernel_id"], lifetime=_LIFETIME)
    with nullcontext() if no_browser else private_page() as page:
        if url:
            _show(url.rstrip("/"), token, session, port, page, bare=bare)
            if page is not None:
                time.sleep(_READ)
            return OK
        from cellblock.fronts.gateway.serve import serve

        failed: list[CellblockError] = []

        def begin(address: str) -> None:
            try:
                _show(address, token, session, port, page, bare=bare)
            except CellblockError as error:
                failed.append(error)
                signal.raise_signal(signal.SIGINT)  # ends the server

        serve(port=0, on_start=lambda address: threading.Thread(target=begin, args=(address,), daemon=True).start())
        if failed:
            raise failed[0]
    return OK


def _show(server: str, token: str, session: str, port: int, page: Path | None, *, bare: bool) -> None:
    from cellblock.fronts.client.client import Client

    with Client(server, token) as client:
        address = client.open_port(session, port, bare=bare)
    place, mark, secret = address.partition("?")
    show(f"Port {port} of {session}", place, mark + secret, page)
