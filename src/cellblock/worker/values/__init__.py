"""The variables of a session: list, compare, exchange, save and load."""
