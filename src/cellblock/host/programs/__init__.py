"""Programs that run in a session's sandbox beside its kernel, and files as they see them."""
