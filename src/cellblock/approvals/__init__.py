"""Who may do what outside of a session: calls of tools, commands and hosts, decided by rules or by people."""
