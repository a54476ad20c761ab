PYTHON ?= python3
VENV := .venv
TORCH_VENV := .venv-torch
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-torch lint slow matrix simulate planted bench tables docs papers clean

help: ## show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.installed ## install, then clean corrupted labels over a ring of ten nodes
	$(BIN)/decibel demo

test: lint ## install, lint, check types and run the tests that guard every behaviour
	$(PYTEST)

test-all: test slow ## the same, then the slow tests

lint: $(VENV)/.installed-test ## check style and types only
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python

PART ?= 1/1
slow: $(VENV)/.installed-test ## run only the slow tests, which `make test` leaves out; PART=1/4 runs a quarter of them
	$(PYTEST) -m slow --part $(PART)

test-torch: $(TORCH_VENV)/.installed ## run the tests of modules from PyTorch, in an environment of their own
	$(TORCH_VENV)/bin/python -m pytest -n 2 -m "slow or not slow" tests/pytorch
	$(TORCH_VENV)/bin/python -m pytest -m "slow or not slow" tests/test_docs.py -k needs_more

matrix: ## test with every installed Python, and the oldest and newest JAX that are allowed
	python3 tests/matrix.py

SEEDS ?= 10000
simulate: $(VENV)/.installed-test ## run a whole silo under SEEDS schedules of faults (10000, and a sixth without a common clock, a twentieth with one peer a step), on a virtual clock
	cd tests && ../$(BIN)/python -m simulation --seeds $(SEEDS) --all
	cd tests && ../$(BIN)/python -m simulation --seeds $$(($(SEEDS) / 6)) --all --asynchronous
	cd tests && ../$(BIN)/python -m simulation --seeds $$(($(SEEDS) / 20)) --all --one-peer

planted: $(VENV)/.installed-test ## plant a hundred small faults, one at a time, and see that a default test finds each (goes on where it was)
	cd tests && ../$(BIN)/python -m planted --again

bench: $(VENV)/.installed ## measure a step and name what became slower than the committed results
	$(BIN)/python -m benchmarks step --json build/bench.json
	$(BIN)/python -m benchmarks compare build/bench.json

tables: $(VENV)/.installed ## write the tables of methods, exports and completions from the methods themselves
	$(BIN)/python docs/tables.py

docs: $(VENV)/.installed-docs ## build the documentation into site/
	$(BIN)/python -m mkdocs build --quiet --strict

papers: docs ## print the three write-ups to build/papers/*.pdf, with chromium or Chrome
	$(BIN)/python docs/papers.py

clean: ## remove the virtual environment, caches and builds
	rm -rf $(VENV) $(TORCH_VENV) build dist site .pytest_cache .ruff_cache
	find src studies tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Each stamp stands for one set of installed packages; all share one environment. The version is in __init__.py.

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "Decibel needs Python 3.11 or newer: name one with 'make PYTHON=/path/to/python3.11'." >&2; exit 1; }
	@echo "Making the virtual environment $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.made pyproject.toml studies/pyproject.toml constraints.txt src/decibel/__init__.py
	@echo "Installing decibel-opt and decibel-studies (a minute or two, once) ..."
	@$(PIP) -e '.[all]' -e ./studies
	@touch $@

$(VENV)/.installed-%: $(VENV)/.installed pyproject.toml constraints.txt
	@echo "Installing what '$*' needs ..."
	@$(PIP) -e '.[$*]'
	@touch $@

# Of its own: the torch that torchax works with is not the one of `[bench]`.
$(TORCH_VENV)/.installed: pyproject.toml constraints.txt src/decibel/__init__.py
	@echo "Making $(TORCH_VENV), with torch and torchax (a large download) ..."
	@$(PYTHON) -m venv $(TORCH_VENV)
	@$(TORCH_VENV)/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[torch,tasks]' flax \
	    pytest pytest-xdist
	@touch $@
