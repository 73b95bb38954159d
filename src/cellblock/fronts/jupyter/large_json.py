"""Validates large JSON of a session in a separate process, because parsing it would block the event loop.

`check` starts the process. Messages contain the returned text unparsed.
"""

from __future__ import annotations

import json
import resource
import sys

_MAX_MEMORY = 1024**3
_MAX_SECONDS = 10  # processor time
SECONDS = 30.0
"""Seconds that a check may take. It takes less than one for 16 MiB."""


class CheckedJson:
    """Validated JSON, as text.

    Attributes:
        text: The JSON, in ASCII.
    """

    def __init__(self, text: bytes) -> None:
        self.text = text


async def check(text: str) -> CheckedJson | None:
    """Validate JSON without parsing it in this process.

    Args:
        text: The JSON.

    Returns:
        The same JSON, in which NaN and infinities are null; None if it is invalid, or takes too much time or memory.
    """
    from cellblock.common.limited_process import run

    found = await run(__file__, text.encode("utf-8", "surrogatepass"), SECONDS)
    return None if found is None else CheckedJson(found)


def main() -> None:
    """Read JSON, and write it again."""
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_MAX_SECONDS, _MAX_SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    text = sys.stdin.buffer.read().decode("utf-8", "surrogatepass")
    value = json.loads(text, parse_constant=lambda _: None, parse_float=_finite)
    sys.stdout.buffer.write(json.dumps(value, allow_nan=False, separators=(",", ":")).encode())


def _finite(text: str) -> float | None:
    value = float(text)
    return value if value - value == 0 else None


if __name__ == "__main__":
    main()
