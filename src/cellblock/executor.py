"""`CodeExecutor`: the async front, as people who come from ipybox know it."""

from __future__ import annotations
