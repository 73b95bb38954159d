"""Parses SOCKS5 (RFC 1928) without I/O: CONNECT only, without authentication."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

from cellblock.walls.egress.names import Address, BadNameError, BadTargetError, Target, canonical_host, unmapped

VERSION = 5
METHOD = "SOCKS5"

SUCCEEDED = 0x00
GENERAL_FAILURE = 0x01
NOT_ALLOWED = 0x02
NETWORK_UNREACHABLE = 0x03
HOST_UNREACHABLE = 0x04
CONNECTION_REFUSED = 0x05
EXPIRED = 0x06
COMMAND_UNSUPPORTED = 0x07
ADDRESS_UNSUPPORTED = 0x08

_NO_AUTHENTICATION = 0x00
_NO_METHOD = 0xFF
_CONNECT = 0x01
_IPV4, _NAME, _IPV6 = 0x01, 0x03, 0x04
_ADDRESS_SIZE = {_IPV4: 4, _IPV6: 16}


class SocksError(Exception):
    """An unsupported request, or a violation of the protocol.

    Attributes:
        answer: The reply to send before hanging up.
    """

    def __init__(self, message: str, answer: bytes) -> None:
        super().__init__(message)
        self.answer = answer


def reply(code: int) -> bytes:
    """Return a reply. Its address is always 0.0.0.0:0, which hides the host's own."""
    return bytes([VERSION, code, 0, _IPV4, 0, 0, 0, 0, 0, 0])


class SocksHandshake:
    """The handshake of a SOCKS5 client.

    Attributes:
        target: The target, once known.
    """

    def __init__(self) -> None:
        self.target: Target | None = None
        self._data = bytearray()
        self._greeted = False

    def receive(self, data: bytes) -> bytes:
        """Add bytes from the client.

        Args:
            data: The received bytes. The longest handshake is 519 bytes; bytes after it stay in `trailing`.

        Returns:
            The bytes to send now.

        Raises:
            SocksError: The handshake failed.
            BadTargetError: The host has no canonical form.
        """
        self._data += data
        answer = b""
        if not self._greeted:
            answer = self._greeting()
        if self._greeted and self.target is None:
            self._request()
        return answer

    def trailing(self) -> bytes:
        """Return the bytes that the client sent after its request, without waiting for the reply."""
        return bytes(self._data)

    def _greeting(self) -> bytes:
        if self._data and self._data[0] != VERSION:
            raise SocksError("not version 5", b"")
        if len(self._data) < 2 or len(self._data) < 2 + self._data[1]:
            return b""
        offered = self._take(2 + self._data[1])[2:]
        if _NO_AUTHENTICATION not in offered:
            raise SocksError("authentication is not supported", bytes([VERSION, _NO_METHOD]))
        self._greeted = True
        return bytes([VERSION, _NO_AUTHENTICATION])

    def _request(self) -> None:
        if len(self._data) < 5:
            return
        version, command, _, kind, length = self._data[:5]
        if version != VERSION:
            raise SocksError("not version 5", reply(GENERAL_FAILURE))
        if command != _CONNECT:
            raise SocksError("only CONNECT is supported", reply(COMMAND_UNSUPPORTED))
        if kind != _NAME and kind not in _ADDRESS_SIZE:
            raise SocksError("unknown address type", reply(ADDRESS_UNSUPPORTED))
        start, size = (5, length) if kind == _NAME else (4, _ADDRESS_SIZE[kind])
        if len(self._data) < start + size + 2:
            return
        host = self._take(start + size)[start:]
        self.target = _target(kind, host, int.from_bytes(self._take(2), "big"))

    def _take(self, count: int) -> bytes:
        taken = bytes(self._data[:count])
        del self._data[:count]
        return taken


def _target(kind: int, raw: bytes, port: int) -> Target:
    named = str(_address(kind, raw)) if kind != _NAME else raw.decode(errors="backslashreplace")
    try:
        if not port:
            raise BadNameError("the port is not a number from 1 to 65535")
        # RFC 1928 has no brackets; "[::1]" as a name is accepted anyway, with its usual meaning.
        return Target(canonical_host(raw.decode()) if kind == _NAME else unmapped(_address(kind, raw)), port)
    except UnicodeDecodeError as error:
        raise BadTargetError("the host name is not UTF-8", named) from error
    except BadNameError as error:
        raise BadTargetError(str(error), named) from error


def _address(kind: int, raw: bytes) -> Address:
    return IPv4Address(raw) if kind == _IPV4 else IPv6Address(raw)
