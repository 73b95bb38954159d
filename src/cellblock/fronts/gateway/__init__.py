"""The HTTP front: REST, events and WebSockets for named sessions. A process of its own, and a client of the daemon."""
