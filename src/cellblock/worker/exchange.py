"""The kernel's side of `Session.put` and `Session.get`; the host calls these two in cells that leave no trace."""

from __future__ import annotations

import base64
from typing import Any

from IPython.core.getipython import get_ipython

from cellblock.errors import InvalidInputError
from cellblock.exchange.forms import decode, encode
from cellblock.wire.messages import VALUE_MIME


def take(name: str, pieces: int) -> None:
    """Give a variable the value that the host sends.

    Args:
        name: The variable.
        pieces: In how many lines the value comes.
    """
    shell: Any = get_ipython()
    message = b"".join(base64.b64decode(shell.line()) for _ in range(pieces))
    try:
        shell.user_ns[name] = decode(message, len(message))
    except InvalidInputError as error:
        _send(b"refused\n" + str(error).encode("utf-8", "replace"))


def give(name: str, limit: int, pickled: bool) -> None:
    """Send the value of a variable to the host, or why that cannot be.

    Args:
        name: The variable.
        limit: How many bytes it may have.
        pickled: Whether to pickle what cannot be sent otherwise.
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


def _send(message: bytes) -> None:
    shell: Any = get_ipython()
    shell.display_pub.publish({VALUE_MIME: message})
