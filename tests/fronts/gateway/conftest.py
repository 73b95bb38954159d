"""One daemon and one gateway for all tests here, in which each module begins without sessions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import cellblock
from cellblock.fronts.gateway.app import Gateway as Application
from cellblock.fronts.gateway.app import described, make_app
from cellblock.fronts.gateway.gateway_options import GatewayOptions
from cellblock.service.daemon.place import Place
from daemons import asking
from gateways import Gateway, own_gateway, token


@pytest.fixture(scope="package")
def one_gateway(common_daemon: Path) -> Iterator[Gateway]:
    """A gateway."""
    with asking(common_daemon), own_gateway(allowed_origins=["https://a.example"]) as made:
        yield made
        cellblock.wipe()


@pytest.fixture(scope="module")
def gateway(one_gateway: Gateway) -> Gateway:
    """A gateway without sessions."""
    cellblock.wipe()  # also opens this thread's connection to the daemon, if another module has closed it
    return one_gateway


@pytest.fixture(scope="package")
def open_app(tmp_path_factory: pytest.TempPathFactory) -> Application:
    """The application, in this process, which asks for no token. To make one takes half a second."""
    return make_app(GatewayOptions(auth=False), Place(tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="package")
def document(open_app: Application) -> dict[str, Any]:
    """The description of the API, which takes a second to make."""
    return described(open_app)


@pytest.fixture
def api(gateway: Gateway) -> Iterator[httpx.Client]:
    """A client that may do everything."""
    with gateway.client(token("admin")) as client:
        yield client
