# `make demo` runs the main job on this machine's CPU; `make test` runs the tests. Both set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test check install clean

demo: $(STAMP)
	$(BIN)/asyncrl train gridworld_grpo

test: $(STAMP) check
	$(BIN)/python -m pytest -n 2

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

install: $(STAMP)

$(STAMP): requirements/cpu.lock scripts/install.sh pyproject.toml
	PYTHON=$(PYTHON) scripts/install.sh cpu

clean:
	rm -rf $(VENV) .cache build *.egg-info
