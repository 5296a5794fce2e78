# `make help` lists the targets. Everything runs in the project's own .venv, made on first use.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[all,dev]'
	@touch $@

demo: $(READY) ## install, then train on the handwritten digits and show the result
	$(BIN)/scs train digits --out runs/digits

test: $(READY) ## install, then run every test
	$(BIN)/python -m pytest -n 2 -m "not browser"

test-fast: $(READY) ## the quick tests only
	$(BIN)/python -m pytest -n 2 -m "not slow and not browser"

test-browser: $(READY) ## open reports in a real Chromium (CHROMIUM=path of another one)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[all,browser]'
	$(BIN)/python -m pytest tests/browser

check: $(READY) ## format, lint, types, import directions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: $(READY) ## let ruff repair what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY) ## measure against the peers, side by side; writes docs/benchmarks/
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[all,bench]'
	$(BIN)/python benchmarks/pairs.py
	$(BIN)/python benchmarks/loop.py

docs: $(READY) ## make docs/methods.md anew from the docstrings
	$(BIN)/scs methods --markdown > docs/methods.md

torture: $(READY) ## kill runs at random moments and compare what comes out
	$(BIN)/python -m pytest tests/test_torture.py

.PHONY: help demo test test-fast test-browser check fix bench docs torture
