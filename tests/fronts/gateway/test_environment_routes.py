"""Environments over HTTP, by requests and with `Client`."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator

import httpx
import pytest

from cellblock import Client, Environment, InvalidInputError, PreloadError
from cellblock.host.environments.trust import Trust
from daemons import own_daemon
from gateways import Gateway, own_gateway, token
from package_index import Index, package_index

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def upstream() -> Iterator[Index]:
    with package_index() as index:
        yield index


@pytest.fixture(scope="module")
def shop(upstream: Index, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway for a daemon with this index."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_CONFIG_FILE", os.devnull)
        patch.setenv("PIP_INDEX_URL", upstream.url)
        with own_daemon(tmp_path_factory.mktemp("daemon")), own_gateway() as made:
            yield made


@pytest.fixture
def admin(shop: Gateway) -> Iterator[Client]:
    with Client(shop.url, token("admin")) as client:
        yield client
        for one in client.environments():
            client.remove_environment(one.name)
        client.wipe()


def test_trust_is_not_given_over_http(shop: Gateway, admin: Client) -> None:
    made = admin.create_environment("data", Environment(packages=["tiny-demo"]))
    for scope in ("run", "admin"):
        with shop.client(token(scope)) as http:
            for path in ("/environments/data/trust", "/environments/data/trusted"):
                assert {http.post(path, json={}).status_code, http.put(path, json={}).status_code} <= {404, 405}
    with shop.client(token("admin")) as http:
        body = {"environment": {"packages": ["tiny-demo"], "trusted": True}}
        assert http.post("/environments/data", json={**body, "upgrade": True}).status_code == 422
    with pytest.raises(InvalidInputError, match="trusted=True is for sessions of this process"):
        admin.create_environment("other", Environment(packages=["tiny-demo"], trusted=True))
    with pytest.raises(PreloadError, match="If you trust them: 'cellblock env trust data'"):
        admin.get_or_create("one", environment="data", preload=["tiny_demo"])
    assert not admin.environment("data").trusted
    Trust().add(made.key)
    assert admin.environment("data").trusted
    kernel = admin.get_or_create("one", environment="data", preload=["tiny_demo"])
    assert admin.execute(kernel, "import sys; 'tiny_demo' in sys.modules").text == "True"


def test_an_upgrade_returns_the_lock_that_it_replaced(admin: Client) -> None:
    made = admin.create_environment("data", Environment(packages=["tiny-demo"]))
    moved = admin.create_environment("data", Environment(packages=[]), upgrade=True)
    assert (moved.packages, moved.previous) == ((), made.lock)


def test_a_lock_with_many_hashes_reaches_its_session(shop: Gateway, admin: Client) -> None:
    lock = {f"other-{name}": [f"{number:064x}" for number in range(70)] for name in range(90)}
    lock["tiny-demo"] = _known(admin)
    options = {"packages": ["tiny-demo==1.0"], "hashes": lock, "exact": True, "base": "empty"}
    kernel = admin.get_or_create("large", environment=options)
    assert admin.execute(kernel, "import tiny_demo; tiny_demo.ANSWER").text == "42"
    assert admin.get_or_create("large", environment=options).kernel_id == kernel.kernel_id
    with shop.client(token("admin")) as http:
        options["hashes"] = {f"other-{name}": ["0" * 64] * 100 for name in range(500)}
        answer: httpx.Response = http.post("/sessions/larger", json={"options": {"environment": options}})
        assert (answer.status_code, "more than 40,000 values" in answer.text) == (413, True)


def _known(admin: Client) -> list[str]:
    lock = admin.create_environment("known", Environment(packages=["tiny-demo"])).lock
    return [file["hashes"]["sha256"] for package in tomllib.loads(lock)["packages"] for file in package["wheels"]]
