# `make demo` runs the main job on this machine's CPU; `make test` runs the tests. Both set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# The folders and files of tests that start no engine and train nothing, for the everyday loop.
QUICK := tests/algo tests/buffer tests/chat tests/commands tests/conformance tests/data tests/evaluation tests/run \
	tests/rollout tests/testing tests/weights $(wildcard tests/test_*.py tests/env/test_*.py tests/launch/test_*.py)

.PHONY: demo test quick check install clean

demo: $(STAMP)
	$(BIN)/asyncrl train gridworld_grpo

test: $(STAMP) check
	$(BIN)/python -m pytest -n 2

quick: $(STAMP) check
	$(BIN)/python -m pytest -n 2 -m "not slow" $(QUICK)

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

install: $(STAMP)

$(STAMP): requirements/cpu.lock scripts/install.sh pyproject.toml
	PYTHON=$(PYTHON) scripts/install.sh cpu

clean:
	rm -rf $(VENV) .cache build *.egg-info
