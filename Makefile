# Everything here makes its own set-up in .venv; no target needs anything but Python 3.11 or newer, git and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help demo test srt npm fast lint types fuzz bench clean

help:
	@echo 'make demo    analyse a real CSV file over several cells, with plots, streaming, errors and timeouts'
	@echo 'make test    the whole suite: fast tests first, slow ones after'
	@echo 'make fast    the fast part of the suite'
	@echo 'make srt     the tests of srt, where it is installed'
	@echo 'make npm     the tests of MCP servers from npm, where they are installed'
	@echo 'make lint    ruff            make types   mypy, strict'
	@echo 'make fuzz    fuzz the wire parser for a minute (SECONDS=60)'
	@echo 'make bench   compare with ipybox, KernelBox and jupyter_client (ONLY=sandbox ROUNDS=1: a part)'

$(VENV)/examples.stamp: pyproject.toml
	@echo 'Setting up $(VENV) for the examples; this takes half a minute, once.'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[examples]'
	@touch $@

$(VENV)/test.stamp: pyproject.toml
	@echo 'Setting up $(VENV) for the tests; this takes a minute or two, once.'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@ $(VENV)/examples.stamp

demo: $(VENV)/examples.stamp
	$(BIN)/python examples/quickstart.py

# How many processes share the tests; 0 is one after the other.
WORKERS ?= 2
test: $(VENV)/test.stamp
	$(BIN)/python -m pytest -m 'not slow and not srt and not npm' -n $(WORKERS)
	$(BIN)/python -m pytest -m 'slow and not srt and not npm' -n $(WORKERS)
	@echo 'All of it passed, but for tests that need what no Python package brings: make srt npm'

# npm install -g @anthropic-ai/sandbox-runtime; apt-get install bubblewrap socat ripgrep
srt: $(VENV)/test.stamp
	$(BIN)/python -m pytest -m srt

# npm install -g @modelcontextprotocol/server-everything @modelcontextprotocol/server-filesystem @modelcontextprotocol/server-memory
npm: $(VENV)/test.stamp
	$(BIN)/python -m pytest -m npm

fast: $(VENV)/test.stamp
	$(BIN)/python -m pytest -m 'not slow and not srt and not npm' -n $(WORKERS)

lint: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/test.stamp
	$(BIN)/mypy

SECONDS ?= 60
fuzz: $(VENV)/test.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check atheris
	$(BIN)/python tests/fuzz/fuzz_wire.py -max_total_time=$(SECONDS)

# A part of it: make bench ONLY=sandbox ROUNDS=1. Its figures take the place of older ones in bench/results/.
bench: $(VENV)/test.stamp
	$(BIN)/python bench/run.py $(if $(ONLY),--only "$(ONLY)") $(if $(ROUNDS),--rounds $(ROUNDS))

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
