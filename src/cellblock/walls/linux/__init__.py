"""Linux features: system calls and their numbers, filters, Landlock, mounts. It knows no policy."""
