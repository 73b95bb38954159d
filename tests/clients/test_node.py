"""Node's fetch in a session: it uses the proxy and trusts the session's certificates by variables, from Node 22.21 on."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellblock import Filesystem, Host, Network, Policy, Secret
from cellblock.walls.egress import gate
from walls.keys.tls_servers import TlsServer

pytestmark = pytest.mark.clients

MODULES = Path(__file__).parents[2] / "build" / "clients" / "node_modules"
FETCH = "fetch(process.argv[1], {headers: {Authorization: 'Bearer ' + process.env.KEY}}).then(r => r.text()).then(console.log)"


async def test_fetch_uses_a_placeholder_and_the_server_gets_the_value(
    native_host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    node = next(MODULES.glob("node*/bin/node"))
    value = "canary-0123456789"
    monkeypatch.setenv("KEY", value)
    monkeypatch.setattr(gate, "_getaddrinfo", lambda _name: ["127.0.0.1"])
    with TlsServer(host="api.test") as server:
        monkeypatch.setenv("SSL_CERT_FILE", server.roots)
        policy = Policy(Filesystem(read=(str(node),)), Network(allow=(f"127.0.0.1:{server.port}",)))
        secrets = {"KEY": Secret.from_env("KEY", hosts=[f"api.test:{server.port}"])}
        async with native_host.session(working_dir=tmp_path, policy=policy, secrets=secrets) as session:
            command = [str(node), "-e", FETCH, "--", f"https://api.test:{server.port}/a"]
            code = f"import subprocess\nprint(subprocess.run({command}, capture_output=True, text=True))"
            result = await session.execute(code, timeout=60)
            assert server.seen, (result.text, result.error)
    assert f"Bearer {value}" in server.seen[0].decode()
    assert value not in (result.text or "")
    assert "Bearer cellblock" in (result.text or "")
