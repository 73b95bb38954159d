"""The code in the sandbox: IPython's shell behind a channel. Standard library and IPython only."""
