"""A browser with the console in it, for the programs of this directory. It reaches nothing but this machine."""

# The types of what it uses are known only where the group "clients" is installed.
# mypy: ignore-errors

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Page, sync_playwright

from gateways import token

TIMEOUT = 60_000
WIDE = {"width": 1280, "height": 800}


@contextmanager
def browser() -> Iterator[Any]:
    """Start headless Chromium."""
    # The path of the browser's socket must not be long.
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as short, sync_playwright() as playwright:
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        started = playwright.chromium.launch(
            executable_path=program,
            args=[
                "--no-sandbox",
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost, EXCLUDE *.localhost",
            ],
            env={**os.environ, "TMPDIR": short},
        )
        try:
            yield started
        finally:
            started.close()


def console(started: Any, url: str, *scopes: str, dark: bool = False, size: dict[str, int] | None = None, **more: Any) -> Page:
    """Return a page that is logged in. What it complains about is in its `complaints`."""
    context = started.new_context(viewport=size or WIDE, color_scheme="dark" if dark else "light", reduced_motion="reduce")
    page = context.new_page()
    page.set_default_timeout(TIMEOUT)
    page.complaints = []
    page.on("pageerror", lambda error: page.complaints.append(f"error: {error}"))
    page.on("console", lambda told: page.complaints.append(told.text) if told.type == "error" else None)
    page.goto(f"{url}/console")
    page.get_by_label("Or show a token").fill(token(*(scopes or ("run", "approve")), **more))
    page.get_by_role("button", name="Log in").click()
    page.get_by_text("Live", exact=False).first.wait_for()
    return page
