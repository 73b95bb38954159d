"""sys.stdout and sys.stderr of a kernel: what scripts expect of streams, and bytes among text."""

from __future__ import annotations

from pathlib import Path

from cellblock import CodeExecutionChunk, Session
from worker_end import run


def test_bytes_and_text_keep_their_order() -> None:
    """Also bytes of one character that come one by one, and what C code wrote makes a message wait for the pipes."""
    end = run(
        """
        for byte in "é😀\\n".encode():
            sys.stdout.buffer.write(bytes([byte]))
            sys.stdout.buffer.flush()
        sys.stdout.buffer.write(bytearray(b"\\xff."))
        sys.stdout.buffer.write(memoryview(b"\\n"))
        print('a'); sys.stdout.buffer.write(b'b\\n'); print('c')
        outbox.settle()
        os.write(1, b'from C'); print('d')
        """
    )
    assert end.text() == "é😀\n�.\na\nb\nc\nd\n"
    assert end.streams[0].behind is False
    assert (end.streams[-1].text, end.streams[-1].behind) == (b"d\n", True)


def test_the_streams_are_what_scripts_expect() -> None:
    run(
        """
        for stream, name, number in ((sys.stdout, "<stdout>", 1), (sys.stderr, "<stderr>", 2)):
            assert (stream.name, stream.mode, stream.encoding, stream.fileno()) == (name, "w", "utf-8", number)
            assert stream.writable() and not stream.readable() and not stream.isatty() and stream.line_buffering
            assert stream.write("é") == 1 and stream.buffer.write(b"ab") == 2
            stream.writelines(["a", "b"])
            stream.reconfigure(line_buffering=True)
            stream.close()
            assert not stream.closed
            try:
                stream.write(b"bytes")
            except TypeError as error:
                assert "must be str, not bytes" in str(error)
            else:
                raise AssertionError
        """
    )


def test_detaching_gives_pythons_own_streams_back() -> None:
    """And code that closed its descriptors can still print."""
    end = run("print('a'); outbox.detach(); print('b'); tasks(1)")
    assert end.text() == "a\n"
    assert end.said == b"b\n"
    assert run("os.close(1); os.close(2); print('a')").text() == "a\n"


async def test_what_a_python_program_prints_is_seen_before_it_ends(session: Session, tmp_path: Path) -> None:
    cases: list[str] = ["!python {}", "import subprocess\nsubprocess.run(['python', {!r}])", "%%bash\npython {}"]
    for form in cases:
        script, seen = tmp_path / "script.py", tmp_path / "seen"
        script.write_text(
            f"import os, time\nprint('early')\nwhile not os.path.exists({str(seen)!r}): time.sleep(0.005)\nprint('late')"
        )
        seen.unlink(missing_ok=True)
        said = ""
        async for item in session.stream(form.format(str(script)), timeout=30):
            if isinstance(item, CodeExecutionChunk):
                said += item.text
            if "early" in said:
                seen.touch()
        assert said.split()[:2] == ["early", "late"]
