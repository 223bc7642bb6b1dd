PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# What the training jobs of live-demo and of the tests run on. A CPU build does, and is smaller:
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make test
TORCH ?= torch==2.13.0

.PHONY: demo live-demo test test-slow lint clean

# Judge the recorded hang of a real two-GPU job; the exit status is 0 when the verdict is the expected one.
demo: $(VENV)/.ready
	$(BIN)/python -m torchtriage.evals.check evals/cases/case-001

# Let a job of four ranks hang on this machine and judge it live; exit status as above. FAULT= picks what goes wrong.
live-demo: $(VENV)/.torch-ready
	$(BIN)/python evals/faults/drill/demo.py $(FAULT)

test: $(VENV)/.dev-ready $(VENV)/.torch-ready
	$(BIN)/python -m pytest -n auto --dist loadgroup

# What takes longer: wheel and editable installs, large flight-recorder sets, floods of damaged files, hanging jobs.
test-slow: $(VENV)/.dev-ready $(VENV)/.torch-ready
	$(BIN)/python -m pytest -n auto --dist loadgroup -m slow

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

$(VENV)/.torch-ready: $(VENV)/.ready
	$(PIP) '$(TORCH)' numpy
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
