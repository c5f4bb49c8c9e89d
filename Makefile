# Everything runs in .venv, which is made when it is first needed.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

# Real data beside the project is used by the tests and experiments that can.
ifneq ($(wildcard ../shared/data/README.md),)
export ADAQN_DATA ?= $(abspath ../shared/data)
endif

# All of .ci/run has a quarter of an hour on two cores. CI's log tells where the time goes.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal $(if $(CI),--durations=25)

# What compares numbers that were computed in two ways: the mathematics, the optimizers, the paper's algorithms.
# Without what asks for messages, arguments and names, where last digits decide nothing.
NUMBERS := tests/core tests/optim tests/fullbatch tests/parameters tests/test_reference.py \
	$(addprefix --ignore=tests/,optim/test_bad_input.py optim/test_face.py optim/test_formats.py \
	optim/test_no_waiting.py optim/test_torch_arguments.py fullbatch/test_closure.py fullbatch/test_telling.py)
THREADS ?= 1

.PHONY: setup demo test test-slow test-numbers check lint types docs dist bench memory-table figures clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt oracles.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,docs]'
	$(BIN)/python -m pip install --quiet --no-deps --requirement oracles.txt
	touch $@

demo: setup  ## train the paper's RNN with AdaQN, the published adaQN, Adagrad and Adam; leaves a picture and a report
	$(BIN)/adaqn compare --out demo-output

test: setup  ## all tests but the slow ones
	$(PYTEST) -m "not slow"

test-slow: setup  ## all tests
	$(PYTEST)

# Waiting threads sleep: two tests of two threads each on two cores would mostly spin.
test-numbers: setup  ## the numerical tests with other last digits: CAPABILITY=default or avx2, THREADS=1 or 2
	$(if $(CAPABILITY),ATEN_CPU_CAPABILITY=$(CAPABILITY)) ADAQN_TEST_THREADS=$(THREADS) OMP_WAIT_POLICY=passive \
		$(PYTEST) -q -m "not slow" $(NUMBERS)

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict  # never --quiet: it hides warnings from --strict too

# With `make -j2 check` the first three run side by side, and the tests after them.
ifneq ($(filter check,$(MAKECMDGOALS)),)
test: lint types docs
endif

# The tests look at the site that was built, instead of building another.
check: export ADAQN_SITE := $(CURDIR)/site
check: lint types docs test  ## what to run before a push; continuous integration adds test-numbers (.ci/run)

dist: setup  ## a wheel and an sdist in dist/
	$(BIN)/python -m build

bench: setup  ## cost of a step and of its memory on this machine
	$(BIN)/python benchmarks/step_cost.py
	$(BIN)/python benchmarks/memory.py

memory-table: setup  ## the table of memory in README.md and docs/index.md, after a default has changed
	$(BIN)/python benchmarks/state_table.py --write

figures: setup  ## draw the figures of the paper in docs/figures again, from the results in experiments/
	for scale in quick paper; do \
		$(BIN)/adaqn figure all --scale $$scale --redraw --results experiments/$$scale --out docs/figures || exit 1; \
	done
	rm -f docs/figures/*.png

clean:
	rm -rf .venv site dist demo-output .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
