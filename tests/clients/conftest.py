"""These tests need what `make clients` installs. Without it they are not collected."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [] if find_spec("nbformat") else ["test_jupyter.py"]
