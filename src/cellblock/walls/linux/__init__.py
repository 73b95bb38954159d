"""Linux features, independent of policies: system calls and their numbers, filters, Landlock, mounts."""
