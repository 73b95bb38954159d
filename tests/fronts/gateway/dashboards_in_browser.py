"""Waits in Chromium until each page shows its text in its frame: ``python dashboards_in_browser.py [URL TEXT]...``."""

# The types of what it uses are known only where the group "clients" is installed.
# mypy: ignore-errors

from __future__ import annotations

import os
import shutil
import sys
import tempfile

from playwright.sync_api import sync_playwright


def main(*shown: str) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as short, sync_playwright() as playwright:
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        started = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox"], env={**os.environ, "TMPDIR": short}
        )
        for url, text in zip(shown[::2], shown[1::2], strict=True):
            page = started.new_context().new_page()
            page.set_default_timeout(60_000)
            page.goto(url)
            page.frame_locator("iframe").get_by_text(text).first.wait_for()
        started.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
