"""One daemon for the tests of most commands, in which each module begins without sessions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import cellblock
from daemons import asking


@pytest.fixture(scope="package")
def one_daemon(common_daemon: Path) -> Iterator[Path]:
    """The state directory of a daemon."""
    with asking(common_daemon) as home:
        yield home
        cellblock.wipe()


@pytest.fixture(scope="module")
def daemon(one_daemon: Path) -> Path:
    """The state directory of a daemon without sessions."""
    cellblock.wipe()  # also opens this thread's connection to the daemon, if another module has closed it
    return one_daemon
