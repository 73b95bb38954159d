"""`cellblock console`: where the login goes, and what stays of it."""

from __future__ import annotations

import stat
import urllib.parse
import webbrowser
from pathlib import Path

import pytest

from cellblock.fronts.cli import main
from cellblock.service.store.tokens import Tokens


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What browsers are told to open; each logs in at once."""
    monkeypatch.setenv("CELLBLOCK_HOME", str(tmp_path / "home"))
    seen: list[str] = []

    def take(address: str) -> bool:
        page = Path(urllib.parse.urlparse(address).path)
        assert stat.S_IMODE(page.stat().st_mode) == 0o600
        shown = page.read_text()
        code = shown.partition("#login=")[2].partition('"')[0]
        seen.extend((address, shown))
        assert Tokens().exchange(code)
        return True

    monkeypatch.setattr(webbrowser, "open", take)
    return seen


def test_the_browser_gets_a_file_which_others_cannot_read(opened: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["console", "--url", "http://127.0.0.1:8080/", "--scope", "read"]) == 0
    address, shown = opened
    assert address.startswith("file:///")
    assert "http://127.0.0.1:8080/console#login=" in shown
    assert not Path(urllib.parse.urlparse(address).path).exists()
    assert "login" not in capsys.readouterr().err
    (token,) = Tokens().all()
    assert token.scopes == {"read"}
    assert token.name == "console"


def test_without_a_browser_the_address_is_printed(opened: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["console", "--url", "http://127.0.0.1:8080", "--no-browser"]) == 0
    assert "http://127.0.0.1:8080/console#login=" in capsys.readouterr().err
    assert opened == []
    assert Tokens().all() == []


def test_the_address_is_printed_if_no_browser_can_be_opened(
    opened: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    take = webbrowser.open
    monkeypatch.setattr(webbrowser, "open", lambda address: not take(address))
    assert main(["console", "--url", "http://127.0.0.1:8080"]) == 0
    assert "http://127.0.0.1:8080/console#login=" in capsys.readouterr().err


def test_scopes_that_do_not_exist_are_refused(opened: list[str]) -> None:
    assert main(["console", "--url", "http://127.0.0.1:8080", "--scope", "all"]) != 0
    assert opened == []
