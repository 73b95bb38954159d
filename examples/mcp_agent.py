"""An agent's loop over the MCP server: registers two servers, finds their tools, analyses data, plots, and survives a crash.

The steps stand for what a language model would ask for. Needs `mcp-server-filesystem` (npm) and `mcp-server-git` (PyPI).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters
from mcp_types import CallToolResult, ImageContent, TextContent

DATA = Path(__file__).parent / "data" / "birdstrikes.csv"

READ = """
import io
import pandas as pd
from mcptools.filesystem.read_text_file import Params, run

birds = pd.read_csv(io.StringIO(run(Params(path=f"{REPOSITORY}/birdstrikes.csv")).content))
print(birds.shape)
"""
PLOT = """
import matplotlib.pyplot as plt

birds["Wildlife Size"].value_counts().plot.barh()
plt.show()
"""
REPORT = """
from pathlib import Path
from mcptools.git import git_log

Path("summary.md").write_text(f"{len(birds)} strikes\\n")
print(git_log.run(git_log.Params(repo_path=REPOSITORY, max_count=1)))
"""


def steps(repository: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the calls that the model makes."""
    files = {"command": "mcp-server-filesystem", "args": [str(repository)]}
    git = {"command": sys.executable, "args": ["-m", "mcp_server_git", "--repository", str(repository)]}
    begin = f"REPOSITORY = {str(repository)!r}"
    return [
        ("register_mcp_server", {"server_name": "filesystem", "server_params": files}),
        ("register_mcp_server", {"server_name": "git", "server_params": git}),
        ("search_tools", {"words": "read a text file"}),
        ("search_tools", {"tools": ["mcptools.filesystem.read_text_file", "mcptools.git.git_log"]}),
        ("execute_ipython_cell", {"code": begin + READ}),
        ("execute_ipython_cell", {"code": PLOT}),
        ("execute_ipython_cell", {"code": "import ctypes\nctypes.string_at(0)  # crashes the interpreter"}),
        ("execute_ipython_cell", {"code": begin + READ + REPORT}),
    ]


async def main() -> None:
    """Run all steps in a workspace that is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="cellblock-agent-") as directory:
        workspace, repository = Path(directory, "workspace"), Path(directory, "repository")
        for path in (workspace, repository):
            path.mkdir()
        shutil.copy(DATA, repository)
        author = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
        for arguments in (("init", "-q"), ("add", "."), (*author, "commit", "-qm", "Data about bird strikes")):
            subprocess.run(["git", "-C", str(repository), *arguments], check=True)
        server = StdioServerParameters(
            command=sys.executable,
            args=["-m", "cellblock", "mcp", "--workspace", str(workspace), "--wait", "600"],
            env=dict(os.environ),
        )
        async with Client(server) as client:
            for tool, call in steps(repository):
                print(f"\n> {tool} {call.get('code') or call}")
                show(await client.call_tool(tool, call))


def show(answer: CallToolResult) -> None:
    """Print what the model sees."""
    for block in answer.content:
        if isinstance(block, TextContent):
            print(block.text[:1500])
        elif isinstance(block, ImageContent):
            print(f"[a picture, {block.mime_type}, {len(block.data)} characters]")


if __name__ == "__main__":
    asyncio.run(main())
