"""One daemon and one gateway for all tests here, in which each module begins without sessions."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

import cellblock
from daemons import own_daemon
from gateways import Gateway, own_gateway, token


@pytest.fixture(scope="package")
def one_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway for a daemon of its own."""
    with own_daemon(tmp_path_factory.mktemp("daemon")), own_gateway() as made:
        yield made


@pytest.fixture(scope="module")
def gateway(one_gateway: Gateway) -> Gateway:
    """A gateway without sessions."""
    cellblock.wipe()  # also opens this thread's connection to the daemon, if another module has closed it
    return one_gateway


@pytest.fixture
def api(gateway: Gateway) -> Iterator[httpx.Client]:
    """A client that may do everything."""
    with gateway.client(token("admin")) as client:
        yield client
