"""Programs that E2B's clients start: envd's service ``process.Process``."""

from __future__ import annotations

from cellblock.fronts.e2b.connect import unsupported

_METHODS = ("Start", "List", "Connect", "Update", "SendInput", "SendSignal", "StreamInput", "CloseStdin")

ROUTES = [unsupported(f"/process.Process/{name}", f"{name} is not served here: docs/e2b.md says what is") for name in _METHODS]
