# Two commands for a fresh machine with Python 3.11+: `make demo` and `make test`. Both set up what they need in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo demo-live test lint types layers unit test-live requirements clean help

help:
	@echo "make demo          the story in a minute: kill, take over, cancel, verify (real processes)"
	@echo "make demo-live     the same with a small real model, offline (builds llama.cpp once, some minutes)"
	@echo "make test          everything: lint, types, layers, all tests on memory, SQLite and PostgreSQL"
	@echo "make requirements  which requirement is proved by which test"

$(VENV)/installed: pyproject.toml
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Quiesce needs Python 3.11 or later"'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

# llama.cpp is built for a common processor: a build for exactly this one is not faster enough to be worth a wrong guess.
$(VENV)/installed-live: $(VENV)/installed
	CMAKE_ARGS="-DGGML_NATIVE=OFF" $(BIN)/python -m pip install --disable-pip-version-check -e '.[local-model]'
	touch $@

demo: $(VENV)/installed
	$(BIN)/quiesce demo

demo-live: $(VENV)/installed-live
	$(BIN)/quiesce demo --live

test: lint types layers requirements-check unit

lint: $(VENV)/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/installed-dev
	$(BIN)/mypy

layers: $(VENV)/installed-dev
	$(BIN)/lint-imports

unit: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n 2 --dist loadfile -q

test-live: $(VENV)/installed-dev $(VENV)/installed-live
	$(BIN)/python -m pytest -q -m live

requirements: $(VENV)/installed-dev
	@$(BIN)/python tools/requirements.py

.PHONY: requirements-check
requirements-check: $(VENV)/installed-dev
	@$(BIN)/python tools/requirements.py > /dev/null

clean:
	rm -rf $(VENV) demo-session
