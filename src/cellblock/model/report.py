"""One text of a result for a language model: first the outcome, then the output, within a length."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cellblock.errors import NO_NETWORK, NO_NETWORK_BY_LANDLOCK, InvalidInputError

if TYPE_CHECKING:
    from cellblock.model import CodeExecutionResult, ErrorInfo

_LEAST, _MOST = 200, 500_000
_LIBRARY = re.compile(r"File .*?(site-packages|dist-packages|lib/python3\.\d+|<frozen )")
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\))")
_CHAINED = re.compile(r"(The above exception was|During handling of the above)")
_RULER = re.compile(r"-+$|\w+ +Traceback \(most recent call last\)")
_REFUSED = re.compile(r'403.{1,200}; to allow it, add "([^"]{1,300})" to allow_hosts')
_NOT_GENERATED = re.compile(r"No module named '(mcptools(?:\.\w{1,100})?)'")
_MAX_SOUGHT = 10_000
_MAX_TOLD = 20_000
_MAX_FRAME = 1500
_MAX_FRAMES = 8
_MAX_IMAGES = 20


def report(result: CodeExecutionResult, max_chars: int) -> str:
    """Return the text; see `CodeExecutionResult.for_model`."""
    if isinstance(max_chars, bool) or not isinstance(max_chars, int) or not _LEAST <= max_chars <= _MOST:
        raise InvalidInputError(f"max_chars must be a whole number from {_LEAST} to {_MOST:,}, not {max_chars!r}")
    before, after = [], []
    if first := _cut(_first_line(result), max_chars // 4, ""):
        before.append(first + "\n")
    if result.error is not None and (frames := _short_traceback(result.error, first)):
        after.append(_cut(frames, max_chars // 3, ""))
    if files := _files(result):
        after.append(_cut(files, max_chars // 6, ""))
    used = sum(len(text) + 1 for text in (*before, *after))
    where = f": all of it is in {result.spilled[0]}" if result.spilled else ": the result's text has more"
    shown = _cut(_shown(result), max_chars - used, where)
    return "\n".join(filter(None, (*before, shown, *after))) or "(no output)"


def _first_line(result: CodeExecutionResult) -> str:
    """Return what came of the code, or nothing if it simply succeeded."""
    error = result.error
    if result.ok or error is None:
        return f"Variables and imports of earlier cells are lost: {_RESTARTED}." if result.state_lost else ""
    told = " ".join(error.evalue[:_MAX_TOLD].split())
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
        return f"Error: {error.ename}: there is no {missing[1]} here: register the MCP server first, or check its name"
    return f"Error: {error.ename}: {told}" if told else f"Error: {error.ename}"


_RESTARTED = "the kernel died, and a fresh one took its place"


def _refused(told: str) -> str:
    """Return how to allow the host that the session's proxy refused, if that is what this error is about."""
    if (match := _REFUSED.search(told)) is None:
        return ""
    rule = match[1]
    return (
        f'{rule} was refused: allow it with allow_hosts=["{rule}"] (on the command line: --allow-host {rule}), or in '
        "sandbox_config (network.allowedDomains)"
    )


def _shown(result: CodeExecutionResult) -> str:
    """Return what the code showed, without the traceback: that comes later, and shorter."""
    text = result.text or ""
    errors = [item.text for item in result.outputs if item.kind == "error" and item.text]
    traceback = "\n".join(result.error.traceback) if result.error is not None else ""
    ended = traceback if traceback in errors else errors[-1] if errors else ""
    shown = ended.strip("\n").rstrip() if result.error is not None else ""
    if not shown:
        return text
    # Mostly it is the end. If not: not `rfind`, whose time grows with the product of both lengths.
    place = len(text) - len(shown) if text.endswith(shown) else text.find(shown[:_MAX_SOUGHT])
    if place < 0:
        return text
    return (text[:place].rstrip("\n") + text[place + len(shown) :]).strip("\n")


def _short_traceback(error: ErrorInfo, first: str) -> str:
    """Return what helps of a traceback: the frames of the user's own code, and where in a library it ended.

    Args:
        error: The error.
        first: The first line of the report, which need not be said again.
    """
    frames: list[str] = []
    skipped: list[str] = []
    for whole in error.traceback:
        part = _cut(whole.rstrip(), _MAX_FRAME, "")
        if _LIBRARY.match(part):
            skipped.append(part)
            continue
        if _CHAINED.match(part.strip()):
            # Of the exception that led to this one its message is enough.
            frames, skipped = [*frames[-1:], part.strip()], []
            continue
        if not part.strip() or _RULER.match(part):
            continue
        if skipped:
            frames.append(_end_of(skipped))
            skipped = []
        frames.append(part)
    said = " ".join(frames[-1].split()) if frames else ""
    if said and (said in first or said.startswith(f"{error.ename}: ") or said == error.ename):
        frames.pop()  # the first line says it already, perhaps in other words
    if len(frames) > _MAX_FRAMES:
        half = _MAX_FRAMES // 2
        frames[half:-half] = [f"… {len(frames) - 2 * half} parts of the traceback left out …"]
    return "\n".join(frames)


def _end_of(frames: list[str]) -> str:
    """Return the last of some frames of libraries, as two lines."""
    head, _, lines = frames[-1].partition("\n")
    arrow = [line for line in lines.splitlines() if line.startswith("-")]
    more = [f"… {len(frames) - 1} more frames of libraries …"] if len(frames) > 1 else []
    return "\n".join([*more, head, *arrow])


def _files(result: CodeExecutionResult) -> str:
    lines = []
    if result.images:
        names = [str(path) for path in result.images[:_MAX_IMAGES]]
        more = len(result.images) - len(names)
        lines.append(f"Images: {', '.join(names)}" + (f" and {more} more" if more else ""))
    if result.spilled:
        lines.append(f"Full output: {', '.join(map(str, result.spilled[:_MAX_IMAGES]))}")
    return "\n".join(lines)


def _cut(text: str, room: int, where: str) -> str:
    """Return a text that fits, its middle left out, at lines' ends if there are some near by; escape sequences are removed."""
    if len(text) <= room:
        return _ESCAPES.sub("", text)
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
    return _ESCAPES.sub("", head) + left_out + _ESCAPES.sub("", tail)
