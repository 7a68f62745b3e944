# Every target makes the environment it needs (.venv, exact versions from requirements/) by itself.
#
#     make test PYTHON=python3.12          another Python (3.11 or later)
#     make test ARGS="-n 2 tests/core"     more arguments for pytest (also for slow and bench)

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
# Twice quiet: errors only.
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
SHELL := /bin/bash

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test slow gpu check fix bench docs lock clean

# Scripts in .venv name its full path, so a checkout that was copied or moved starts a new one.
ifneq ($(wildcard .venv/.made),)
ifneq ($(shell cat .venv/.made),$(realpath .))
$(shell rm -rf .venv)
endif
endif

help: ## this list
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 14

demo: .venv/.demo ## the tour: a real model, quantized and measured
	@HF_HUB_OFFLINE=1 $(BIN)/blockscale demo $(ARGS)

test: .venv/.test ## the fast tests (minutes)
	@$(BIN)/python -m pytest $(ARGS)

slow: .venv/.test ## the exhaustive tests
	@$(BIN)/python -m pytest -m slow $(ARGS) || [ $$? -eq 5 ] # 5: there are none

gpu: ## the tests that need CUDA, in the environment at hand (torch with CUDA, pytest)
	@$(PYTHON) -m pytest -m gpu tests/gpu $(ARGS)

check: .venv/.dev ## lint, format and types
	@failed=0; \
	$(BIN)/ruff check --output-format concise || failed=1; \
	$(BIN)/ruff format --check --output-format concise || { echo "'make fix' formats them"; failed=1; }; \
	$(BIN)/mypy || failed=1; \
	exit $$failed

fix: .venv/.dev ## what the linter and the formatter can repair
	@$(BIN)/ruff check --fix; $(BIN)/ruff format

bench: .venv/.test ## measure speed, into benchmarks/results/
	@if [ -f benchmarks/run.py ]; then $(BIN)/python -m benchmarks.run $(ARGS); \
	else $(BIN)/python -m benchmarks.import_time; fi

docs: .venv/.demo ## write the generated pages again
	@$(BIN)/python docs/generate.py

lock: ## resolve requirements/*.txt again, torch kept
	@bash requirements/lock.sh $$(grep -h '^torch==' requirements/demo.txt)

clean: ## remove the environment and the caches
	@rm -rf .venv .pytest_cache .ruff_cache .mypy_cache .hypothesis build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.made:
	@command -v $(PYTHON) > /dev/null || { \
		echo "blockscale needs Python 3.11 or later, and '$(PYTHON)' is not there: make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "blockscale needs Python 3.11 or later; this is $$($(PYTHON) --version): make PYTHON=python3.11"; exit 1; }
	@echo "making .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv .venv || { echo "no venv in this Python (Debian: apt install python3-venv)"; exit 1; }
	@echo '$(realpath .)' > $@

# The build backend is among the requirements, so installing blockscale itself fetches nothing.
.venv/.demo: requirements/demo.txt pyproject.toml | .venv/.made
	@echo "installing requirements/demo.txt and blockscale into .venv (once; minutes)"
	@$(PIP) -r requirements/demo.txt
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

.venv/.test: requirements/test.txt .venv/.demo
	@echo "installing requirements/test.txt into .venv (once)"
	@$(PIP) -r requirements/test.txt
	@touch $@

.venv/.dev: requirements/dev.txt .venv/.test
	@echo "installing requirements/dev.txt into .venv (once)"
	@$(PIP) -r requirements/dev.txt
	@touch $@
