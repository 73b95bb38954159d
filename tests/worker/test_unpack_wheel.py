"""The unpacker takes plain wheels, and refuses those that two programs could read differently."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import stat
import struct
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from cellblock.worker.unpack_wheel import WheelError, compile_tree, unpack

NAME = "demo-1.0-py3-none-any.whl"
INFO = "demo-1.0.dist-info"
METADATA = "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def archive(files: dict[str, str | bytes], *, record: str = "", modes: dict[str, int] | None = None) -> bytes:
    """Return an archive with the files of a wheel."""
    data = io.BytesIO()
    own = {"demo.py": "ANSWER = 42\n", f"{INFO}/METADATA": METADATA, f"{INFO}/WHEEL": WHEEL, f"{INFO}/RECORD": record}
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in (own | files).items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (modes or {}).get(name, 0o100644) << 16
            made.writestr(info, content, zipfile.ZIP_DEFLATED)
    return data.getvalue()


def tried(tmp_path: Path, data: bytes, limit: int = 10_000_000) -> list[str]:
    (tmp_path / "wheel").write_bytes(data)
    tree = tmp_path / "tree"
    tree.mkdir()
    return unpack(str(tmp_path / "wheel"), NAME, str(tree), limit)


def test_a_plain_wheel_is_unpacked_with_scripts_and_data(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        f"{INFO}/entry_points.txt": "[console_scripts]\ndemo = demo:Main.run [extra]\n",
        "demo-1.0.data/scripts/tool": "#!python\nprint(1)\n",
        "demo-1.0.data/purelib/more/__init__.py": "",
        "demo-1.0.data/data/share/demo.txt": "text",
        "demo-1.0.data/headers/demo.h": "",
    }
    lines = tried(tmp_path, archive(files))
    tree = tmp_path / "tree"
    assert (tree / "site-packages/demo.py").read_text() == "ANSWER = 42\n"
    assert "from demo import Main" in (tree / "bin/demo").read_text()
    assert (tree / "bin/tool").read_text() == "#!/usr/bin/env python3\nprint(1)\n"
    assert stat.S_IMODE((tree / "bin/tool").stat().st_mode) == 0o555
    assert stat.S_IMODE((tree / "site-packages/demo.py").stat().st_mode) == 0o444
    found = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}
    assert {line.split(" ", 2)[2] for line in lines} == found
    for line in lines:
        digest, size, path = line.split(" ", 2)
        data = (tree / path).read_bytes()
        assert (digest, int(size)) == (hashlib.sha256(data).hexdigest(), len(data))


@pytest.mark.parametrize(
    "path",
    ["../evil.py", "/evil.py", "a/../../evil.py", "a//b.py", "./b.py", "a\\b.py", "a\nb.py", "C:/b.py", "a/" * 70 + "b.py"],
)
def test_no_file_leaves_the_directory(tmp_path: Path, path: str) -> None:
    with pytest.raises(WheelError, match="is not allowed"):
        tried(tmp_path, archive({path: "evil"}))
    assert not (tmp_path / "evil.py").exists()


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
def test_links_and_devices_are_refused(tmp_path: Path, kind: int) -> None:
    with pytest.raises(WheelError, match="neither a file nor a directory"):
        tried(tmp_path, archive({"link": "/etc/passwd"}, modes={"link": kind | 0o777}))


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda made: made.writestr("demo.py", "ANSWER = 43\n"), "occurs twice"),
        (lambda made: setattr(made, "comment", b"PK"), "after the end"),
    ],
)
def test_duplicates_and_comments_are_refused(tmp_path: Path, change: Callable[[zipfile.ZipFile], object], said: str) -> None:
    data = io.BytesIO(archive({}))
    with zipfile.ZipFile(data, "a") as made:
        change(made)
    with pytest.raises(WheelError, match=said):
        tried(tmp_path, data.getvalue())


def test_headers_that_differ_are_refused(tmp_path: Path) -> None:
    """A program that reads files one after the other would see another name."""
    data = archive({}).replace(b"demo.py", b"evil.py", 1)
    with pytest.raises(WheelError, match=r"headers of 'demo.py' differ|not a valid archive"):
        tried(tmp_path, data)


@pytest.mark.parametrize("where", ["before", "between", "after"])
def test_hidden_data_is_refused(tmp_path: Path, where: str) -> None:
    data = archive({})
    if where == "before":
        data = b"x" * 100 + data
    elif where == "after":
        data += archive({"demo.py": "evil"})
    else:
        start = struct.unpack("<L", data[-6:-2])[0]
        data = data[:start] + b"y" * 40 + data[start:-6] + struct.pack("<L", start + 40) + data[-2:]
    # After the archive comes another one, whose directory wins.
    with pytest.raises(WheelError, match=r"hidden|differ|not a valid archive"):
        tried(tmp_path, data)


def test_a_bomb_stops_at_the_limit(tmp_path: Path) -> None:
    with pytest.raises(WheelError, match="more than 0 MiB"):
        tried(tmp_path, archive({"zeros": bytes(5_000_000)}), limit=1_000_000)
    assert sum(path.stat().st_size for path in (tmp_path / "tree").rglob("*") if path.is_file()) <= 1_000_000


@pytest.mark.parametrize("good", [True, False])
def test_a_false_hash_in_record_is_refused(tmp_path: Path, good: bool) -> None:
    digest = hashlib.sha256(b"ANSWER = 42\n" if good else b"").digest()
    record = f"demo.py,sha256={base64.urlsafe_b64encode(digest).decode().rstrip('=')},12\n"
    with nullcontext() if good else pytest.raises(WheelError, match="another hash in RECORD"):
        tried(tmp_path, archive({}, record=record))


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({f"{INFO}/METADATA": METADATA.replace("demo", "other")}, "names another package"),
        ({f"{INFO}/WHEEL": WHEEL.replace("1.0", "9.0", 1)}, "unknown version"),
        ({"other-1.0.dist-info/METADATA": ""}, "must have one directory"),
        ({f"{INFO}/entry_points.txt": "[console_scripts]\n../x = demo:main\n"}, "is invalid"),
        ({f"{INFO}/entry_points.txt": "[console_scripts]\nx = demo:main();evil\n"}, "is invalid"),
        ({"demo-1.0.data/elsewhere/x": ""}, "has no place"),
        ({"demo.py/inner.py": ""}, "both a file and a directory"),
        ({"demo-1.0.data/purelib/demo.py": "ANSWER = 43\n"}, "occurs twice"),
    ],
)
def test_files_that_contradict_each_other_are_refused(tmp_path: Path, files: dict[str, str | bytes], said: str) -> None:
    with pytest.raises(WheelError, match=said):
        tried(tmp_path, archive(files))


def test_files_with_other_content_have_other_times(tmp_path: Path) -> None:
    """Otherwise the bytecode of a module of the same size would count for another version of it."""
    times: list[float] = []
    for number in (1, 2, 1):
        place = tmp_path / str(len(times))
        place.mkdir()
        tried(place, archive({"demo.py": f"ANSWER = {number}\n"}))
        times.append((place / "tree" / "site-packages" / "demo.py").stat().st_mtime)
    assert times[0] == times[2] != times[1]


def test_modules_are_compiled_but_not_run(tmp_path: Path) -> None:
    tree, out = tmp_path / "tree", tmp_path / "out"
    (tree / "site-packages").mkdir(parents=True)
    (tree / "site-packages" / "good.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (tree / "site-packages" / "bad.py").write_text("def\n")
    compile_tree(str(tree), ["site-packages/good.py", "site-packages/bad.py"], str(out))
    (made,) = (path for path in out.rglob("*") if path.is_file())
    assert made.name.startswith("good.")
    assert not os.path.exists(tmp_path / "ran")
