"""Records a session in the terminal as a picture: python docs/site/record.py writes docs/session.svg.

It runs the commands for real, in a terminal of its own, with a daemon of its own, and needs the package `rich`.
"""

from __future__ import annotations

import io
import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

COMMANDS = (
    """cellblock exec --name demo 'prices = {"tea": 3, "cake": 4}'""",
    """cellblock exec --name demo 'print(len(prices), "items"); sum(prices.values())'""",
    """cellblock exec --name demo 'open("/etc/shadow")'""",
    """cellblock exec --name demo --timeout 1 'while True: pass'""",
    """cellblock exec --name demo 'prices'""",
    """cellblock list""",
)
WIDTH = 100
TARGET = Path(__file__).parents[1] / "session.svg"


def output_of(command: str, environment: dict[str, str], cwd: str) -> str:
    """Run a command in a terminal, and return what it printed there."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(shlex.split(command), stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=cwd)
    os.close(theirs)
    printed = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the terminal is closed: nobody writes any more
            break
        if not data:
            break
        printed += data
    process.wait()
    os.close(ours)
    return printed.decode().replace("\r\n", "\n")


def main() -> None:
    """Run the commands, and write the picture."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory() as place:
        workspace = Path(place) / "project"
        workspace.mkdir()
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {
            **os.environ,
            "CELLBLOCK_HOME": f"{place}/state",
            "COLUMNS": str(WIDTH),
            "PATH": programs,
            "TERM": "xterm-256color",
        }
        output_of("cellblock daemon start", environment, str(workspace))
        try:
            for command in COMMANDS:
                console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
                console.print(
                    Text.from_ansi(output_of(command, environment, str(workspace)).rstrip().replace(place, "/home/me"))
                )
                console.print()
        finally:
            output_of("cellblock daemon stop", environment, str(workspace))
    # Without the fonts that it would fetch from elsewhere: any monospaced one will do.
    TARGET.write_text(re.sub(r"@font-face \{.*?\}\s*", "", console.export_svg(title="cellblock"), flags=re.DOTALL))


if __name__ == "__main__":
    main()
