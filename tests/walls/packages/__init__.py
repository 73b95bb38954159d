"""What pip is given when it installs for a session."""
