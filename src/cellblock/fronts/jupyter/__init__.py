"""The Jupyter protocol on named sessions: whatever carries its messages, a WebSocket or ZeroMQ, says them here."""
