"""The daemon: the sessions of one user, behind a Unix socket, for programs that come and go."""
