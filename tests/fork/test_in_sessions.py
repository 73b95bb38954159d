"""What cells have used goes on working after a checkpoint was restored, or no checkpoint is made."""

from __future__ import annotations

import pytest

from cellblock import Host
from fork.in_sessions import answer
from fork.libraries import LARGE, LIBRARIES, PYTHONS
from fork.trying import installed, surprise

_OTHERS = [name for name in LIBRARIES if name not in LARGE and name not in PYTHONS and not name.startswith("asyncio")]


@pytest.mark.slow
@pytest.mark.parametrize("name", _OTHERS)
async def test_a_session_goes_on_or_makes_no_checkpoint(native_host: Host, name: str) -> None:
    if installed(name) is None:
        pytest.skip("it is not installed: see make libraries")
    assert (difference := surprise(await answer(native_host, name))) is None, difference
