"""What commands print: JSON for programs, tables for people, and nothing that a terminal obeys."""

from __future__ import annotations

import io
import json
import sys

import pytest

from cellblock.fronts.cli import output


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_json_is_for_programs_and_for_those_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    assert output.wants_json(False)  # standard output is captured here
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert not output.wants_json(False)
    assert output.wants_json(True)


def test_bytes_are_printed_as_jupyter_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"b": b"\x00", "a": "é"})
    text = capsys.readouterr().out
    assert json.loads(text) == {"a": "é", "b": "AA=="}
    assert text.index('"a"') < text.index('"b"')
    with pytest.raises(TypeError, match="object is not JSON data"):
        output.print_json(object())


@pytest.mark.parametrize(
    ("stream", "variables", "colours"),
    [
        (Terminal(), {}, True),
        (io.StringIO(), {}, False),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"NO_COLOR": ""}, True),
        (Terminal(), {"TERM": "dumb"}, False),
    ],
)
def test_colours_are_for_terminals_that_show_them(
    stream: io.StringIO, variables: dict[str, str], colours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert output.painted("x", "red", stream) == ("\x1b[31mx\x1b[0m" if colours else "x")


def test_a_table_cuts_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In a narrow terminal, too: a long word can be what somebody decides about."""
    monkeypatch.setenv("COLUMNS", "30")
    word = "".join(f"{number:03}" for number in range(100))
    output.print_table(["id", "given for"], [["0123456789abcdef" * 2, word]], empty="none")
    lines = capsys.readouterr().out.splitlines()[2:]
    assert "".join(line.split()[-1] for line in lines) == word
    assert "…" not in "".join(lines)


def test_nothing_in_a_table_is_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(["name"], [["\x1b[2J[red]x[/red]\nsecond line"]], empty="none")
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "[red]x[/red]" in shown
    output.print_fields([("name", "\x1b[2J\nx")])
    assert capsys.readouterr().out.count("\n") == 1


def test_a_table_without_rows_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(["name"], [], empty="There are none.")
    assert capsys.readouterr().out == "There are none.\n"


def test_durations_are_as_people_say_them() -> None:
    cases: list[tuple[float, str]] = [
        (-5, "0 s"),
        (0, "0 s"),
        (119.9, "119 s"),
        (120, "2 min"),
        (7199, "119 min"),
        (7200, "2 h"),
        (172800, "2 d"),
    ]
    for seconds, said in cases:
        assert output.age(seconds) == said
