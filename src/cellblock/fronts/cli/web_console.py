"""``cellblock console`` and ``open``: show the console, and pages of servers in sessions, in the user's browser."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from html import escape
from pathlib import Path
from typing import Annotated

import typer

from cellblock.errors import CellblockError
from cellblock.fronts.cli.arguments import SERVERS, SESSIONS, Session
from cellblock.fronts.cli.daemon_access import connected
from cellblock.fronts.cli.problems import OK, say
from cellblock.operations.sessions import Status

_LOOK = 0.2
"""Seconds between two looks whether the browser has logged in."""

_LIFETIME = 12 * 3600.0
"""Seconds for which the page can be used."""
_READ = 5.0
"""Seconds for the browser to read the file with the address."""

Scopes = Annotated[
    list[str] | None,
    typer.Option("--scope", metavar="SCOPE", help="read, run, approve or admin. Can be repeated; run and approve by default."),
]


def add_to(app: typer.Typer) -> None:
    """Add these commands to the program's."""
    app.command("open", rich_help_panel=SESSIONS)(open_)
    app.command("console", rich_help_panel=SERVERS)(console)


def console(
    url: Annotated[
        str,
        typer.Option(metavar="URL", help="Open the console of a running 'cellblock serve' on this machine."),
    ] = "",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="The port; by default a free one.")] = 0,
    scope: Scopes = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address instead of opening it.")] = False,
) -> int:
    """Open the console: see what agents do, and decide what they may.

    It is served until Ctrl-C. The login is for this user's browser, once, within two minutes.
    """
    from cellblock.service.store.tokens import Tokens

    tokens, shows = Tokens(), None if no_browser else private_page()
    code = tokens.create_code(scope or ("run", "approve"))
    with shows or nullcontext() as page:
        if not url:
            from cellblock.fronts.gateway.serve import serve

            serve(port=port, on_start=lambda address: _open(address, code, page))
            return OK
        _open(url.rstrip("/"), code, page)
        while page is not None and tokens.waits(code):
            time.sleep(_LOOK)
    return OK


def _open(server: str, code: str, page: Path | None) -> None:
    show("The console", f"{server}/console", f"#login={code}", page)


def show(what: str, place: str, secret: str, page: Path | None) -> None:
    """Open an address in the browser, or print it.

    Args:
        what: What is there.
        place: The address without its secret part.
        secret: The rest of the address, which works once.
        page: A file that only this user can read; None to print the address. The browser gets the file's name, because others
            see program arguments.
    """
    address = place + secret
    told = f"{what}, for one login within two minutes: {address}"
    if page is None:
        say(told)
        return
    page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(address)}">', encoding="utf-8")
    if webbrowser.open(page.as_uri()):
        say(f"{what} is open at {place}")
    else:
        say(f"No browser can be opened here. {told}")


@contextmanager
def private_page() -> Iterator[Path]:
    """Create a file that only this user can read, and finally remove it."""
    descriptor, name = tempfile.mkstemp(".html", "cellblock-console-")
    os.close(descriptor)
    try:
        yield Path(name)
    finally:
        with suppress(OSError):
            os.unlink(name)


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
            _show_port(url.rstrip("/"), token, session, port, page, bare=bare)
            if page is not None:
                time.sleep(_READ)
            return OK
        from cellblock.fronts.gateway.serve import serve

        failed: list[CellblockError] = []

        def begin(address: str) -> None:
            try:
                _show_port(address, token, session, port, page, bare=bare)
            except CellblockError as error:
                failed.append(error)
                signal.raise_signal(signal.SIGINT)  # ends the server

        serve(port=0, on_start=lambda address: threading.Thread(target=begin, args=(address,), daemon=True).start())
        if failed:
            raise failed[0]
    return OK


def _show_port(server: str, token: str, session: str, port: int, page: Path | None, *, bare: bool) -> None:
    from cellblock.fronts.client.client import Client

    with Client(server, token) as client:
        address = client.open_port(session, port, bare=bare)
    place, mark, secret = address.partition("?")
    show(f"Port {port} of {session}", place, mark + secret, page)
