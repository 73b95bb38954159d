"""Clients of a gateway: `Client` for plain synchronous Python, `AsyncClient` for asyncio."""
