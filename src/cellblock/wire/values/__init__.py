"""Values of `put` and `get` as bytes, which are safe to read from any source."""
