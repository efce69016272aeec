# On a fresh machine with Python >= 3.11 and make: `make demo` shows everlearn at work, `make test` runs every test.
PYTHON ?= python3
VENV ?= .venv
VERSIONS ?= pinned
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# Small shared machines: idle OpenMP threads sleep instead of spinning (measured: 4x on a busy two-core machine).
export OMP_WAIT_POLICY = PASSIVE
export TOKENIZERS_PARALLELISM = false

# Python compiles what is imported; pip would compile all of transformers and torch as well, in half a minute.
export PIP_NO_COMPILE = 1
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo test test-times check unit faults fuzz soak mistakes site wheel notebook base base-english clean

help:
	@echo "make demo   learn four domains plainly, with EWC and with what init recommends, and make one page on it (about 6 minutes on 2 cores)"
	@echo "make test   lint, types and every test"
	@echo "make test-times   every test, and where the processor's time went"
	@echo "make faults, fuzz, soak   commands that are killed, inputs that are wrong, hundreds of domains (COUNT=1000 SEED=0 MINUTES=60 OUTPUT=file)"
	@echo "make mistakes   make every mistake of tests/mistakes and write the site's page of them, build/mistakes.md (about 2 minutes)"
	@echo "make site   the documentation as a site that opens offline: site/index.html"
	@echo "make notebook   make notebooks/first-steps.ipynb of its source and run it (about 4 minutes on 2 cores)"
	@echo "make wheel  wheel and source archive, tried in a new environment: dist/ (VERSIONS=lowest, pinned or newest)"
	@echo "make base   rebuild the demo's base model from recipes/base-docs.yaml (37 minutes on one core here)"
	@echo "make base-english DATA=folder   rebuild benchmarks/bases/english (folder: wikipedia and books; 50 minutes on one core)"

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "everlearn needs Python 3.11 or newer; set PYTHON=python3.12 or so")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,docs]"
	@touch $@

demo: install
	$(BIN)/everlearn demo

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: install
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# Side by side: types need one core for half a minute, in which the workers of the tests collect theirs.
test: install
	$(MAKE) --jobs 2 check unit

# What each test, shared fixture and the collection took of the processor: the slowest, and build/times/times.json.
test-times: install
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n 2 --dist worksteal -p times --times build/times

# A part of each runs with every test (tests/endurance).
faults fuzz soak: install
	cd tests && OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(abspath $(BIN))/python -m endurance.$@ $(if $(COUNT),--count $(COUNT)) \
	    $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(OUTPUT),--output $(abspath $(OUTPUT)))

mistakes: install
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python tests/mistakes/table.py -n 2

site: install mistakes
	rm -rf site
	$(BIN)/python -m sphinx --quiet --fresh-env --fail-on-warning --keep-going -d build/site docs site
	@echo "Open site/index.html."

notebook: install
	$(BIN)/python notebooks/make.py

wheel: install
	rm -rf build dist
	$(BIN)/python -m build
	EVERLEARN_DIST=dist EVERLEARN_VERSIONS=$(VERSIONS) HF_HUB_OFFLINE=1 $(BIN)/python -m pytest tests/project/test_wheel.py

base: install
	$(BIN)/everlearn run recipes/base-docs.yaml
	$(BIN)/python -m everlearn_bench.suites.docs.ship runs/base-docs/stage-01-documentation

base-english: install
	@test -n "$(DATA)" || { echo "Say where wikipedia and books are: make base-english DATA=folder"; exit 2; }
	$(BIN)/python benchmarks/bases/english/make.py prepare "$(DATA)"
	$(BIN)/everlearn run benchmarks/bases/english/recipe.yaml
	$(BIN)/python benchmarks/bases/english/make.py ship

clean:
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .ruff_cache .mypy_cache
