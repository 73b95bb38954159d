# Each target sets up .venv by itself. It needs Python 3.11 or newer, git and make; srt and npm need what .ci/install installs.
PYTHON ?= python3
VENV := .venv
BIN = $(VENV)/bin

# How many processes share the tests; 0 runs them one after the other. More than cores: tests wait most of the time.
WORKERS ?= 3
# Which files and directories of tests, of those that a target runs; none are all. What must run again elsewhere is in .ci/selected/.
TESTS ?=
# Tests start hundreds of interpreters, which compile everything again where this is set.
unexport PYTHONDONTWRITEBYTECODE
PIP = $(BIN)/python -m pip install -qq --disable-pip-version-check --root-user-action=ignore --no-compile
UV = $(BIN)/uv pip install --quiet --system-certs --python $(BIN)/python
# WHOLE=1: all variants of tests, and all releases of frameworks, not a sample of the day. Each target has its own cache: targets may run at the same time.
PYTEST = $(BIN)/python -m pytest -qq --one-line -o console_output_style=classic -o cache_dir=.pytest_cache/$@ $(if $(WHOLE),--whole)
# The seed of samples: the same when tests are run once more.
export SAMPLE_SEED ?= $(shell date -u +%F)

# Run the tests with some marks. With AGAIN=1, as in CI, what has failed is run once more, one test after the other: the machine
# may have been busy with something else. Both runs show what failed.
define run
	@$(PYTEST) -m '$(1)' -n $(WORKERS) $(TESTS) || { test -n "$(AGAIN)" && echo 'Once more, one after the other:' \
		&& $(PYTEST) -m '$(1)' --last-failed --last-failed-no-failures none $(TESTS); }
endef

.PHONY: help all-groups console demo test test-all slow ray mutants attacks srt npm clients frameworks libraries user pythons python3.14 containers lint types fuzz site dist workflows bench escape-benchmark clean

help:
	@echo 'make demo       analyse a real CSV file over several cells, with plots, streaming, errors and timeouts'
	@echo 'make test       the quick tests: all that a change usually needs'
	@echo 'make test-all   a sample of the day of everything else, or all with WHOLE=1: slow srt npm ray clients frameworks demo fuzz user pythons, each of which is a target, too'
	@echo 'make slow       slow tests: attacks, some defences switched off in turn, faults, long waits'
	@echo 'make mutants    each defence switched off in turn, of which make slow has a sample: before a release, and at night'
	@echo 'make attacks    the slow attacks from inside of sandboxes, a part of make slow'
	@echo 'make srt        tests of the srt sandbox, which must be installed (.ci/install)'
	@echo 'make ray        tests of sessions on a Ray cluster: three nodes on this machine, of which parts are killed'
	@echo 'make npm        tests of MCP servers from npm, which must be installed (.ci/install)'
	@echo 'make clients    tests with programs of others: JupyterLab in a browser, nbclient, papermill, other kernels (.ci/install)'
	@echo 'make frameworks adapters for agent frameworks with their newest and lowest releases, and the table in docs/frameworks.md'
	@echo 'make libraries  try what survives in a copy of its process, and write the table in docs/checkpoints.md'
	@echo 'make user       quick tests about users and the attacks as an ordinary user, if this is root'
	@echo 'make pythons    quick tests about the language on another Python (.ci/selected/)'
	@echo 'make python3.14 quick tests on Python 3.14 in the root file system of a Debian release, as root'
	@echo 'make containers the image for containers, its document and tests in it, as root'
	@echo 'make lint       ruff            make types   mypy, strict'
	@echo 'make fuzz       fuzz the wire parser for half a minute (SECONDS=30)'
	@echo 'make console    build the page of the console from console/ (npm)'
	@echo 'make site       the documents as a site, in build/site'
	@echo 'make dist       build the package of the last commit in dist/ twice, and check it'
	@echo 'make workflows  check the workflows of GitHub Actions, without running them'
	@echo 'make bench      compare with ipybox, KernelBox and jupyter_client (ONLY=sandbox ROUNDS=1: a part)'
	@echo 'make escape-benchmark   the same attacks from inside of several sandboxes, and the tables in docs/escape-benchmark.md'

# Also one that `uv sync` has made, which has no pip.
define environment
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || { $(BIN)/python -m ensurepip >/dev/null && $(PIP) --upgrade pip uv; }
endef

# Install the package with dependency groups and an extra. By uv, as pip takes minutes for what uv installs in seconds. It is compiled
# on all cores; files that cannot be compiled are templates.
define install
	$(environment)
	@$(UV) --editable '.$(2:%=[%])' $(1:%=--group %)
	@$(BIN)/python -m compileall -qq -j 0 -x '/(tests?|pip|setuptools)/' $(VENV)/lib || true
	@touch $@
endef

define install_bash_kernel
	@$(BIN)/python -m bash_kernel.install --sys-prefix >/dev/null
endef

$(VENV)/examples.stamp: pyproject.toml
	@echo 'Setting up $(VENV) for the examples; this takes half a minute, once.'
	$(call install,,examples)

$(VENV)/test.stamp: pyproject.toml
	@echo 'Setting up $(VENV) for the tests; this takes less than a minute, once.'
	$(call install,test)
	@touch $(VENV)/examples.stamp

$(VENV)/types.stamp: $(VENV)/test.stamp
	$(call install,types)

$(VENV)/slow.stamp: $(VENV)/test.stamp
	$(call install,slow)
	@touch $(VENV)/types.stamp

# What site, slow, ray and clients need, by one installation instead of four. Quick tests come first, as they need only the group test.
$(VENV)/all.stamp: $(VENV)/test.stamp
	$(call install,slow clients docs,ray)
	$(install_bash_kernel)
	@touch $(addprefix $(VENV)/,types.stamp slow.stamp ray.stamp clients.stamp docs.stamp)

all-groups: $(VENV)/all.stamp

# In an environment of its own: .venv may be where somebody has installed cellblock, and uses it.
demo:
	@$(MAKE) --no-print-directory VENV=$(VENV)-demo $(VENV)-demo/examples.stamp
	@$(VENV)-demo/bin/python examples/quickstart.py

test: $(VENV)/test.stamp
	$(call run,quick)

test-all: slow srt npm ray clients frameworks fuzz user pythons
	@$(BIN)/python examples/quickstart.py >/dev/null

# BY_USER=1: without slow attacks, which an ordinary user runs (make user). Root has run the quick ones.
ATTACKS := $(filter-out %/test_mutants.py %/test_mutations.py,$(wildcard tests/escape/test_*.py))
slow: TESTS += $(if $(BY_USER),$(ATTACKS:%=--ignore=%))
slow: $(VENV)/slow.stamp
	$(call run,slow and not srt and not npm and not clients and not ray)

# Prove that each defence is one. It takes half an hour.
mutants: $(VENV)/slow.stamp
	@$(PYTEST) -n $(WORKERS) tests/escape/test_mutants.py $(if $(WHOLE),,--whole)

# Without those that switch off a defence: those of root have done that.
attacks: override TESTS := tests/escape --ignore tests/escape/test_mutants.py --ignore tests/escape/test_mutations.py
attacks: $(VENV)/slow.stamp
	$(call run,slow and not srt and not npm and not clients and not ray)

# Each sandbox of srt is a Node of its own, which takes a core for a moment.
srt: WORKERS := 2
srt: $(VENV)/slow.stamp
	$(call run,srt)

$(VENV)/ray.stamp: $(VENV)/test.stamp
	$(call install,,ray)

# One after the other: three nodes of Ray take both cores, and tests kill what others would be using.
ray: WORKERS := 0
ray: $(VENV)/ray.stamp
	$(call run,ray)

npm: $(VENV)/slow.stamp
	$(call run,npm)

$(VENV)/clients.stamp: $(VENV)/test.stamp
	$(call install,clients)
	$(install_bash_kernel)

# One after the other: they start browsers and servers, which take both cores.
clients: WORKERS := 0
clients: $(VENV)/clients.stamp
	$(call run,clients)

# The frameworks conflict with what is in .venv, so they have environments of their own, which uv sets up in seconds. To run some
# suites alone, without the table: make frameworks ONLY='deepagents dspy'
frameworks: $(VENV)/test.stamp
	@$(BIN)/python tests/frameworks/run.py $(ONLY)

# They take several GB; less with a build of torch for the processor alone, where there is one: TORCH='torch==2.13.0+cpu'
TORCH ?= torch
.venv-libraries/libraries.stamp: override VENV := .venv-libraries
.venv-libraries/libraries.stamp: pyproject.toml
	@echo 'Setting up $(VENV); this takes some minutes, once.'
	$(environment)
	@$(PIP) '$(TORCH)'
	@$(PIP) --editable . --group libraries
	@touch $@

libraries: .venv-libraries/libraries.stamp
	@PYTHONPATH=tests .venv-libraries/bin/python -m fork.in_sessions docs/checkpoints.md

user: $(VENV)/test.stamp
	@.ci/as-user

pythons: $(VENV)/test.stamp
	@.ci/on-another-python

python3.14 containers:
	@.ci/$@

lint: $(VENV)/test.stamp
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(VENV)/types.stamp
	@$(BIN)/mypy

SECONDS ?= 30
fuzz: $(VENV)/test.stamp
	@$(UV) atheris
	@$(BIN)/python tests/fuzz/fuzz_wire.py -max_total_time=$(SECONDS)

$(VENV)/docs.stamp: $(VENV)/test.stamp
	$(call install,docs)

# The page of the console, which is in the repository as it is built here. Installations fetch plotly.js: console/fetch_plotly.py.
console/node_modules/.package-lock.json: console/package-lock.json
	@npm ci --prefix console --silent --no-audit --no-fund

console: console/node_modules/.package-lock.json
	@cd console && node build.mjs

# Without the package, which is installed as a wheel to try it.
.venv-publish/publish.stamp: override VENV := .venv-publish
.venv-publish/publish.stamp: pyproject.toml
	$(environment)
	@$(UV) --group publish
	@touch $@

dist: .venv-publish/publish.stamp
	@.ci/dist

WORKFLOWS := $(wildcard .github/workflows/*.yml)
workflows: .venv-publish/publish.stamp
	@.venv-publish/bin/zizmor --quiet --offline --pedantic .github
	@.venv-publish/bin/check-jsonschema --quiet --builtin-schema vendor.github-workflows $(WORKFLOWS)
	@.venv-publish/bin/check-jsonschema --quiet --builtin-schema custom.github-workflows-require-timeout $(WORKFLOWS)

site: $(VENV)/docs.stamp
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# To measure a part: make bench ONLY=sandbox ROUNDS=1. Its figures replace the older ones in bench/results/.
bench: $(VENV)/test.stamp
	@$(BIN)/python bench/run.py $(if $(ONLY),--only "$(ONLY)") $(if $(ROUNDS),--rounds $(ROUNDS))

# Sandlock is a Python package, of which there is none for some machines. What else is compared must be in PATH.
escape-benchmark: $(VENV)/test.stamp
	@$(UV) sandlock || true
	@$(BIN)/python bench/escape/run.py

clean:
	rm -rf build $(VENV) .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
