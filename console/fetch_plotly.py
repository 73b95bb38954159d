"""Fetch plotly.js from the npm registry into the package: 1.5 MB that package-lock.json pins, and that are not in git.

This needs no Node, as the archive has one script. Without network, the console says that figures cannot be drawn.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import sys
import tarfile
import urllib.request
from pathlib import Path

_NAME = "plotly.js-cartesian-dist-min"
_FILE = "package/plotly-cartesian.min.js"
_HERE = Path(__file__).resolve().parent
_PAGE = _HERE.parent / "src/cellblock/fronts/gateway/console_page"
_MAX_ARCHIVE = 4 * 2**20
_MAX_SCRIPT = 8 * 2**20
_PATIENCE = 20.0


def fetch(target: Path = _PAGE) -> Path:
    """Return the script, after fetching it if this version is not there.

    Raises:
        OSError: The registry cannot be reached.
        ValueError: What it sends is not the archive in package-lock.json.
    """
    pinned = json.loads((_HERE / "package-lock.json").read_text())["packages"][f"node_modules/{_NAME}"]
    script = target / f"plotly-{pinned['version']}.min.js"
    if script.exists():
        return script
    registry = os.environ.get("npm_config_registry", "https://registry.npmjs.org").rstrip("/")  # noqa: SIM112  # npm's name
    address = f"{registry}/{_NAME}/-/{_NAME}-{pinned['version']}.tgz"
    with urllib.request.urlopen(address, timeout=_PATIENCE) as answer:  # noqa: S310  # the user's registry; a digest follows
        archive = answer.read(_MAX_ARCHIVE + 1)
    algorithm, _, wanted = pinned["integrity"].partition("-")
    if base64.b64encode(hashlib.new(algorithm, archive).digest()).decode() != wanted:
        raise ValueError(f"{address} is not the archive in package-lock.json")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        content = files.extractfile(_FILE)
        text = b"" if content is None else content.read(_MAX_SCRIPT)
    if b"</script" in text.lower() or b"<!--" in text:
        raise ValueError("plotly.js cannot be put into a page as it is")
    for older in target.glob("plotly-*.min.js"):
        older.unlink(missing_ok=True)
    whole = script.with_name(f".{script.name}.{os.getpid()}")  # two installations may run at once
    whole.write_bytes(text)
    return whole.replace(script)


if __name__ == "__main__":
    try:
        fetch(*map(Path, sys.argv[1:]))
    except (OSError, ValueError) as error:
        sys.exit(f"plotly.js is missing, so the console draws no figures: {error}")
