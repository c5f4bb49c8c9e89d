# Everything runs in .venv, which is made when it is first needed.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

# Real data beside the project is used by the tests and experiments that can.
ifneq ($(wildcard ../shared/data/README.md),)
export ADAQN_DATA ?= $(abspath ../shared/data)
endif

.PHONY: setup demo test test-slow check lint types docs dist bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt oracles.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,docs]'
	$(BIN)/python -m pip install --quiet --no-deps --requirement oracles.txt
	touch $@

demo: setup  ## train the paper's RNN with AdaQN, Adagrad and Adam; leaves a picture and a report
	$(BIN)/adaqn compare --out demo-output

test: setup  ## all tests but the slow ones
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-slow: setup  ## all tests
	$(BIN)/python -m pytest -n 2

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # never --quiet: it hides warnings from --strict too

check: lint types test docs  ## what continuous integration runs

dist: setup  ## a wheel and an sdist in dist/
	$(BIN)/python -m build

bench: setup  ## cost of a step and of its memory on this machine
	$(BIN)/python benchmarks/step_cost.py
	$(BIN)/python benchmarks/memory.py

clean:
	rm -rf .venv site dist demo-output .pytest_cache .mypy_cache .ruff_cache .hypothesis
