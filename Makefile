# `make demo` runs the main job on this machine's CPU; `make test` runs the core's tests, `make test-all`
# all of them. Each sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# One more than the cores of a small machine: many tests wait for processes that start or for a deadline.
TEST_PROCESSES ?= 3
# The folders and files of tests that start no engine and train nothing, for the everyday loop.
QUICK := tests/algo tests/buffer tests/chat tests/commands tests/conformance tests/data tests/evaluation tests/run \
	tests/rollout tests/extensions/benchmarks tests/extensions/monitor tests/extensions/simulation tests/testing tests/weights $(wildcard tests/test_*.py tests/env/test_*.py tests/launch/test_*.py)

.PHONY: demo test test-all quick check lint site install clean

demo: $(STAMP)
	$(BIN)/asyncrl train gridworld_grpo

# The package, and the scripts that import each other as they are started.
MYPY := $(BIN)/mypy && MYPYPATH=scripts $(BIN)/mypy --explicit-package-bases scripts/*.py scripts/acceptance/*.py

# Runs tests, and mypy beside them; what it says stands at the end.
define beside_mypy
@mkdir -p .mypy_cache; ($(MYPY)) >.mypy_cache/report 2>&1 & types=$$!; \
	$(BIN)/python -m pytest $(1); tests=$$?; \
	wait $$types; types=$$?; cat .mypy_cache/report; exit $$((tests | types))
endef

# The core, and what stands on files that differ from the commit CHANGED, such as origin/main.
test: $(STAMP) lint
	$(call beside_mypy,-n $(TEST_PROCESSES) -m "not at_length" $(if $(CHANGED),--changed $(CHANGED)))

# Everything: the core first, then the tests at length.
test-all: test
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) -m at_length

# A process for each core: these tests hardly wait, and every process collects them all.
quick: $(STAMP) lint
	$(call beside_mypy,-n logical -m "not slow" $(QUICK))

check: lint
	$(MYPY)

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

# The documentation, to be opened as files or put on any web server.
site: $(STAMP)
	$(BIN)/python scripts/site/build_site.py --out build/site

install: $(STAMP)

$(STAMP): requirements/cpu.lock requirements/extras.lock scripts/install.sh pyproject.toml
	PYTHON=$(PYTHON) scripts/install.sh cpu

clean:
	rm -rf $(VENV) .cache build *.egg-info
