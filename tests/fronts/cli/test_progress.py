"""What the terminal shows while something takes long."""

from __future__ import annotations

import pytest

from cellblock.fronts.cli.live import Terminal
from terminals import cellblock as command
from terminals import terminal

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("daemon")]


def test_a_line_says_what_takes_longer_than_a_second() -> None:
    with terminal(*command("exec", "--name", "slow", "while True: pass"), columns=20) as screen:
        screen.wait_for("running … ")
        screen.type("\x03")
        assert screen.end() == 130


def test_progress_bars_begin_their_line_anew(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    reader = Terminal()
    reader.take("stream", {"name": "stdout", "text": "10%\r20%\r\x1b[2Jdone\r\n"}, "")
    assert capsys.readouterr().out == "10%\r\x1b[K20%\r\x1b[K\\x1b[2Jdone\n"
