"""The rules about a sandbox's network access, and the parts of its proxy (docs/egress.md)."""
