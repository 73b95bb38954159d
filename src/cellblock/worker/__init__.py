"""The code inside the sandbox: IPython's shell behind a channel. Standard library and IPython only."""
