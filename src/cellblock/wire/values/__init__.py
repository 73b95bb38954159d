"""Values as bytes that are safe to read wherever they come from: what `put` and `get` of a session carry."""
