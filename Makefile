# `make demo` and `make test` set everything up in .venv on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-slow test-app tutorial trust lint docs fuzz sanitize soak wheel wheel-test lock clean

demo: $(READY)
	$(BIN)/sdgmnet demo -o demo

# The default suite, with a coverage summary. --dist worksteal keeps most tests of a file in one process.
test: $(READY)
	$(BIN)/pytest -q -n auto --maxprocesses 8 --dist worksteal --cov=sdgmnet --cov-report=term:skip-covered

# What takes longer than a minute each.
test-slow: $(READY)
	$(BIN)/pytest -q -m slow

# The page of `sdgmnet app`, in Chromium where it and chromedriver are installed. gradio needs another Pillow than .venv has.
test-app:
	$(PYTHON) -m venv .venv-app
	.venv-app/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 selenium -e '.[dev,app]'
	.venv-app/bin/pytest -q tests/app

# docs/tutorial.ipynb from top to bottom; it trains for about a minute.
tutorial: $(READY)
	$(BIN)/pytest -q --nbmake --nbmake-timeout=1800 docs/tutorial.ipynb

# Faults and damaged input, at a reduced count: kills, full disks, fuzzed files (docs/reliability.md).
trust: $(READY)
	$(BIN)/pytest -q -n auto --maxprocesses 8 --dist loadfile -m 'trust and not slow' tests/trust

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tests/check_words.py
	$(BIN)/mypy

# The documentation site in site/; any warning is an error.
docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/mkdocs build --strict --quiet

# 100 000 mutated files through every reader, and twenty minutes of everything in one process: docs/reliability.md.
fuzz: $(READY)
	$(BIN)/python -m tests.trust.fuzz --count 100000 -o reports/trust

soak: $(READY)
	$(BIN)/python -m tests.trust.soak --minutes 20

# The C++ built with AddressSanitizer and UndefinedBehaviorSanitizer, in a cache of its own, under its tests and more fuzzing.
sanitize: $(READY)
	sh tests/native/sanitize.sh $(BIN)/python

# dist/: the sdist, and a wheel made from it with the kernels inside, under the lowest manylinux tag that auditwheel grants.
wheel: $(READY)
	rm -rf dist
	$(BIN)/python -m build --outdir dist/unchecked .
	@ls dist/unchecked/*-py3-none-any.whl 2> /dev/null && echo 'make wheel needs g++ or clang++: this wheel has no kernels.' && exit 1 || true
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist dist/unchecked/*.whl
	mv dist/unchecked/*.tar.gz dist
	rm -r dist/unchecked

# That wheel in a clean environment, outside the repository, without a compiler and offline.
wheel-test: wheel
	sh tests/wheel.sh $(BIN)/python dist

# locks/: the dependencies that wheels are built and tested with, with hashes; for this Python, machine and index.
lock: $(READY)
	$(BIN)/python tests/lock.py

clean:
	rm -rf $(VENV) build dist site *.egg-info

$(READY): pyproject.toml constraints.txt sdgmnet/version.py
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sdgmnet needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@
