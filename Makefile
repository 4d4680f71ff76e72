# Every target sets up what it needs: a machine with Python and make is enough.
PYTHON ?= python3
BIN := .venv/bin

# Where it is set, every process would compile every file again: each of those that tests run in, and each that they start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo check quick test coverage lint type format bench wheel docs firmware clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    record a simulated cart-pole, learn to balance it, and run the policy on it"
	@echo "make check   lint, types and the tests that are quick, before every commit"
	@echo "make quick   of these the tests alone"
	@echo "make test    run the tests, on all cores"
	@echo "make coverage"
	@echo "             the same, and which lines they reach"
	@echo "make lint    check style and the import contracts"
	@echo "make type    check types"
	@echo "make format  format the code"
	@echo "make docs    build the documentation"
	@echo "make wheel   build the package and check it, into dist"
	@echo "make firmware"
	@echo "             build the serial board's hex files, into robot/firmware/build"
	@echo "make bench   measure speed and rewrite benchmarks/results"

PIP_INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# A third of the packages is enough to try it.
.venv/demo: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP_INSTALL) -e ".[export,robot]"
	@touch $@

.venv/installed: .venv/demo
	$(PIP_INSTALL) -e ".[dev]"
	@touch $@

demo: .venv/demo
	$(BIN)/nopg demo

# Types keep one core busy, and need not wait for the tests.
check: .venv/installed
	@$(MAKE) --no-print-directory --jobs 2 --keep-going type quick lint

quick: .venv/installed
	$(BIN)/pytest -m "not slow and not real_time" --numprocesses auto --dist worksteal

# Tests with deadlines mostly wait, two files at a time. Those that compute fill the time meanwhile, and give way at once: by Linux's
# idle class, or else by nice. A computer may stand still for longer than a deadline all the same: what fails is tried again, and
# whatever still fails by itself when all else is over, four times in all at most. All that was tried again is listed.
GIVING_WAY := $(shell chrt --idle 0 true 2>/dev/null && echo chrt --idle 0 || echo nice -n 19)
COMPUTING = -m "not real_time" --numprocesses auto --dist loadfile --no-loadscope-reorder
DEADLINES = tests/robot -m real_time -o cache_dir=.pytest_cache/deadlines -raR
TWO_FILES = --numprocesses 2 --dist loadfile --no-loadscope-reorder --reruns 1 --reruns-delay 2
ALONE = --last-failed --last-failed-no-failures none --reruns 1 --reruns-delay 5
# All tests ran, and some failed: whatever else went wrong does not go away by running those again.
SOME_FAILED = 1
LOG = .pytest_cache/deadlines.log

test: .venv/installed
	@mkdir -p .pytest_cache
	@echo "Tests with deadlines run meanwhile; what they say follows at the end, and is in $(LOG)."
	@$(BIN)/pytest $(DEADLINES) $(TWO_FILES) > $(LOG) 2>&1 & deadlines=$$!; trap "kill $$deadlines; exit 130" INT TERM; \
	$(GIVING_WAY) $(BIN)/pytest $(COMPUTING); computed=$$?; \
	wait $$deadlines; kept=$$?; cat $(LOG); \
	test $$kept -ne $(SOME_FAILED) || { $(BIN)/pytest $(DEADLINES) $(ALONE); kept=$$?; }; \
	test $$computed -eq 0 && test $$kept -eq 0

coverage: .venv/installed
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(COMPUTING)
	$(BIN)/coverage run -m pytest $(DEADLINES) $(TWO_FILES) || { test $$? -eq $(SOME_FAILED) && $(BIN)/coverage run -m pytest $(DEADLINES) $(ALONE); }
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

type: .venv/installed
	$(BIN)/mypy

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/installed
	$(BIN)/python benchmarks/update_time.py
	$(BIN)/python benchmarks/bandwidth_time.py
	$(BIN)/python benchmarks/env_speed.py
	$(BIN)/python benchmarks/control_loop.py
	$(BIN)/python benchmarks/guard.py
	$(BIN)/python benchmarks/console.py

# What a release is made of; docs/release.md has the rest.
wheel: .venv/demo
	$(PIP_INSTALL) "build>=1.2" "twine>=6"
	rm -rf dist
	$(BIN)/python -m build --quiet --outdir dist
	$(BIN)/twine check --strict dist/*

docs: .venv/installed
	$(BIN)/sphinx-build -W -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

# Of your rig: make firmware SUPPLY_MV=12000 VOLTAGE_LIMIT_MV=6000 (docs/wiring.md)
firmware:
	@$(MAKE) --no-print-directory -C robot/firmware

clean:
	rm -rf robot/firmware/build docs/_build .venv build dist *.egg-info .coverage* .mypy_cache .pytest_cache .ruff_cache .hypothesis runs
