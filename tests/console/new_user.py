"""A new user's way from a clone to the first approval that is decided in the console, by documented commands alone.

``python tests/console/new_user.py`` clones this checkout, does what README.md and docs/starting.md say, with headless Chromium
as the person, and prints how long each step took. It needs the group ``clients``, and an index from which pip installs.
"""

# The types of what it uses are known only where the group "clients" is installed.
# mypy: ignore-errors

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from pages import browser
from playwright.sync_api import expect

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0


class Steps:
    """How long each step takes."""

    def __init__(self) -> None:
        self.began = self._last = time.monotonic()

    def done(self, what: str) -> None:
        """Print how long the step took that ends now."""
        now = time.monotonic()
        print(f"{now - self._last:6.1f} s  {what}", flush=True)
        self._last = now


def written(readme: str, starting: str) -> dict[str, str]:
    """Return what README.md and docs/starting.md tell a new user: the installation, the first cell, and the first decision."""
    shells = re.findall(r"```sh\n(.*?)```", readme, re.DOTALL)
    install, first = shells[0].strip().splitlines()
    console = starting[starting.index("**A first decision**") :]
    extra = re.search(r"`(\.venv/bin/pip install [^`]+)`", console)
    opens = re.search(r"`(cellblock console)` opens", console)
    asks = re.search(r"```sh\n(cellblock exec .*?)\n```", console)
    keys = re.search(r"press `(.)`\s+and\s+`(.)`\s+in\s+the\s+page", console)
    assert None not in (extra, opens, asks, keys), "docs/starting.md has other words"
    found = {"install": install, "first": first.partition("#")[0].strip(), "extra": extra[1], "console": opens[1]}
    return found | {"asks": asks[1], "keys": keys[1] + keys[2]}


def go() -> float:
    """Go the whole way; return how long it took without the clone."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        home, clone = Path(place, "home"), Path(place, "clone")
        home.mkdir()
        told = home / "address"
        # What `cellblock console` would open in the browser is opened by the person below.
        opener = home / "browser"
        opener.write_text(f'#!/bin/sh\nprintf %s "$1" > {told}.part && mv {told}.part {told}\n')
        opener.chmod(0o700)
        environment = {name: text for name, text in os.environ.items() if not name.startswith(("CELLBLOCK_", "VIRTUAL_ENV"))}
        environment |= {"HOME": str(home), "BROWSER": f"{opener} %s", "DISPLAY": ":0"}
        environment.pop("PYTHONPATH", None)

        def run(command: str) -> str:
            done = subprocess.run(command, shell=True, cwd=clone, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
            return done.stdout

        def start(command: str) -> subprocess.Popen[str]:
            line = f". .venv/bin/activate; exec {command}"
            return subprocess.Popen(line, shell=True, cwd=clone, env=environment, stdout=subprocess.PIPE, text=True)

        steps = Steps()
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        steps.done("the clone")
        readme = written((clone / "README.md").read_text(), (clone / "docs" / "starting.md").read_text())
        began = time.monotonic()
        processes: list[subprocess.Popen[str]] = []
        try:
            run(readme["install"])
            steps.done(readme["install"])
            assert run(readme["first"]).strip() == "7"
            steps.done(readme["first"])
            run(readme["extra"])
            steps.done(readme["extra"])
            with browser() as started:  # the person's browser was open before
                steps.done("(the person's browser)")
                processes.append(start(readme["console"]))
                until(told.exists)
                page = started.new_page()
                page.goto(told.read_text())
                page.get_by_text("Live", exact=False).first.wait_for()
                steps.done(readme["console"])
                processes.append(start(readme["asks"]))
                expect(page).to_have_title("(1) cellblock", timeout=PATIENCE * 1000)
                steps.done(readme["asks"] + ", until the page says that it waits")
                for key in readme["keys"]:
                    page.keyboard.press(key)
                    page.wait_for_timeout(300)  # a person looks
                output, _ = processes[-1].communicate(timeout=PATIENCE)
                steps.done(f"the keys {', '.join(readme['keys'])}, until the command has printed")
                assert re.search(r"\d\d:\d\d", output), output
                took = time.monotonic() - began
        finally:
            for process in processes:
                process.send_signal(signal.SIGINT)  # Ctrl-C
                process.wait()
            run(".venv/bin/cellblock daemon stop")
        return took


def until(check: Any) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + PATIENCE
    while not check():
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.02)


if __name__ == "__main__":
    took = go()
    print(f"{took:6.1f} s  from the install to the first decision")
