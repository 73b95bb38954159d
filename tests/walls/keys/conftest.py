"""A server for tests of opened connections."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .tls_servers import TlsServer


@pytest.fixture
def server() -> Iterator[TlsServer]:
    """A server that echoes requests."""
    with TlsServer(host="api.test") as found:
        yield found
