"""Many processes of one cell that print."""

from __future__ import annotations

from cellblock import Session

FORKS = """
import os, sys
children = []
for child in range(30):
    if not (pid := os.fork()):
        for line in range(10):
            print(child, line)
        sys.stdout.flush()
        os._exit(0)
    children.append(pid)
for pid in children:
    os.waitpid(pid, 0)
print("end")
"""


async def test_every_line_of_every_child_comes_whole_and_before_what_follows(session: Session) -> None:
    result = await session.execute(FORKS)
    *lines, end = result.output.splitlines()
    assert sorted(lines) == sorted(f"{child} {line}" for child in range(30) for line in range(10))
    assert (end, result.status, result.stderr) == ("end", "success", "")
