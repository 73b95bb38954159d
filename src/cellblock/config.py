"""What cellblock takes from the environment of its own process. Nobody else reads it, and no kernel gets it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def environment() -> Mapping[str, str]:
    """Return this process's environment, for what belongs to other programs: pip's settings, what MCP servers refer to."""
    return os.environ


def state_directory() -> Path:
    """Return where state that outlives a program is kept, whether or not it is there.

    ``$CELLBLOCK_HOME``, or ``cellblock`` in ``$XDG_STATE_HOME``, or ``~/.local/state/cellblock``. Relative paths count as not
    set, as the XDG base directory specification has it.
    """
    own, state = os.environ.get("CELLBLOCK_HOME", ""), os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(own):
        return Path(own)
    return (Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state") / "cellblock"
