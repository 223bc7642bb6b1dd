PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test test-slow lint clean

# Judge the recorded hang of a real two-GPU job; the exit status is 0 when the verdict is the expected one.
demo: $(VENV)/.ready
	$(BIN)/python -m torchtriage.evals.check evals/cases/case-001

test: $(VENV)/.dev-ready
	$(BIN)/python -m pytest -n auto

# What takes longer: wheel and editable installs, large flight-recorder sets, floods of damaged files.
test-slow: $(VENV)/.dev-ready
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/.dev-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready: $(VENV)/bin/python pyproject.toml
	$(PIP) --editable .
	touch $@

$(VENV)/.dev-ready: $(VENV)/.ready
	$(PIP) --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
