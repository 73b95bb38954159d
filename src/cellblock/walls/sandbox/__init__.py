"""The sandbox: what is allowed (policy), what this machine supports (probe), the steps (plan), and executing them (mounts)."""
