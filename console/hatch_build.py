"""What hatchling runs before it builds the package, also for `pip install .`."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Plotly(BuildHookInterface):
    """Adds plotly.js to the page of the console, if the npm registry can be reached."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Fetch it. Say so if that fails: all else works without it."""
        script = Path(self.root, "console", "fetch_plotly.py")
        done = subprocess.run([sys.executable, str(script)], stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            self.app.display_warning(done.stderr.strip().rpartition("\n")[2])
