"""ipykernel behind jupyter_client's blocking client: what the other peers are built on, without their layers."""

from __future__ import annotations

from typing import Any

from jupyter_client.manager import start_new_kernel  # type: ignore[import-not-found, unused-ignore]  # in the peers' environment only

from bench.systems import Kernel, System

_COLD = """
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel()
client.execute_interactive("6 * 7", output_hook=lambda m: print(m["content"].get("data", {}).get("text/plain", ""), end=""))
client.stop_channels()
manager.shutdown_kernel(now=True)
"""


class _Kernel:
    def __init__(self) -> None:
        self._manager, self._client = start_new_kernel()

    async def execute(self, code: str, timeout: float | None = None) -> str:
        texts: list[str] = []

        def take(message: dict[str, Any]) -> None:
            content = message["content"]
            if message["msg_type"] == "stream":
                texts.append(content["text"])
            elif message["msg_type"] == "execute_result":
                texts.append(content["data"]["text/plain"])

        self._client.execute_interactive(code, timeout=timeout, output_hook=take)
        return "".join(texts).strip("\n")

    async def stream(self, code: str) -> int:
        count = 0

        def take(message: dict[str, Any]) -> None:
            nonlocal count
            if message["msg_type"] == "stream":
                count += len(message["content"]["text"])

        self._client.execute_interactive(code, output_hook=take)
        return count

    async def close(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


class _Jupyter(System):
    cold = _COLD
    module = "jupyter_client"

    async def kernel(self, isolate: str = "none") -> Kernel:
        return _Kernel()


SYSTEM = _Jupyter()
