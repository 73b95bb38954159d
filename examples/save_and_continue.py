"""A session that outlives its program: saved to a file, continued from it, and written as a notebook."""

import asyncio
import json
import tempfile
from pathlib import Path

from cellblock import Host


async def main(directory: Path) -> None:
    """Work, save, and go on as if nothing had happened."""
    async with Host() as host, host.session(working_dir=directory) as session:
        await session.execute("strikes = {'goose': 190, 'mallard': 72}\ndef total(): return sum(strikes.values())")
        await session.execute("lines = (line for line in ['a', 'b'])")
        report = await session.save("analysis.cellblock")
        print(f"saved {', '.join(report.saved)} in {report.cells} cells")
        for one in report.left_out:
            print(f"not saved: {one.name} ({one.reason})")

    async with Host() as host, await host.load("analysis.cellblock", working_dir=directory) as session:  # as after a restart
        result = await session.execute("strikes['eagle'] = 3\ntotal()")
        print(f"In [{result.execution_count}] says {result.return_value}")
        notebook = await session.export("analysis.ipynb")
        print(f"{notebook.name} has {len(json.loads(notebook.read_text())['cells'])} cells")


with tempfile.TemporaryDirectory() as workspace:
    asyncio.run(main(Path(workspace)))
