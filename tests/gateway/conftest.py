"""One daemon and one gateway for the tests of each module here."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from daemons import own_daemon
from gateways import Gateway, own_gateway, token


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway for a daemon of its own."""
    with own_daemon(tmp_path_factory.mktemp("daemon")), own_gateway() as made:
        yield made


@pytest.fixture
def api(gateway: Gateway) -> Iterator[httpx.Client]:
    """A client that may do everything."""
    with gateway.client(token("admin")) as client:
        yield client
