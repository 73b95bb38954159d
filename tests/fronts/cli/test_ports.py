"""`cellblock open`: the page of a server in a session, in the user's browser."""

from __future__ import annotations

import re
import signal
import stat
import subprocess
import sys
import urllib.parse
import webbrowser
from pathlib import Path

import httpx
import pytest

import cellblock
from cellblock.fronts.cli import main
from cellblock.service.store.tokens import Tokens
from gateways import own_gateway
from web_servers import IN_A_SESSION

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def session(daemon: Path, tmp_path: Path) -> None:
    cellblock.wipe()
    cellblock.get_or_create("s", working_dir=str(tmp_path), recovery="none")
    assert cellblock.execute("s", IN_A_SESSION).ok


def page_at(url: str) -> str:
    """Return what a browser shows that opens this URL."""
    place, _, query = url.partition("/?")
    host = place.removeprefix("http://").removeprefix("frame.")
    with httpx.Client(base_url=f"http://127.0.0.1:{host.rpartition(':')[2]}", timeout=30) as client:
        entered = client.get(f"/?{query}", headers={"Host": host})
        cookie = entered.headers["Set-Cookie"].partition(";")[0]
        return client.get("/", headers={"Host": host, "Cookie": cookie}).text


def test_a_page_is_served_until_the_command_ends() -> None:
    command = [sys.executable, "-m", "cellblock", "open", "s", "8501", "--no-browser"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = re.search(r"http://frame\.p8501-\S+", process.stderr.readline())
        assert found
        assert page_at(found[0]) == "page"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_a_running_gateway_is_used_and_the_browser_gets_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []

    def take(address: str) -> bool:
        page = Path(urllib.parse.urlparse(address).path)
        assert stat.S_IMODE(page.stat().st_mode) == 0o600
        shown.append(page.read_text().partition("url=")[2].partition('"')[0])
        return True

    monkeypatch.setattr(webbrowser, "open", take)
    monkeypatch.setattr("cellblock.fronts.cli.web_console._READ", 0.0)
    with own_gateway() as gateway:
        assert main(["open", "s", "8501", "--url", gateway.url + "/", "--bare"]) == 0
        assert re.fullmatch(rf"http://p8501-[0-9a-f]+\.localhost:{gateway.port}/\?cellblock-ticket=[\w-]+", shown[0])
        assert page_at(shown[0]) == "page"
    said = capsys.readouterr().err
    assert said.startswith("Port 8501 of s is open at http://p8501-")
    assert "ticket" not in said
    made = Tokens().all()[-1]
    assert (made.name, made.scopes, bool(made.session), bool(made.expires)) == ("open", frozenset({"run"}), True, True)


def test_what_cannot_be_opened_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    cases: list[tuple[list[str], str]] = [
        (["s", "8502"], "nothing listens at port 8502 of session 's': its servers listen at 8501"),
        (["other", "8501"], "there is no session 'other'"),
        (["s", "8501", "--url", "http://127.0.0.1:1"], "cannot be reached"),
        (["s", "0"], "greater than or equal to 1"),
    ]
    for arguments, why in cases:
        assert main(["open", *arguments, "--no-browser"]) != 0
        assert why in capsys.readouterr().err
