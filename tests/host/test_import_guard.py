"""What sessions can write is not imported by us, nor by what we use; by the program itself it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, os, sys
import own_before
from cellblock import CodeExecutor

PLANT = '''
import os, socket, time
for name in ("uvicorn", "httptools", "idna", "tarfile", "mcp", "own_later"):
    with open(name + ".py", "w") as file:
        file.write(f"open({name + '.ran'!r}, 'w').close()")
connection = socket.create_connection(("127.0.0.1", int(os.environ["CELLBLOCK_TOOL_PORT"])))
connection.sendall(b"POST /run HTTP/1.1\\\\r\\\\nHost: localhost\\\\r\\\\nContent-Length: 0\\\\r\\\\n\\\\r\\\\n")
print(connection.recv(100)[:12])
'''

async def main():
    async with CodeExecutor() as executor:
        print((await executor.execute(PLANT)).text)
        await executor.session.files.list()
        import own_later
        import tarfile
        print(tarfile.__file__ == os.path.abspath("tarfile.py"))

asyncio.run(main())
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "agent.py").write_text(PROGRAM)
    (tmp_path / "own_before.py").touch()
    return tmp_path


@pytest.mark.slow
def test_what_a_cell_plants_beside_the_program_is_not_run_by_us(project: Path) -> None:
    done = subprocess.run([sys.executable, "agent.py"], cwd=project, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    # A bad request is one that was answered: what serves was loaded. The program's own imports are its own.
    assert done.stdout.splitlines() == ["b'HTTP/1.1 415'", "False"], done.stderr
    assert sorted(path.name for path in project.glob("*.ran")) == ["own_later.ran"]


@pytest.mark.slow
async def test_packages_of_this_process_are_not_a_sessions_to_write_with_another_interpreter(tmp_path: Path) -> None:
    from cellblock import Host, Policy
    from cellblock.walls.sandbox.probe import own_directories

    async with Host(isolate="native") as host:
        session = host.session(working_dir=tmp_path, policy=Policy())
        assert {*own_directories()} <= {*session.wanted.policy.filesystem.deny_write}
