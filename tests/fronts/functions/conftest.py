"""One daemon for all tests here, in which each module begins without sessions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import cellblock
from daemons import own_daemon


@pytest.fixture(scope="package")
def one_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state directory of a daemon."""
    with own_daemon(tmp_path_factory.mktemp("daemon")) as home:
        yield home


@pytest.fixture(scope="module", autouse=True)
def daemon(one_daemon: Path) -> Path:
    """The state directory of a daemon without sessions."""
    cellblock.wipe()  # also opens this thread's connection to the daemon, if another module has closed it
    return one_daemon
