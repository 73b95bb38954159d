"""The variables of a session: lists, compares, exchanges, saves and loads them."""
