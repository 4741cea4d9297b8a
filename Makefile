# `make demo` and `make test` set everything up in .venv on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-slow lint fuzz soak wheel-test clean

demo: $(READY)
	$(BIN)/sdgmnet demo -o demo

test: $(READY)
	$(BIN)/pytest -q -n auto --maxprocesses 8 --dist loadfile

test-slow: $(READY)
	$(BIN)/pytest -q -m slow

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Mutated files through every reader, and twenty minutes of everything in one process: docs/reliability.md.
fuzz: $(READY)
	$(BIN)/python -m tests.trust.fuzz --count 100000 -o reports/trust

soak: $(READY)
	$(BIN)/python -m tests.trust.soak --minutes 20

# The built wheel in a clean environment, outside the repository.
wheel-test: $(READY)
	sh tests/wheel.sh $(BIN)/python

clean:
	rm -rf $(VENV) build dist *.egg-info

$(READY): pyproject.toml constraints.txt sdgmnet/version.py
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sdgmnet needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@
