"""Attacks, run from inside a session; each says exactly what must come of it. As root and as an ordinary user alike."""
