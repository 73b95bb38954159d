"""Keeps copies of a worker sound: threads, locks, sockets, descriptors, pools."""
