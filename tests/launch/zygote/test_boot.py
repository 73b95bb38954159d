"""Interpreters that cannot be used say why."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cellblock import Host, InterpreterError
from cellblock.launch.zygote import boot

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc")


@pytest.mark.parametrize("launch", ["zygote", "spawn"])
async def test_an_interpreter_that_is_too_old_is_refused(tmp_path: Path, launch: str) -> None:
    fake = tmp_path / "python3.10"
    pretend = (
        "import sys, runpy; sys.version_info = (3, 10, 0); sys.argv = sys.argv[1:];"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    fake.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{pretend}" "$@"\n')
    fake.chmod(0o755)
    host = Host(python=fake, launch=launch)  # type: ignore[arg-type]
    with pytest.raises(InterpreterError, match=r"older than Python 3\.11"):
        async with host, host.session():
            pass
    await host.close()


@pytest.mark.parametrize("basis", ["srt", "walls", ""])
@pytest.mark.parametrize("mode", ["zygote", "spawn"])
def test_what_cannot_be_prepared_is_refused(mode: str, basis: str) -> None:
    done = subprocess.run([sys.executable, boot.__file__, mode, basis], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"boot.py cannot prepare {basis!r}\n")


def _old_pythons() -> list[str]:
    found = [shutil.which(f"python{version}") for version in ("2.7", "3.6", "3.8", "3.10")]
    found += [str(path) for path in Path.home().glob(".pyenv/versions/*/bin/python")]
    old = []
    for python in filter(None, found):
        asked = subprocess.run(
            [python, "-c", "import sys; print(sys.version_info < (3, 11))"], capture_output=True, check=False
        )
        if asked.stdout.strip() == b"True":
            old.append(python)
    return old


@pytest.mark.slow
async def test_interpreters_that_are_really_too_old_are_refused() -> None:
    old = _old_pythons()
    if not old:
        pytest.skip("none here")
    for python in old:
        host = Host(python=python)
        with pytest.raises(InterpreterError, match=r"older than Python 3\.11"):
            await host.start()
        await host.close()
