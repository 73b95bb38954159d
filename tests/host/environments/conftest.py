"""A package index, a store of its own for each test, and hosts that install from that index with pip."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from cellblock import Host
from cellblock.host.environments import build
from cellblock.host.environments.store import Store
from package_index import Index, package_index

Shop = Callable[..., AbstractAsyncContextManager[Host]]


@pytest.fixture
def upstream() -> Iterator[Index]:
    """A package index."""
    with package_index() as index:
        yield index


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store."""
    monkeypatch.setenv("CELLBLOCK_HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.setattr(build, "_find_uv", lambda: None)
    return Store()


@pytest.fixture
def shop(upstream: Index, store: Store) -> Shop:
    """Return a function that makes a host which installs packages from the index, or from another URL."""

    @asynccontextmanager
    async def shop(url: str = upstream.url, **options: Any) -> AsyncIterator[Host]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PIP_CONFIG_FILE", os.devnull)
            patch.setenv("PIP_INDEX_URL", url)
            host = Host(**{"isolate": "native", **options})
        async with host:
            yield host

    return shop
