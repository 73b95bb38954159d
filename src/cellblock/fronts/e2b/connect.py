"""The Connect protocol, by which E2B's clients call envd: JSON over HTTP."""

from __future__ import annotations

from starlette.routing import BaseRoute

ROUTES: list[BaseRoute] = []
