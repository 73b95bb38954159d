"""A local HTTPS server that records its requests and echoes their heads, with roots of its own."""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Answer = Callable[[bytes, bytes], bytes | Iterable[bytes]]
"""Returns a complete response for a head and a body, perhaps in pieces to send when they are there."""


def echo(head: bytes, body: bytes) -> bytes:
    """Return the request as the body of the response."""
    content = head + b"\r\n\r\n" + body
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%b" % (len(content), content)


def certificate(directory: Path, *, host: str = "127.0.0.1", days: int = 30) -> tuple[Path, Path]:
    """Create a self-signed certificate. Return the paths of the certificate, and of its key with the certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "local test")])
    now = datetime.datetime.now(datetime.UTC)
    try:
        general: x509.GeneralName = x509.IPAddress(ip_address(host))
    except ValueError:
        general = x509.DNSName(host)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=60))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([general, x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    roots, own = directory / "roots.pem", directory / "server.pem"
    roots.write_bytes(pem)
    own.write_bytes(private + pem)
    return roots, own


class TlsServer:
    """An HTTPS server in threads.

    Attributes:
        port: Its port.
        roots: The path of the certificate that clients must trust.
        seen: The heads of all requests.
        bodies: Their bodies.
        connections: The number of accepted connections.
        answer: Makes the responses.
    """

    def __init__(self, answer: Answer = echo, *, host: str = "127.0.0.1", days: int = 30) -> None:
        self.answer = answer
        self.seen: list[bytes] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self._stack = contextlib.ExitStack()
        directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        roots, own = certificate(directory, host=host, days=days)
        self.roots = str(roots)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(own)

    def __enter__(self) -> Self:
        self._listener = self._stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._stack.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        client.settimeout(20)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError, ssl.SSLError), self._context.wrap_socket(client, server_side=True) as tls:
            data = b""
            while True:
                while b"\r\n\r\n" not in data:
                    if not (more := tls.recv(65536)):
                        return
                    data += more
                head, _, data = data.partition(b"\r\n\r\n")
                lower = head.lower()
                length = 0
                if b"content-length:" in lower:
                    length = int(lower.split(b"content-length:")[1].split(b"\r\n")[0])
                while len(data) < length:
                    data += tls.recv(65536)
                body, data = data[:length], data[length:]
                self.seen.append(head)
                self.bodies.append(body)
                answer = self.answer(head, body)
                for piece in [answer] if isinstance(answer, bytes) else answer:
                    tls.sendall(piece)
