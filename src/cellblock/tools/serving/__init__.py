"""How calls come in: the HTTP that a session, or a program of yours, sends tool calls to."""
