"""Notebooks and their kernels, as Jupyter's front ends use them."""

from __future__ import annotations

import httpx
import pytest

pytestmark = pytest.mark.slow


def test_notebooks(api: httpx.Client) -> None:
    made = api.post("/api/sessions", json={"path": "a.ipynb", "name": "", "type": "notebook", "kernel": {"name": "python3"}})
    assert made.status_code == 201
    number, kernel = made.json()["id"], made.json()["kernel"]["id"]
    again = api.post("/api/sessions", json={"path": "a.ipynb", "kernel": {"name": "python3"}}).json()
    assert (again["id"], again["kernel"]["id"]) == (number, kernel)
    assert api.patch(f"/api/sessions/{number}", json={"path": "b.ipynb"}).json()["path"] == "b.ipynb"
    other = api.patch(f"/api/sessions/{number}", json={"kernel": {"name": "python3"}}).json()["kernel"]["id"]
    assert other != kernel
    assert api.patch(f"/api/sessions/{number}", json={"kernel": {"id": kernel}}).json()["kernel"]["id"] == kernel
    assert number in [found["id"] for found in api.get("/api/sessions").json()]
    assert api.get(f"/api/sessions/{number}").json()["path"] == "b.ipynb"
    assert api.delete(f"/api/sessions/{number}").status_code == 204
    assert api.get(f"/api/sessions/{number}").status_code == 404
    assert api.delete(f"/api/kernels/{kernel}").status_code == 404
    assert api.delete(f"/api/kernels/{other}").status_code == 204
