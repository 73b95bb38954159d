"""The sandbox: permissions (policy), features of this machine (probe), steps (plan), and their execution (mounts)."""
