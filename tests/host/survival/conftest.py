"""What tests of hosts that are killed share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cellblock.errors import CustodianError
from cellblock.launch.custody.custodian_client import Custodian
from host.survival.killed_host import Killed
from warm_python import WarmPython


@pytest.fixture(scope="package")
def warm_python() -> Iterator[WarmPython]:
    """A process that has imported what hosts need."""
    python = WarmPython("cellblock.host.host", "cellblock.host.survival.session_handover")
    yield python
    python.close()


@pytest.fixture
def killed(
    tmp_path: Path, warm_python: WarmPython, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Killed]:
    """Hosts that are killed, of one kind of isolation, and a custodian that ends with the test.

    A custodian and a host do the same without a sandbox, which only chains of hosts try as well.
    """
    monkeypatch.setenv("CELLBLOCK_HOME", str(tmp_path / "home"))
    made = Killed(tmp_path, warm_python, getattr(request, "param", "native"))
    yield made
    with suppress(CustodianError):
        Custodian.connect(made.state).end()
