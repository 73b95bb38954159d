"""What tests of hosts that are killed share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from warm_python import WarmPython


@pytest.fixture(scope="package")
def warm_python() -> Iterator[WarmPython]:
    """A process that has imported what hosts need."""
    python = WarmPython("cellblock.host.host", "cellblock.host.survival.session_handover")
    yield python
    python.close()
