# The two commands of the house are `make train` and `make test`; `make help` lists the rest.
#
# PYTHON   the interpreter that .venv is made from (3.11 or newer)
# ARGS     handed on: `make train ARGS="my.yaml steps=500"`, `make test ARGS="tests/placement -x"`
#
# pip's own settings choose where torch comes from: PIP_INDEX_URL, PIP_EXTRA_INDEX_URL (README, "Which torch")

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: help train test slow lint clean

help:
	@echo 'make train   install, then train on the mini data set      ARGS="CONFIG.yaml key=value ..."'
	@echo 'make test    install what tests need, run the default suite ARGS="pytest arguments"'
	@echo 'make slow    the tests that the default suite leaves out'
	@echo 'make lint    format, lint, types, layers'
	@echo 'make clean   remove .venv and the caches of tools; data/ and runs/ stay'

train: $(VENV)/.stamp-train
	$(BIN)/python -m zellige_ray train $(ARGS)

test: $(VENV)/.stamp-dev
	$(BIN)/python -m pytest $(ARGS)

slow: $(VENV)/.stamp-dev
	$(BIN)/python -m pytest -m 'slow and not gpu' $(ARGS)

lint: $(VENV)/.stamp-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# A stamp is younger than what it was installed from: a second run installs nothing, a changed requirement reinstalls.
$(VENV)/.stamp-train: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Zellige needs Python 3.11 or newer, $(PYTHON) is " + sys.version.split()[0] + "; name one with PYTHON=") if sys.version_info < (3, 11) else 0'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo 'Installing Zellige and its pinned dependencies into $(VENV): once, a minute or two'
	@$(PIP) install --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp-train
	@echo 'Installing what tests need into $(VENV): once'
	@$(PIP) install --constraint constraints.txt --editable '.[dev]'
	@touch $@

clean:
	rm -rf .venv .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
