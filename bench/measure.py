"""Runs one case for one system in this process, and writes the series to a file as JSON.

Usage: measure.py SYSTEM CASE OPTIONS FILE, with the options as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from importlib import import_module
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from bench.systems import load  # noqa: E402


def main() -> None:
    """Do it."""
    system, case, options, file = sys.argv[1:]
    module, function = case.split(".")
    run = getattr(import_module(f"bench.{module}"), function)  # some import cellblock, which its peers' environment lacks
    how = json.loads(options)
    series = run(**how) if system == "floor" else asyncio.run(run(load(system), **how))
    Path(file).write_text(json.dumps(series))


if __name__ == "__main__":
    main()
