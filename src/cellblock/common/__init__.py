"""Helpers for every trusted district: settings, threads, turns of the loop, atomic files."""
