"""Backends for agent frameworks, one module each. Each needs its framework: ``pip install '.[deepagents]'``."""
