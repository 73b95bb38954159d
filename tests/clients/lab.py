"""Drives JupyterLab in a browser: ``lab.py GATEWAY TOKEN DIRECTORY``. It runs in a process of its own."""

# The types of what it uses are known only where the group "clients" is installed.
# mypy: ignore-errors

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from playwright.sync_api import Page, sync_playwright

CELLS = [
    "print('hello from', __import__('os').getcwd() and 'cellblock')\n6 * 7",
    "import matplotlib.pyplot as plt\nplt.plot([1, 3, 2])\nplt.title('a plot')\nplt.show()",
    "from ipywidgets import interact\n@interact(x=(0, 10))\ndef f(x=3):\n    print('x is', x)",
    "import time\nprint('begun')\nwhile True:\n    time.sleep(0.1)",
]
TIMEOUT = 30_000


def main(gateway: str, token: str, directory: Path) -> None:
    """Open a notebook, run it, move a slider, and interrupt its last cell; leave a picture."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in CELLS])
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3 (cellblock)", "language": "python"}
    nbformat.write(book, directory / "book.ipynb")
    server = subprocess.Popen(
        [
            *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--gateway-url={gateway}"),
            *("--ServerApp.port=0", "--IdentityProvider.token=lab", f"--ServerApp.root_dir={directory}"),
            "--LabApp.news_url=None",
        ],
        env={**os.environ, "JUPYTER_GATEWAY_AUTH_TOKEN": token},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        drive(address(server), directory)
    finally:
        server.terminate()
        server.wait()


def address(server: subprocess.Popen[str]) -> str:
    """Return where the server listens."""
    assert server.stderr is not None
    said = ""
    for line in server.stderr:
        said += line
        if "http://127.0.0.1" in line:
            return line.split("http://127.0.0.1")[1].split("/")[0].join(["http://127.0.0.1", ""])
    raise AssertionError(said)


def drive(url: str, directory: Path) -> None:
    """Do what a person does."""
    # The path of the browser's socket must not be long.
    with tempfile.TemporaryDirectory(dir="/tmp") as short, sync_playwright() as playwright:
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox"], env={**os.environ, "TMPDIR": short}
        )
        page = browser.new_page(viewport={"width": 1200, "height": 1400})
        try:
            page.goto(f"{url}/lab/tree/book.ipynb?token=lab", timeout=TIMEOUT)
            run_all(page)
            look(page)
        finally:
            page.screenshot(path=str(directory / "lab.png"))
            browser.close()


def run_all(page: Page) -> None:
    """Run all cells."""
    page.get_by_text("Python 3 (cellblock) | Idle").first.wait_for(timeout=TIMEOUT)
    page.locator(".jp-Cell").first.click()
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).click()


def look(page: Page) -> None:
    """See that everything is there, and interrupt what runs."""

    def see(what: Any) -> None:
        what.first.wait_for(timeout=TIMEOUT)

    see(page.locator(".jp-OutputArea-output", has_text="hello from cellblock"))
    see(page.locator(".jp-OutputArea-executeResult", has_text="42"))
    see(page.locator(".jp-OutputArea-output img"))
    see(page.locator(".jp-OutputArea-output", has_text="x is 3"))
    see(page.locator(".jp-OutputArea-output", has_text="begun"))
    page.locator(".jp-Cell").last.click()
    page.keyboard.press("Escape")
    page.keyboard.press("i")
    page.keyboard.press("i")
    see(page.locator(".jp-OutputArea-output", has_text="KeyboardInterrupt"))
    slider = page.locator(".widget-slider .noUi-handle").first
    slider.focus()
    slider.press("ArrowRight")
    see(page.locator(".jp-OutputArea-output", has_text="x is 4"))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
