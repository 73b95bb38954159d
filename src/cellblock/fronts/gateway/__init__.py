"""The HTTP gateway: REST, events and WebSockets for named sessions. A separate process, and a client of the daemon."""
