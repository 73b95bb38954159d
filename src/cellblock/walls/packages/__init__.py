"""What pip is given when it installs for a session: the host's index, fetched by the host, and a limit on what is kept."""
