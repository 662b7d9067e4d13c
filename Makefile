# make demo   install into .venv and run the main job
# make test   install into .venv and run everything that CI runs
# make quick  the fast tests only
# make check  format, lint, types and import directions
# make docs   write the generated pages

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest
# What each group of tests prints comes in one piece, where make can do that.
TOGETHER := $(if $(filter output-sync,$(.FEATURES)),-O)

.PHONY: demo test quick check docs clean all-tests test-evolution test-runs test-rest

demo: $(INSTALLED)
	$(BIN)/evoprune evolve --preset demo

test: check
	$(MAKE) -j3 $(TOGETHER) all-tests

quick: $(INSTALLED)
	$(MAKE) -j3 $(TOGETHER) all-tests OPTIONS='-m "not heavy and not real"'

# Side by side: evolution takes about as long as all the rest, and runs mostly waits for SLURM.
all-tests: test-evolution test-runs test-rest

test-evolution test-runs: test-%:
	$(PYTEST) $(OPTIONS) tests/$*

test-rest:
	$(PYTEST) $(OPTIONS) --ignore=tests/evolution --ignore=tests/runs

check: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(INSTALLED)
	$(BIN)/python docs/_operators.py
	$(BIN)/python docs/_api.py
	$(BIN)/python docs/_commands.py
	$(BIN)/python docs/_reproducing.py
	$(BIN)/python docs/_scoring_table.py

# Every package at the version of constraints.txt, so that no install takes another torch.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
