"""Attack 38: what a session writes does not steer the terminal on which it is shown."""

from __future__ import annotations

import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock import Session, printable
from cli_runs import run_here

EXAMPLES = Path(__file__).parents[2] / "examples"

SEQUENCES = {
    "over what was before": "\roverwritten",  # first, because `text` shows what is left of a line
    "colour": "\x1b[31m",
    "title": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;cm0gLXJmIC8=\x07",
    "link": "\x1b]8;;http://evil.test\x1b\\",
    "clearing": "\x1b[2J\x1b[H",
    "one character": "\x9b2J",
    "a string": "\x90payload\x9c",
    "answers": "\x1b[6n\x1b[c",
    "back": "\b\b\b",
    "delete": "\x7f",
    "a bell": "\a",
    "turned around": "\u202egpj.exe\u2066",
    "half a character": "\ud800",
    "a line of another kind": "\u2028\u2029\x85\x0b\x0c",
}

MISTAKE = 'print("Canada gose:", round(mean_cost("Canada gose")))'
ATTACK = "'before' + " + " + ".join(map(ascii, SEQUENCES.values()))


def steers(text: str) -> bool:
    """Whether a terminal would act upon any of it. Worked out in another way than by the code."""
    return any(
        unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp")
        or unicodedata.bidirectional(character) in ("LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI")
        for character in text
        if character not in "\n\t"
    )


def test_sequences_are_shown_and_not_obeyed() -> None:
    for sequence in SEQUENCES.values():
        assert steers(sequence)
        shown = printable(f"before {sequence} after")
        assert not steers(shown)
        assert shown.startswith("before \\")
        assert shown.endswith(" after")


@given(st.text(st.characters(codec=None)))
def test_nothing_steers_and_the_rest_stays_as_it_is(text: str) -> None:
    for shown in (printable(text), printable(text, lines=False)):
        assert not steers(shown)
        shown.encode()
    assert not {"\n", "\t"} & {*printable(text, lines=False)}
    if not steers(text):
        assert printable(text) == text


def test_text_is_left_alone() -> None:
    text = "Zeile 1\n\tGrüße, 世界, שלום, 👩‍👩‍👧\xa0\n"
    assert printable(text) == text
    assert printable("a\r\nb\r\n") == "a\nb\n"
    assert printable("name\nwith\tlines\r\n", lines=False) == "name\\nwith\\tlines\\r\\n"


async def test_results_are_data_and_are_printable(session: Session) -> None:
    """What comes from a cell in any way is as it was written, and harmless when it is made so."""
    result = await session.execute(f"import sys\nprint({ATTACK})\nsys.stderr.write({ATTACK})\nraise ValueError({ATTACK})")
    assert result.error is not None
    assert result.text is not None
    traceback = "\n".join(result.error.traceback)
    for text in (result.output, result.stderr, result.error.evalue, traceback, result.text):
        assert "\x1b]52;c;" in text
        shown = printable(text)
        assert not steers(shown)
        assert "\\x1b]52;c;" in shown
    # IPython's own colours are off: what is there was written by the cell.
    assert traceback.replace(result.error.evalue, "").count("\x1b") == 0


@pytest.mark.slow
def test_the_terminal_front_shows_names_as_names(tmp_path: Path) -> None:
    """A directory that a session has made, and a configuration that one has written."""
    name = "\x1b]0;owned\x07\nWritable:\n  everything\u202e"
    (tmp_path / name).mkdir()
    done = run_here("policy", "show", "--workspace", str(tmp_path / name))
    assert done.returncode == 0
    assert not steers(done.stdout)
    assert "\\x1b]0;owned\\x07\\nWritable:\\n" in done.stdout
    assert done.stdout.splitlines().count("Writable:") == 1
    config = tmp_path / "sandbox.json"
    config.write_text('{"network": {"allowed\\u001b]52;c;eA==\\u0007": []}}')
    done = run_here("policy", "show", str(config), "--workspace", str(tmp_path))
    assert done.returncode == 2
    assert not steers(done.stderr)
    done = run_here("policy", "show", "--workspace", str(tmp_path / "\x1b]0;missing\x07"))
    assert done.returncode == 2
    assert not steers(done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "shown"),
    [("streaming.py", 'print(f"{number} of 5")'), ("answer_input.py", 'print(f"Hello, {name}!")'), ("quickstart.py", MISTAKE)],
)
def test_the_examples_show_output_as_output(tmp_path: Path, name: str, shown: str) -> None:
    """They are what others begin with: whatever they print of a session is harmless."""
    source = (EXAMPLES / name).read_text()
    assert source.count(shown) == 1
    (tmp_path / name).write_text(source.replace(shown, f"print({ATTACK.replace(chr(92), chr(92) * 2)})"))
    (tmp_path / "data").symlink_to(EXAMPLES / "data")
    done = subprocess.run([sys.executable, name], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "\\x1b]52;c;" in done.stdout
    assert not steers(done.stdout)
