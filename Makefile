# Everything a developer does, by name. `make demo` and `make test` need nothing but Python 3.11+.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SETUP  := PYTHON="$(PYTHON)" VENV="$(VENV)" sh scripts/setup.sh
# Two test workers more than cores: half of the long tests wait for other processes.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)

# Tests start hundreds of Python processes: bytecode that is kept, beside the source tree, saves each of
# them a second, even where the environment does not want it in general.
KEEP   := env -u PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX="$(CURDIR)/$(VENV)/pycache"
PYTEST := $(KEEP) $(BIN)/pytest
# A worker takes whole files, in our order: the tests of a file share brokers, clusters and tables.
BY_FILE := --dist loadfile --no-loadscope-reorder

.PHONY: help setup run-setup demo pictures test test-all test-quick test-spark test-compiled compiled lint format soak sanitize mutants bench gate clean

help:
	@echo "make demo        see what it does: a city on four nodes"
	@echo "make test        all checks and tests"
	@echo "make test-quick  without Spark and servers (under one minute)"
	@echo "make test-spark PYSPARK=4.3.0   the tests of the pipeline on another PySpark, in .venv-spark-4.3.0"
	@echo "make pictures    the pictures of the page in docs/pictures, from a city in a browser"
	@echo "make setup       install everything that the others need, and run nothing"
	@echo "make compiled    compiles the broker's core now (set-up does it in the background);  make test-compiled  tests that way"
	@echo "make lint        ruff, mypy, import-linter;  make format  writes what ruff wants"
	@echo "make mutants     plant mistakes in the source, and tell which of them no test notices: an hour or two"
	@echo "make soak        the long runs: thousands of seeded histories, kills, fuzzing"
	@echo "make sanitize    fuzzes the compiled core under AddressSanitizer and UBSan: SECONDS=600"
	@echo "make bench       all benchmarks beside their peers"
	@echo "make gate REVISION=HEAD~50   the broker's speed now, relative to that of a revision"
	@echo "make clean       remove .venv and everything generated"

# Three parts, so that each target waits only for what it needs: scripts/setup.sh says what is in which.
$(VENV)/.run: pyproject.toml constraints.txt
	@$(SETUP) run
	@touch $@

$(VENV)/.learn: $(VENV)/.run
	@$(SETUP) learn
	@touch $@

$(VENV)/.test: $(VENV)/.learn
	@$(SETUP) test
	@touch $@

run-setup: $(VENV)/.run

setup: $(VENV)/.test

# The city lives while PySpark arrives: scripts/demo.sh installs it in the background.
demo: run-setup
	@PYTHON="$(PYTHON)" VENV="$(VENV)" sh scripts/demo.sh

# The pictures of the page, so that they stay true: a small city, and Chromium.
pictures: setup
	$(BIN)/python scripts/pictures.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# All tests are one run: its workers share what is left, file by file, the longest first; a worker has
# one Spark session. A few tests that fail have a second attempt (scripts/run_tests.py). The checks run
# beside it, and a failure of either is one of all.
test: setup
	@$(MAKE) --no-print-directory -j2 --keep-going lint test-all

test-all:
	$(KEEP) $(BIN)/python scripts/run_tests.py -n $(WORKERS) $(BY_FILE)

test-quick: setup
	NEARCAST_HYPOTHESIS=brief $(PYTEST) -n 2 -m "not spark and not server" -q

# The compiled core beside its oracle, the Python modules, which `make test` runs.
compiled: $(VENV)/.test
	@$(BIN)/python -m nearcast.compiling

test-compiled: compiled
	NEARCAST_PLAIN= $(PYTEST) -n $(WORKERS) $(BY_FILE) tests/broker tests/mqtt tests/selective tests/server \
		tests/cluster tests/simulator tests/compiled

# The tests of the pipeline, on the pinned PySpark or on another one in an environment of its own.
SPARK_TESTS := tests/pipeline tests/spark
test-spark:
ifeq ($(PYSPARK),)
	@$(MAKE) --no-print-directory setup
	$(PYTEST) -n $(WORKERS) $(BY_FILE) $(SPARK_TESTS)
else
	@$(MAKE) --no-print-directory VENV=.venv-spark-$(PYSPARK) PYSPARK=$(PYSPARK) setup
	@$(MAKE) --no-print-directory VENV=.venv-spark-$(PYSPARK) PYSPARK= test-spark
endif

mutants: setup
	$(BIN)/python scripts/mutants.py --each 30 --seed 1

soak: setup
	NEARCAST_HYPOTHESIS=soak $(PYTEST) -n $(WORKERS) $(BY_FILE) --timeout=0
	$(BIN)/python fuzz/where.py 1800
	$(BIN)/python fuzz/mqtt.py --seconds 3600 --live
	$(BIN)/python fuzz/valid.py --seconds 3600
	$(BIN)/python fuzz/journal.py --damages 1000
	$(BIN)/python fuzz/connections.py --connections 100000
	$(BIN)/python fuzz/churn.py
	NEARCAST_PLAIN=1 $(BIN)/python fuzz/churn.py
	$(BIN)/python fuzz/sockets.py --seconds 1800
	$(BIN)/python fuzz/overlay.py --seconds 1800
	$(BIN)/python fuzz/attacks.py --seconds 3600 --together
	$(BIN)/python benchmarks/overlay_live.py 300 60

SECONDS ?= 600
sanitize: setup
	$(BIN)/python scripts/sanitize.py --seconds $(SECONDS)

gate: setup
	$(BIN)/python scripts/hot_path_gate.py $(REVISION)

bench: setup
	$(BIN)/nearcast bench match
	$(BIN)/nearcast bench order
	$(BIN)/nearcast bench broker
	$(BIN)/nearcast bench selective
	$(BIN)/nearcast bench network
	$(BIN)/nearcast bench pipeline
	$(BIN)/nearcast bench retained
	$(BIN)/nearcast bench plan
	$(BIN)/nearcast bench overlay

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
