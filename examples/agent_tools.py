"""An agent at work: several cells that use the filesystem and git servers, with approvals in the terminal.

The cells stand for what a language model would write. Whoever sits at the terminal decides about every call: y, n, or a to
accept the tool for the rest of the session. Where there is no terminal, rules accept what only reads, and deny the rest.

Needs `mcp-server-filesystem` (npm) and `mcp-server-git` (PyPI).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from cellblock import (
    ApprovalRequest,
    CodeExecutionError,
    CodeExecutionResult,
    CodeExecutor,
    Rules,
    generate_mcp_sources,
    printable,
)

CELLS = (
    """
from mcptools.git import git_log, git_status

print(git_status.run(git_status.Params(repo_path=REPOSITORY)))
print(git_log.run(git_log.Params(repo_path=REPOSITORY, max_count=2)))
""",
    """
import asyncio
from mcptools.filesystem import list_directory, read_text_file

listed = list_directory.run(list_directory.Params(path=REPOSITORY)).content
names = [line.removeprefix("[FILE] ") for line in listed.splitlines() if line.endswith(".md")]
texts = await asyncio.gather(
    *(read_text_file.run_async(read_text_file.Params(path=f"{REPOSITORY}/{name}")) for name in names)
)
words = {name: len(text.content.split()) for name, text in zip(names, texts)}
words
""",
    """
from mcptools.filesystem import write_file

summary = "".join(f"- {name}: {count} words\\n" for name, count in words.items())
print(write_file.run(write_file.Params(path=f"{REPOSITORY}/SUMMARY.md", content=summary)).content)
""",
    """
print(git_status.run(git_status.Params(repo_path=REPOSITORY)))
""",
)

# The git server gives no hints, so its reading tools are named. A hint is the server's word: these servers are trusted.
READING = Rules.parse(
    {
        "default": "deny",
        "rule": [
            {"decision": "allow", "server": "filesystem", "read_only": True},
            {"decision": "allow", "server": "git", "tool": "git_status"},
            {"decision": "allow", "server": "git", "tool": "git_log"},
        ],
    }
)


def make_repository(path: Path) -> None:
    """Make a small repository to work on."""
    path.mkdir()
    (path / "README.md").write_text("# Tide tables\n\nHigh water at the old harbour, by day.\n")
    (path / "NOTES.md").write_text("Ask the harbour master about October.\n")
    identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    for command in (["init", "-q", "-b", "main"], ["add", "."], [*identity, "commit", "-q", "-m", "Begin the tide tables"]):
        subprocess.run(["git", "-C", path, *command], check=True)


async def generate(repository: Path, project: Path) -> None:
    """Generate the APIs of both servers. They run on the host, and see this one repository."""
    git = shutil.which("mcp-server-git", path=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin") or "mcp-server-git"
    servers = {
        "filesystem": {"command": "mcp-server-filesystem", "args": [str(repository)]},
        "git": {"command": git, "args": ["--repository", str(repository)]},
    }
    for name, params in servers.items():
        tools = await generate_mcp_sources(name, params, project / "mcptools")
        print(f"{name}: {len(tools)} tools")


async def decide(request: ApprovalRequest) -> None:
    """Have the person at the terminal decide."""
    if request.state != "pending":
        return  # the answer to the one before was for this one, too
    # What is shown comes from code that nobody has read: a terminal would obey what is in it.
    print(f"\n  {printable(str(request), lines=False)}")
    match (await asyncio.to_thread(input, "  Approve? [y]es, [n]o, [a]lways this tool: ")).strip().lower():
        case "y":
            await request.accept()
        case "a":
            await request.accept(always="tool")
        case _:
            await request.reject()


async def run(executor: CodeExecutor, code: str) -> None:
    """Run a cell; show it, what it asks, and what came of it."""
    print("".join(f"\n│ {line}" for line in code.strip().splitlines()))
    try:
        async for item in executor.stream(code, timeout=600):
            match item:
                case ApprovalRequest():
                    await decide(item)
                case CodeExecutionResult():
                    print(printable(item.text or ""))
    except CodeExecutionError as error:
        what = error.result.error if error.result else None
        print(printable(f"{what.ename}: {what.evalue}" if what else str(error)))


async def main() -> None:
    """Run all cells in one session."""
    rules = None
    if not sys.stdin.isatty():
        print("There is no terminal to ask: rules accept calls that only read, and deny all others.")
        rules = READING
    with tempfile.TemporaryDirectory() as directory:
        # Side by side: the code reaches the repository through the tools, and not as files.
        repository, project = Path(directory, "repository"), Path(directory, "project")
        os.environ.setdefault("CELLBLOCK_HOME", f"{directory}/state")  # these servers are registered for as long as this runs
        make_repository(repository)
        project.mkdir()
        await generate(repository, project)
        async with CodeExecutor(working_dir=project, rules=rules, images_dir=project / "images") as executor:
            await executor.execute(f"REPOSITORY = {str(repository)!r}")
            for code in CELLS:
                await run(executor, code)


asyncio.run(main())
