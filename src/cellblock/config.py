"""What cellblock takes from the environment of its own process. Nobody else reads it, and no kernel gets it."""

from __future__ import annotations

import os
from collections.abc import Mapping


def environment() -> Mapping[str, str]:
    """Return this process's environment, for what belongs to other programs: pip's settings."""
    return os.environ
