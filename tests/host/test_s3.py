"""Sessions are saved to a real S3 server, and go on from there."""

from __future__ import annotations

import pytest

from cellblock import Host, StoreError
from s3 import s3_server


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """fsspec keeps its thread and its connections."""


@pytest.mark.slow
async def test_a_session_goes_on_from_s3(host: Host) -> None:
    with s3_server() as bucket:
        async with host.session() as session:
            await session.execute("import hashlib, os; x = os.urandom(1_000_000); y = hashlib.sha256(x).hexdigest()")
            report = await session.save(f"{bucket}/a b/s.cellblock")
            assert report.size > 1_000_000
        async with await host.load(f"{bucket}/a b/s.cellblock") as session:
            assert (await session.execute("hashlib.sha256(x).hexdigest() == y")).return_value == "True"
            with pytest.raises(StoreError, match="no such file or bucket"):
                await session.load(f"{bucket}/missing")
