"""Secrets that stay outside the sandbox: placeholders inside, values inserted into requests by a confined process.

Nothing is imported here: most sessions have no secrets.
"""
