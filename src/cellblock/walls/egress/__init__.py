"""The way from a sandbox to the internet: an allowlisting proxy on the trusted side (docs/egress.md).

Nothing is imported here: `network` alone costs little, and loads the proxy only if a policy allows a network.
"""
