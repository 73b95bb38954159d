"""The text of a result for a language model: first the outcome, then the output, within a maximum length."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cellblock.errors import NO_NETWORK, NO_NETWORK_BY_LANDLOCK, InvalidInputError, allowing

if TYPE_CHECKING:
    from cellblock.model import CodeExecutionResult, ErrorInfo

_ROOM, _MOST = 200, 500_000
"""Characters that the parts of a text need, and the maximum for a text"""

_LIBRARY = re.compile(r"File .*?(site-packages|dist-packages|lib/python3\.\d+|<frozen )")
_HOST_PATH = re.compile(r"(?<=File )\S*?/(?:site-packages|dist-packages|lib/python3\.\d+)/")
"""The beginning of a library's frame in a traceback, and the part of its path to leave out: it is irrelevant to the error."""

_ESCAPES = re.compile(
    r"""
    [\x1b\x9b] (?: (?<=\x9b) | \[ ) [0-?]* [ -/]* [@-~]                # colours, movements: CSI
    | (?: \x1b[\]PX^_] | [\x90\x98\x9d-\x9f] ) [^\x07\x1b\x9c]* (?: \x07 | \x1b\\ | \x9c )?   # titles, links: OSC, DCS
    | \x1b [ -/]* [0-~]                                             # character sets, saved positions
    """,
    re.VERBOSE,
)
_FILE_NAME = re.compile(r" \(<ipython-input-[^>]{0,100}>, line \d{1,9}\)$")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_FAULT = re.compile(
    r"^Fatal Python error: [^\n]*\n(?:[^\n]*\n)??\n?(?:Current thread|Thread) [^\n]*\n(?:  [^\n]*+(?:\n|$))+", re.MULTILINE
)
_C_STACK = re.compile(r"\n?Current thread's C stack trace \(most recent call first\):\n(?:  [^\n]*+\n?)*+")  # from 3.14
_FAULT_FRAME = re.compile(r'  File "([^"]*)", line (\d+) in (.*)')
_MODULES = re.compile(r"\n?^Extension modules: [^\n]*\n?", re.MULTILINE)
_EXIT_HINT = "An exception has occurred, use %tb to see the full traceback."
_CHAINED = re.compile(r"(The above exception was|During handling of the above)")
_RULER = re.compile(r"-+$|\w+ +Traceback \(most recent call last\)")
_REFUSED = re.compile(r"403.{1,200}; to allow it: [^\[]{1,400}\[\\?'([^'\\]{1,300})\\?'\]")
_NOT_GENERATED = re.compile(r"No module named '(mcptools(?:\.\w{1,100})?)'")
_NOT_KEPT = re.compile(r"^… ([\d,]{1,30} bytes) of output left out …$", re.MULTILINE)
"""The line in an output that exceeds `Limits.text`"""

_MAX_SOUGHT = 10_000
_MAX_TOLD = 20_000
_MAX_FRAME = 1500
_MAX_FRAMES = 8
_MAX_LAST = 100_000
"""Characters at the end of a dead kernel's output in which Python's report of a crash is looked for."""
_MAX_PARTS = 200
"""Parts of a traceback that are looked at, from its beginning and from its end."""
_MAX_IMAGES = 20


def report(result: CodeExecutionResult, max_chars: int, file: str = "") -> str:
    """Implement `CodeExecutionResult.for_model`.

    Args:
        result: The result.
        max_chars: Maximum length of the text.
        file: A file with `result.text`, to name if the text is too long.
    """
    if isinstance(max_chars, bool) or not isinstance(max_chars, int) or not 1 <= max_chars <= _MOST:
        raise InvalidInputError(f"max_chars must be a whole number from 1 to {_MOST:,}, not {max_chars!r}")
    if max_chars < _ROOM:
        whole = report(result, _ROOM, file)
        return whole if len(whole) <= max_chars else whole[: max_chars - 1] + "…"
    before, after = [], []
    if first := _cut(_first_line(result), max_chars // 4, ""):
        before.append(first + "\n")
    if result.error is not None and (frames := _short_traceback(result.error, first)):
        after.append(_cut(frames, max_chars // 3, ""))
    if files := _files(result, named=not file and len(result.text or "") > max_chars):
        after.append(_cut(files, max_chars // 6, ""))
    used = sum(len(text) + 1 for text in (*before, *after))
    path = file or next(map(str, result.spilled), "")
    where = f": read {path}" if path else ": print less"
    if result.truncated and not result.spilled and (lost := _NOT_KEPT.search(result.text or "")):
        where += f"; another {lost[1]} were not kept"
    shown = _cut(_shown(result), max_chars - used, where)
    return "\n".join(filter(None, (*before, shown, *after))).rstrip("\n") or "(no output)"


def _first_line(result: CodeExecutionResult) -> str:
    """Return the outcome of the code; empty on success."""
    error = result.error
    if result.ok or error is None:
        return f"Variables and imports of earlier cells are lost: {_RESTARTED}." if result.state_lost else ""
    # Keep the lines: databases point at a word with a caret, and assertions list differences.
    told = _FILE_NAME.sub("", "\n".join(line.rstrip() for line in error.evalue[:_MAX_TOLD].strip().splitlines()))
    match result.status:
        case "timeout":
            return f"Timeout: {told}"
        case "interrupted":
            return f"Interrupted: {told}"
        case "died":
            return told
        case "max_attempts_exceeded":
            return f"Gave up after {len(result.attempts)} attempts: {error.ename}: {told}"
    for explanation in (NO_NETWORK, NO_NETWORK_BY_LANDLOCK):
        if explanation in told:
            return f"Error: {error.ename}: {explanation}"
    if refused := _refused(told):
        return f"Error: {error.ename}: {refused}"
    if missing := _NOT_GENERATED.fullmatch(told):
        return f"Error: {error.ename}: there is no {missing[1]}: register the MCP server first, or check its name"
    return f"Error: {error.ename}: {told}" if told else f"Error: {error.ename}"


_RESTARTED = "the kernel died and was replaced by a fresh one"


def _refused(told: str) -> str:
    """Return how to allow a host, if this error comes from the session's proxy refusing it; else empty."""
    if (match := _REFUSED.search(told)) is None:
        return ""
    return f"{match[1]} was refused. To allow it: {allowing(match[1])}"


def _shown(result: CodeExecutionResult) -> str:
    """Return the output without the traceback, which follows later in a short form."""
    text = result.text or ""
    errors = [item.text for item in result.outputs if item.kind == "error" and item.text]
    traceback = "\n".join(result.error.traceback) if result.error is not None else ""
    ended = traceback if traceback in errors else errors[-1] if errors else ""
    shown = ended.strip("\n").rstrip() if result.error is not None else ""
    if result.status == "died":
        return _without_our_frames(text.removesuffix(shown))
    if not shown:
        return text
    # Usually it is the end. If not: no `rfind`, whose time grows with the product of both lengths.
    place = len(text) - len(shown) if text.endswith(shown) else text.find(shown[:_MAX_SOUGHT])
    if place < 0:
        return text
    return (text[:place].rstrip("\n") + text[place + len(shown) :]).strip("\n")


def _without_our_frames(text: str) -> str:
    """Remove the frames of cellblock and IPython from Python's crash report in a dead kernel's last output."""
    before, end = text[:-_MAX_LAST], text[-_MAX_LAST:]
    return (before + _C_STACK.sub("", _MODULES.sub("", _FAULT.sub(_fault, end)))).strip("\n")


def _fault(match: re.Match[str]) -> str:
    """Shorten Python's crash report to the location in the code, and the library function that it called."""
    head = match[0].split("\n", 1)[0]
    frames, library = [], ""
    for path, line, name in _FAULT_FRAME.findall(match[0]):
        if path.startswith("<ipython-input-"):
            frames.append(f"  line {line} of cell {path.split('-')[2]}, in {name}")
        elif not frames and "/cellblock/worker/" not in path:
            library = library or f"  {_HOST_PATH.sub('', f'File {path}').removeprefix('File ')}, line {line}, in {name}"
    return "\n".join(filter(None, [head, library, *frames])) + "\n"


def _short_traceback(error: ErrorInfo, first: str) -> str:
    """Shorten a traceback to the frames of the user's own code, and the last frame in a library.

    Args:
        error: The error.
        first: The first line of the report, which is not repeated.
    """
    causes: list[str] = []
    frames: list[str] = []
    skipped: list[str] = []
    parts = error.traceback
    for whole in parts if len(parts) <= 2 * _MAX_PARTS else [*parts[:_MAX_PARTS], *parts[-_MAX_PARTS:]]:
        part = _cut(whole.rstrip(), _MAX_FRAME, "")
        if _LIBRARY.match(part):
            skipped.append(part)
            continue
        if _CHAINED.match(part.strip()):
            # Of the causes of an exception, the messages are enough. The first one is the root cause.
            causes += [*frames[-1:], part.strip()]
            frames, skipped = [], []
            continue
        if not part.strip() or _RULER.match(part) or part.strip() == _EXIT_HINT:
            continue
        if skipped:
            frames.append(_end_of(skipped))
            skipped = []
        frames.append(part)
    if frames and error.ename.endswith("SyntaxError"):
        frames[-1] = frames[-1].removesuffix(f"\n{error.ename}: {_FILE_NAME.sub('', error.evalue)}")
    said = frames[-1].strip() if frames else ""
    if said and (
        " ".join(said.split()) in " ".join(first.split()) or said.startswith(f"{error.ename}: ") or said == error.ename
    ):
        frames.pop()  # the first line already says it, perhaps in other words
    return "\n".join([*_ends(causes, "lines"), *_ends(frames, "frames")])


def _ends(parts: list[str], what: str) -> list[str]:
    """Return the first and the last of many parts."""
    half = _MAX_FRAMES // 2
    if len(parts) <= 2 * half:
        return parts
    return [*parts[:half], f"… {len(parts) - 2 * half} {what} left out …", *parts[-half:]]


def _end_of(frames: list[str]) -> str:
    """Return the last library frame as two lines."""
    head, _, lines = frames[-1].partition("\n")
    arrow = [line for line in lines.splitlines() if line.startswith("-")]
    left_out = len(frames) - 1
    more = [f"… {left_out} library frame{'s' * (left_out > 1)} left out …"] if left_out else []
    return "\n".join([*more, _HOST_PATH.sub("", head), *arrow])


def _files(result: CodeExecutionResult, *, named: bool) -> str:
    """Return the names of images, and of files with omitted output, unless the text already names them."""
    lines = []
    if result.images:
        names = [str(path) for path in result.images[:_MAX_IMAGES]]
        more = len(result.images) - len(names)
        lines.append(f"Images: {', '.join(names)}" + (f" and {more} more" if more else ""))
    if spilled := result.spilled[1 if named else 0 : _MAX_IMAGES]:
        lines.append(f"Full output: {', '.join(map(str, spilled))}")
    return "\n".join(lines)


def _cut(text: str, room: int, where: str) -> str:
    """Truncate a text in the middle, at line ends if possible, and remove control characters."""
    if len(text) <= room:
        return clean(text)
    note = f"\n… {len(text):,} characters in all, the middle left out{where} …\n"
    half = max((room - len(note)) // 2, 0)
    if half == 0:
        return text[: max(room, 0)]
    head, tail = text[:half], text[-half:]
    near = half * 3 // 4
    if (end := head.rfind("\n", near)) > 0:
        head = head[:end]
    if (start := tail.find("\n", 0, half - near)) >= 0:
        tail = tail[start + 1 :]
    left_out = f"\n… {len(text) - len(head) - len(tail):,} of {len(text):,} characters left out{where} …\n"
    return clean(head) + left_out + clean(tail)


def clean(text: str) -> str:
    """Return text as a terminal shows it, without control characters, and without what databases and JSON readers reject."""
    if _CONTROLS.search(text) is None:
        return text
    text = _ESCAPES.sub("", text)
    return _CONTROLS.sub("", _struck_out(text) if "\x08" in text else text)


def _struck_out(text: str) -> str:
    """Remove characters that a backspace overwrites, as in spinners and manual pages."""
    shown: list[str] = []
    for place, part in enumerate(text.split("\x08")):
        if place and shown and shown[-1] != "\n":
            shown.pop()
        shown.extend(part)
    return "".join(shown)
