# Every target works on a fresh clone: the virtual environment is made and filled on first use and reused after that.
# PIP_ARGS is passed to pip. On a machine without a GPU, PIP_ARGS="--extra-index-url <PyTorch's CPU wheel index>" spares
# the download of the CUDA build where pip would choose it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
PIP_ARGS ?=
PYTEST_WORKERS ?= 2
PYTEST_ARGS ?=
PYTEST := $(BIN)/python -m pytest -n $(PYTEST_WORKERS) $(PYTEST_ARGS)

# Named after what was installed, so that a checkout that only touches times installs nothing again.
INSTALLED := $(shell cat pyproject.toml constraints.txt | cksum | cut -d' ' -f1)
RUNTIME := $(VENV)/.runtime-$(INSTALLED)
DEVELOPMENT := $(VENV)/.development-$(INSTALLED)

# The first interpreter that runs and is new enough; a launcher on PATH may belong to a Python that is not installed.
CANDIDATES := python3 python3.13 python3.12 python3.11 python3.10 python3.14 python
FIND_PYTHON = for candidate in $(CANDIDATES); do \
	"$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1 && { echo "$$candidate"; exit 0; }; done

.PHONY: help
help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

$(BIN)/python:
	@python="$(PYTHON)"; [ -n "$$python" ] || python="$$($(FIND_PYTHON))" || true; \
	if [ -z "$$python" ]; then echo "no Python 3.10 or newer was found on PATH; try: make PYTHON=/path/to/python3" >&2; exit 1; fi; \
	echo "creating $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv $(VENV) || { rm -rf $(VENV); \
	echo "venv failed; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }

$(RUNTIME): | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt $(PIP_ARGS) -e .
	@rm -f $(VENV)/.runtime-* $(VENV)/.development-*; touch $@

$(DEVELOPMENT): | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt $(PIP_ARGS) -e '.[dev]'
	@rm -f $(VENV)/.runtime-* $(VENV)/.development-*; touch $@ $(RUNTIME)

.PHONY: quickstart
quickstart: $(RUNTIME) ## fetch the default model, compare two variants on it, print the verdict
	$(BIN)/specbench pull smollm2-135m
	$(BIN)/specbench ab scenarios/quickstart.yaml --baseline off

.PHONY: test
test: $(DEVELOPMENT) ## every test but the slow, gpu and fuzz ones
	$(PYTEST) -m "not slow and not gpu and not fuzz"

.PHONY: test-slow
test-slow: $(DEVELOPMENT) ## the slow and fuzz tests
	$(PYTEST) -m "(slow or fuzz) and not gpu"

.PHONY: test-gpu
test-gpu: $(DEVELOPMENT) ## the tests that need a CUDA device
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m gpu

.PHONY: lint
lint: $(DEVELOPMENT) ## style, formatting, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

.PHONY: check
check: lint test ## what a change must pass: lint, then test

.PHONY: format
format: $(DEVELOPMENT) ## rewrite the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: clean
clean: ## remove the virtual environment and every cache
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
