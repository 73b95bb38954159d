"""Background programs in a session's sandbox, and files as they see them."""
