"""Plays a hostile page of a session in Chromium, and prints what it could do: ``python ports_in_browser.py URL GATEWAY``."""

# The types of what it uses are known only where the group "clients" is installed.
# mypy: ignore-errors

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from typing import Any

from playwright.sync_api import Frame, sync_playwright

RULES = "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost, EXCLUDE *.localhost"
FETCHES = """async ([gateway, own]) => {
    const got = async (work) => { try { return await work() } catch (error) { return String(error.name) } };
    const socket = () => new Promise((resolve) => {
        const opened = new WebSocket(`ws://${location.host}/ws`);
        opened.onopen = () => opened.send("hello");
        opened.onmessage = (event) => resolve(event.data);
        opened.onerror = () => resolve("refused");
    });
    const popup = window.open("about:blank");
    let top_ = "navigated";
    try { window.top.location = "http://localhost:1/" } catch (error) { top_ = error.name }
    return {
        own: await got(async () => (await fetch("/data.json")).json()),
        socket: await got(socket),
        gateway: await got(async () => (await fetch(gateway + "/kernels", {method: "POST"})).status),
        outside: await got(async () => (await fetch("http://localhost:1/")).status),
        parent: await got(async () => window.parent.document.title),
        popup: popup === null ? "refused" : "opened",
        top: top_,
        cookie: document.cookie,
        storage: await got(async () => { localStorage.setItem("a", "1"); return localStorage.getItem("a") }),
        origin: location.origin === own,
    };
}"""


def inner_of(page: Any) -> Frame:
    page.frame_locator("iframe").get_by_text("a page").wait_for()
    return page.frames[1]


def main(url: str, gateway: str) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as short, sync_playwright() as playwright:
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        arguments = ["--no-sandbox", f"--host-resolver-rules={RULES}"]
        started = playwright.chromium.launch(executable_path=program, args=arguments, env={**os.environ, "TMPDIR": short})
        page = started.new_context().new_page()
        page.set_default_timeout(60_000)
        page.goto(url)
        own = url.partition("/?")[0].replace("frame.", "")
        told = inner_of(page).evaluate(FETCHES, [gateway, own])
        page.reload()
        told["reloaded"] = inner_of(page).evaluate("document.title")
        other = started.new_context().new_page()
        told["other browser"] = other.goto(own).status
        framing = page.context.new_page()
        framing.goto(f"{gateway}/docs")
        framing.set_content(f'<iframe src="{own}"></iframe>')
        framing.wait_for_timeout(1000)
        told["foreign frame"] = "a page" in framing.frames[1].content() if len(framing.frames) > 1 else False
        started.close()
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
