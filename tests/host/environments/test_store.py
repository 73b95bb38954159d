"""The store keeps what is in use, removes the rest, and notices damage."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellblock.host.environments.store import Store, Wheel
from cellblock.launch.leftovers import make_place

LIMIT = 1_000_000
KIND = "kind"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("CELLBLOCK_HOME", str(tmp_path / "home"))
    return Store()


def add(store: Store, name: str, text: str = "A = 1\n") -> Wheel:
    """Add a wheel with one module, as an unpacker writes it."""
    digest = hashlib.sha256(name.encode()).hexdigest()
    with store.building() as made:
        module = Path(made, "tree", "site-packages", f"{name}.py")
        module.parent.mkdir(parents=True)
        module.write_text(text)
        line = f"{hashlib.sha256(text.encode()).hexdigest()} {len(text)} site-packages/{name}.py\n"
        Path(made, "manifest").write_text(line)
        Path(made, "METADATA").write_text(f"Name: {name}\n")
        store.add_wheel(digest, made, LIMIT)
    return Wheel(name, "1.0", digest)


def make(store: Store, key: str, *wheels: Wheel) -> Path:
    with store.building() as made:
        store.make_environment(key, KIND, wheels, made)
    return Path(store.environment(key))


def test_an_environment_links_its_wheels(store: Store) -> None:
    wheels = add(store, "one"), add(store, "two")
    place = make(store, "key", *wheels)
    assert {path.name for path in (place / "site-packages").iterdir()} == {"one.py", "two.py"}
    assert (place / "site-packages" / "one.py").samefile(f"{store.wheel(wheels[0].digest)}/tree/site-packages/one.py")
    assert store.archives.metadata(wheels[0].digest) == b"Name: one\n"
    assert not os.listdir(f"{store.directory}/building")


def test_damage_is_noticed(store: Store) -> None:
    add(store, "good")
    digest = add(store, "bad").digest
    assert store.verify() == []
    path = Path(store.wheel(digest), "tree", "site-packages", "bad.py")
    path.write_text("EVIL()")
    assert store.verify() == [str(path)]


def test_damage_of_an_environment_is_noticed(store: Store) -> None:
    wheels = add(store, "one"), add(store, "two")
    place, other = make(store, "key", *wheels), make(store, "other", wheels[1])
    with store.building() as made:
        store.make_environment("alone", KIND, wheels, made, sys.executable)
    bytecode = place / "site-packages" / "__pycache__" / "one.cpython-311.pyc"
    bytecode.parent.mkdir()
    bytecode.write_text("not checked")
    assert store.verify() == []
    (place / "site-packages" / "one.py").unlink()
    (place / "site-packages" / "linked.py").symlink_to("two.py")
    (place / "site-packages" / "linked").symlink_to(other)
    (place / "site-packages" / "planted.pyc").write_text("")
    wrong = [str(place / "site-packages" / name) for name in ("linked", "linked.py", "one.py", "planted.pyc")]
    assert store.verify() == store.verify(["key"]) == wrong
    assert store.verify(["other"]) == []
    (other / "site-packages" / "two.py").write_text("EVIL()")
    assert len(store.verify(["other"])) == 2, "the wheel is the same file"
    Path(store.wheel(wheels[1].digest), "manifest").unlink()
    assert store.verify(["other"]) == [
        f"{store.directory}/environments/other/wheels",
        f"{store.wheel(wheels[1].digest)}/manifest",
    ]


def test_what_a_sandbox_should_not_write_is_not_added(store: Store) -> None:
    with store.building() as made:
        Path(made, "tree").mkdir()
        Path(made, "tree", "evil").symlink_to("/etc/passwd")
        with pytest.raises(ValueError, match="is not expected"):
            store.add_wheel("digest", made, LIMIT)
    assert not store.has_wheel("digest")


@pytest.mark.parametrize(
    "path", ["site-packages/one.py", "site-packages/evil.pyc", "site-packages/__pycache__/evil.cpython-311.pyc", "bin/x.pyc"]
)
def test_bytecode_of_other_modules_is_refused(store: Store, path: str) -> None:
    digest = add(store, "one").digest
    with store.building() as made:
        good = Path(made, "tree", "site-packages", "__pycache__", "one.cpython-311.pyc")
        good.parent.mkdir(parents=True)
        good.write_text("")
        evil = Path(made, "tree", path)
        evil.parent.mkdir(exist_ok=True)
        evil.write_text("")
        with pytest.raises(ValueError, match="is not expected"):
            store.add_bytecode(digest, KIND, f"{made}/tree", LIMIT)
        evil.unlink()
        if evil.parent.name == "bin":
            evil.parent.rmdir()
        store.add_bytecode(digest, KIND, f"{made}/tree", LIMIT)
    assert os.path.isdir(store.bytecode(digest, KIND))


def test_a_removed_wheel_takes_its_bytecode_along(store: Store, tmp_path: Path) -> None:
    wheels = [add(store, name) for name in ("one", "two")]
    for wheel in wheels:
        with store.building() as made:
            path = Path(made, "tree", "site-packages", "__pycache__", f"{wheel.name}.cpython-311.pyc")
            path.parent.mkdir(parents=True)
            path.write_text("")
            store.add_bytecode(wheel.digest, KIND, f"{made}/tree", LIMIT)
        (tmp_path / "layer").mkdir(exist_ok=True)
        store.link(wheel.digest, KIND, str(tmp_path / "layer"))
    store.unlink(wheels[0].digest, str(tmp_path / "layer"))
    found = {path.name for path in (tmp_path / "layer").rglob("*") if path.is_file()}
    assert found == {"two.py", "two.cpython-311.pyc"}


def test_what_is_in_use_stays(store: Store, tmp_path: Path) -> None:
    wheel = add(store, "one")
    place = make(store, "key", wheel)
    lock = store.lock("key")
    fcntl.flock(lock, fcntl.LOCK_SH)
    assert store.collect(0, 0.0) == []
    os.close(lock)
    # A session whose host has ended: its directory is locked by whoever holds its kernel.
    held = make_place(str(tmp_path / "session"))
    store.use("key", str(tmp_path / "session"))
    assert store.collect(0, 0.0) == []
    os.close(held)
    making = store.lock("store")
    fcntl.flock(making, fcntl.LOCK_SH)
    try:
        assert store.collect(0, 0.0) == []
    finally:
        os.close(making)
    assert place.exists()
    assert store.collect(0, 0.0) == ["key"]
    assert not place.exists()
    assert not store.has_wheel(wheel.digest)


def test_the_oldest_environment_goes_first(store: Store) -> None:
    wheels = [add(store, name, f"# {'x' * 1000}\n") for name in ("old", "new")]
    for age, wheel in zip((1000, 10), wheels, strict=True):
        make(store, wheel.name, wheel)
        past = os.stat(store.directory).st_mtime - age
        os.utime(f"{store.directory}/environments/{wheel.name}", (past, past))
    assert store.collect(1500) == ["old"]
    assert [store.has_wheel(wheel.digest) for wheel in wheels] == [False, True]
    assert store.collect(1500) == []


def test_the_limit_is_a_setting_and_sizes_are_read_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = [add(store, f"w{number}", f"# {'x' * 1000}\n") for number in range(4)]
    for wheel in wheels:
        make(store, wheel.name, wheel)
    read: list[str] = []
    manifest = Store.manifest

    def reading(store: Store, digest: str) -> Iterator[tuple[str, int, str]]:
        read.append(digest)
        return manifest(store, digest)

    monkeypatch.setattr(Store, "manifest", reading)
    small = Store(limit=2 * 1200)
    assert len(small.collect()) == 2
    assert sorted(read) == sorted(wheel.digest for wheel in wheels)
    assert small.collect() == []


def test_a_build_that_was_killed_leaves_nothing(store: Store, tmp_path: Path) -> None:
    code = "import os\nfrom cellblock.host.environments.store import Store\nwith Store().building() as made:\n    os._exit(0)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert len(os.listdir(f"{store.directory}/building")) == 1
    with store.building() as made:
        assert os.listdir(f"{store.directory}/building") == [os.path.basename(made)]


def test_answers_grow_old(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = Wheel("one", "1.0", "digest")
    store.add_answer("key", [wheel])
    known = store.answer("key")
    assert known is not None
    assert (known.wheels, known.fresh) == ((wheel,), True)
    monkeypatch.setattr("cellblock.host.environments.store.FRESH", 0.0)
    known = store.answer("key")
    assert known is not None
    assert not known.fresh
    Path(store.directory, "answers", "key").write_text("{")
    assert store.answer("key") is None
