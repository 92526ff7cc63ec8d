# make demo · make test · make lint · make bench
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin

.PHONY: demo test test-slow lint bench soak install clean
.DEFAULT_GOAL := help

help: ## Say what there is
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# The stamp is newer than pyproject.toml exactly when the environment is up to date.
.venv/installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Reef needs Python 3.11 or newer: set PYTHON=/path/to/python3"; exit 1; }
	@echo "── setting up .venv with $$($(PYTHON) --version) (a minute, once)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install -qq --disable-pip-version-check -e '.[dev]'
	@touch $@

install: .venv/installed ## Set up .venv

demo: .venv/installed ## Run the main job end to end (UPSTREAM= MODEL= KEY_ENV= for a real model, KEEP=1 to leave it running)
	@$(BIN)/python cordis/examples/demo/demo.py $(if $(UPSTREAM),--upstream '$(UPSTREAM)') $(if $(MODEL),--model '$(MODEL)') $(if $(KEY_ENV),--key-env '$(KEY_ENV)') $(if $(KEEP),--keep)

test: .venv/installed ## Run the tests (the real Pi, real git, real SQLite)
	@echo "── running the tests"
	@$(BIN)/python -m pytest $(ARGS)
	@echo "── passed. Next: make demo, make lint, or make bench"

test-slow: .venv/installed ## Run the finer tests, which load the machine
	@$(BIN)/python -m pytest -m slow --timeout=1800 $(ARGS)

lint: .venv/installed ## ruff, mypy, import-linter
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

bench: .venv/installed ## Measure beside the peers, and write benchmarks/results (ARGS=--quick, --full, --only=reef,bare)
	@$(BIN)/python -m benchmarks.gateway $(ARGS)

soak: .venv/installed ## 200,000 requests: does memory stay flat, is no record missing?
	@$(BIN)/python -m benchmarks.soak $(ARGS)

clean: ## Remove .venv and the demo's state
	rm -rf .venv .demo
