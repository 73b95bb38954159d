"""The sandbox: what is asked for (policy), what this machine can do (probe), what it will do (plan), and doing it (linux)."""
