"""A proxy that ends TLS with a certificate for all names below a domain, and clients that look these names up at 127.0.0.1."""

from __future__ import annotations

import secrets
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cellblock.walls.keys.authority import authority_certificate, leaf

DOMAIN = "ports.example.test"
_PATIENCE = 60.0


class TlsProxy:
    """A proxy.

    Attributes:
        url: The address below which all names lead to it.
        port: Its port.
        trust: How clients verify its certificate.
        to: The port to which it forwards what it decrypts.
    """

    def __init__(self, listener: socket.socket, directory: Path) -> None:
        seed = secrets.token_bytes(32)
        file = directory / "certificate.pem"
        file.write_bytes(leaf(seed, [f"*.{DOMAIN}"]))
        self._listener = listener
        self._ends = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._ends.load_cert_chain(file)
        self.trust = ssl.create_default_context(cadata=authority_certificate(seed).decode())
        self.port: int = listener.getsockname()[1]
        self.url = f"https://{DOMAIN}:{self.port}"
        self.to = 0

    def serve(self) -> None:
        """Serve until the listener is shut down."""
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._relay, args=(connection,), daemon=True).start()

    def _relay(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(_PATIENCE)
            inner = socket.create_connection(("127.0.0.1", self.to), _PATIENCE)
            with inner, self._ends.wrap_socket(connection, server_side=True) as outer:
                back = threading.Thread(target=_copy, args=(inner, outer), daemon=True)
                back.start()
                _copy(outer, inner)
                back.join(_PATIENCE)


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


@contextmanager
def tls_proxy(directory: Path) -> Iterator[TlsProxy]:
    """Run a proxy; set its `to` before it is used."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = TlsProxy(listener, directory)
        serving = threading.Thread(target=made.serve, daemon=True)
        serving.start()
        try:
            yield made
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            serving.join(_PATIENCE)
