"""The kernel's side of `Session.put`, `get` and `variables`. The host calls these functions in silent cells."""

from __future__ import annotations

import base64
from typing import Any

from IPython.core.getipython import get_ipython

from cellblock.errors import InvalidInputError
from cellblock.wire.messages import VALUE_MIME
from cellblock.wire.values.forms import decode, encode
from cellblock.worker.values.variables import survey


def take(name: str, pieces: int) -> None:
    """Set a variable to the value that the host sends.

    Args:
        name: The variable.
        pieces: Number of lines of the value.
    """
    shell: Any = get_ipython()
    message = b"".join(base64.b64decode(shell.line()) for _ in range(pieces))
    try:
        shell.user_ns[name] = decode(message, len(message))
    except InvalidInputError as error:
        _send(b"refused\n" + str(error).encode("utf-8", "replace"))


def give(name: str, limit: int, pickled: bool) -> None:
    """Send the value of a variable to the host, or the reason why that is not possible.

    Args:
        name: The variable.
        limit: Maximum size in bytes.
        pickled: Whether to pickle values that cannot be sent otherwise.
    """
    shell: Any = get_ipython()
    try:
        if name not in shell.user_ns:
            raise InvalidInputError(f"the session has no variable {name!r}")
        message = encode(shell.user_ns[name], limit, pickled=pickled)
    except Exception as error:
        why = str(error) if isinstance(error, InvalidInputError) else f"{type(error).__name__}: {error}"
        message = b"refused\n" + why.encode("utf-8", "replace")[:1000]
    _send(message)


def tell(seconds: float | None = None) -> None:
    """Send a survey of the variables; `seconds` is as for `survey`."""
    shell: Any = get_ipython()
    _send(survey(shell.user_ns, shell.user_ns_hidden, seconds))


def _send(message: bytes) -> None:
    shell: Any = get_ipython()
    shell.display_pub.publish({VALUE_MIME: message})
