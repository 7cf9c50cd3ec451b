PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SECONDS ?= 7200

.PHONY: demo test test-fast check docs dist faults fuzz memory clean

demo: $(VENV)/.ready-demo  ## set up, run addition in words on a real language model, say where the report is
	$(BIN)/redx run addition --brief

test: check  ## lint, types and all tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

test-fast: $(VENV)/.ready-test  ## all tests but the slow ones
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

check: $(VENV)/.ready-test  ## lint and types alone
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

fuzz: $(VENV)/.ready-test  ## 200,000 mutated files, each accepted or refused in one sentence; SECONDS bounds the time
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m faults.fuzz --cases 200000 --seconds $(SECONDS)

memory: $(VENV)/.ready-test  ## let every command read hostile files of 50 MB, and show the memory that it takes
	OMP_NUM_THREADS=1 PYTHONPATH=src:tests $(BIN)/python -m faults.memory

docs: $(VENV)/.ready-docs  ## build the documentation in build/site
	$(BIN)/mkdocs build --strict

dist: $(VENV)/.ready-dist  ## wheel and sdist in dist, checked as PyPI checks them
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready-demo: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[report,text]'
	touch $@

$(VENV)/.ready-test: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

$(VENV)/.ready-docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

$(VENV)/.ready-dist: | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'build>=1.2' 'twine>=6'
	touch $@

faults: $(VENV)/.ready-test  ## stop every command at every change of a file and by signals; takes about an hour
	OMP_NUM_THREADS=1 PYTHONPATH=src:tests $(BIN)/python -m faults $(FAULTS)
	OMP_NUM_THREADS=1 PYTHONPATH=src:tests $(BIN)/python -m faults.crafted

clean:  ## remove what make and redx made here
	rm -rf $(VENV) runs build dist .pytest_cache .ruff_cache .hypothesis
