"""A session as a file over HTTP, by hand and by the client."""

from __future__ import annotations

import io
import json
import os
import tempfile
import zipfile
from collections.abc import Iterator

import httpx
import pytest

from cellblock import Client, InvalidInputError
from cellblock.operations.saving import Save
from gateways import Gateway, token

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def session(api: httpx.Client) -> Iterator[None]:
    """A session with something to save."""
    api.post("/sessions/s")
    api.post("/sessions/s/execute", json={"code": "x = [1, 2]\ngen = (i for i in x)\nprint('hello')"})
    yield
    assert not [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("cellblock-") and "packages" not in name]


def test_a_session_is_a_file_and_a_session_again(api: httpx.Client) -> None:
    saved = api.post("/sessions/s/save")
    assert saved.status_code == 200
    assert saved.headers["content-disposition"] == "attachment; filename*=UTF-8''s.cellblock"
    assert (saved.headers["cellblock-saved"], saved.headers["cellblock-left-out"]) == ("1", "1")
    with zipfile.ZipFile(io.BytesIO(saved.content)) as archive:
        assert json.loads(archive.read("manifest.json"))["state"]["left_out"][0]["name"] == "gen"
    api.post("/sessions/again")
    loaded = api.post("/sessions/again/load", content=saved.content)
    assert (loaded.status_code, loaded.json()["loaded"], loaded.json()["files"]) == (200, ["x"], False)
    assert api.get("/sessions/again/variables").json()["variables"][0]["preview"] == "[1, 2]"


def test_what_is_wrong_is_said(gateway: Gateway, api: httpx.Client) -> None:
    bad = api.post("/sessions/s/load", content=b"bad")
    assert (bad.status_code, bad.json()["code"]) == (422, "invalid_input")
    assert api.post("/sessions/s/execute", json={"code": "x"}).json()["return_value"] == "[1, 2]"
    assert api.post("/sessions/missing/save").status_code == 404
    assert api.get("/sessions/s/export", params={"format": "pdf"}).status_code == 422
    with gateway.client(token("read")) as reader:
        assert reader.post("/sessions/s/save").status_code == 403
        assert reader.post("/sessions/s/load", content=b"bad").status_code == 403
        assert reader.get("/sessions/s/export").status_code == 200


def test_the_cells_as_a_notebook_and_as_a_script(api: httpx.Client) -> None:
    notebook = api.get("/sessions/s/export").json()
    assert notebook["cells"][0]["outputs"][0]["text"] == "hello\n"
    script = api.get("/sessions/s/export", params={"format": "py"})
    assert script.text.startswith("# %%\nx = [1, 2]\n")
    assert script.headers["content-type"] == "application/octet-stream"


def test_the_gateways_machine_reaches_urls_for_whoever_may_do_all(gateway: Gateway, api: httpx.Client) -> None:
    with Client(gateway.url, token("admin")) as client:
        report = client.save("s", "memory://s")
        assert (report.path, report.saved) == ("memory://s", ["x"])
        assert client.load("s", "memory://s").loaded == ["x"]
        with pytest.raises(InvalidInputError, match="absolute"):
            client._ask(Save("s", "relative"))
    with gateway.client(token("run")) as runner:
        for what in ("save-to", "load-from"):
            assert runner.post(f"/sessions/s/{what}", json={"path": "memory://s"}).status_code == 403
