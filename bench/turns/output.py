"""What a session prints and displays."""

from __future__ import annotations

from cellblock import Host


async def case_carriage_returns() -> None:
    """Lines that are written over again and again."""
    async with Host() as host, host.session(working_dir=None) as session:
        await session.execute("import sys; sys.stdout.write('a\\r' * 950_000)", timeout=30)
