"""The files of the page that are built: made from these sources, few, and complete without Node."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "console"
BUILT = ROOT / "src" / "cellblock" / "fronts" / "gateway" / "console_page"
ARCHIVE = "plotly.js-cartesian-dist-min/-/plotly.js-cartesian-dist-min-9.9.9.tgz"


def in_git() -> list[Path]:
    return [path for path in BUILT.iterdir() if not path.name.startswith("plotly-")]


def test_they_are_made_from_these_sources() -> None:
    sources = [SOURCES / "build.mjs", SOURCES / "package-lock.json", *sorted((SOURCES / "src").iterdir())]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    assert digest in (BUILT / "console.js").read_text().partition("\n")[0], "make console builds it"


def test_they_are_few() -> None:
    assert sum(path.stat().st_size for path in in_git()) < 400_000


def archive(script: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as files:
        entry = tarfile.TarInfo("package/plotly-cartesian.min.js")
        entry.size = len(script)
        files.addfile(entry, io.BytesIO(script))
    return packed.getvalue()


def fetch(tmp_path: Path, registry: str, wanted: bytes) -> tuple[str, dict[str, bytes]]:
    """Run the program with a registry and a pinned archive; return what it says, and the files that it has made."""
    home, page = tmp_path / "console", tmp_path / "page"
    home.mkdir()
    page.mkdir()
    (page / "plotly-1.0.0.min.js").write_bytes(b"older")
    shutil.copy(SOURCES / "fetch_plotly.py", home)
    integrity = f"sha512-{base64.b64encode(hashlib.sha512(wanted).digest()).decode()}"
    pinned = {"node_modules/plotly.js-cartesian-dist-min": {"version": "9.9.9", "integrity": integrity}}
    (home / "package-lock.json").write_text(json.dumps({"packages": pinned}))
    done = subprocess.run(
        [sys.executable, str(home / "fetch_plotly.py"), str(page)],
        env={"npm_config_registry": registry, "no_proxy": "*"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode != 0) == bool(done.stderr)
    return done.stderr, {path.name: path.read_bytes() for path in page.iterdir()}


def registry(tmp_path: Path, content: bytes) -> str:
    """Make a registry that has this archive; return its address."""
    path = tmp_path / "registry" / ARCHIVE
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return (tmp_path / "registry").as_uri()


def test_plotly_comes_from_the_registry(tmp_path: Path) -> None:
    whole = archive(b"draw()")
    said, files = fetch(tmp_path, registry(tmp_path, whole), whole)
    assert (said, files) == ("", {"plotly-9.9.9.min.js": b"draw()"})


def test_plotly_of_other_content_is_refused(tmp_path: Path) -> None:
    said, files = fetch(tmp_path, registry(tmp_path, archive(b"steal()")), archive(b"draw()"))
    assert "is not the archive in package-lock.json" in said
    assert files == {"plotly-1.0.0.min.js": b"older"}


def test_plotly_that_would_end_its_script_is_refused(tmp_path: Path) -> None:
    whole = archive(b"</ScRiPt><b>")
    said, files = fetch(tmp_path, registry(tmp_path, whole), whole)
    assert "cannot be put into a page" in said
    assert files == {"plotly-1.0.0.min.js": b"older"}


def test_an_installation_without_network_says_what_is_missing(tmp_path: Path) -> None:
    said, files = fetch(tmp_path, "http://127.0.0.1:9", b"")
    assert said.startswith("plotly.js is missing, so the console draws no figures: ")
    assert files == {"plotly-1.0.0.min.js": b"older"}
