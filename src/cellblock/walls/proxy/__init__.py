"""The proxy of a sandbox, on the trusted side (docs/egress.md).

Nothing is imported here: `network` is cheap to import, and loads the proxy only if a policy allows a network.
"""
