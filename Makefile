PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Many tests wait for something, so one process more than there are processors. With two for each they took a seventh less
# time, and two of them missed deadlines that are promises to users.
WORKERS = $$($(BIN)/python -c 'import os; print((os.cpu_count() or 1) + 1)')

# Bytecode is kept even where the environment has it otherwise: without it every process compiles the package anew, and
# every process of pytest all tests, twice the time of a collection.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help

INSTALL := install --quiet --disable-pip-version-check --constraint constraints.txt --editable

# A PYTHON that is given and is not that of the environment makes it anew; without one it stays as it is.
OF := import sys; print(sys.base_prefix, sys.version.split()[0])
ifneq ($(origin PYTHON),file)
ifneq ($(shell $(PYTHON) -c '$(OF)'),$(shell $(BIN)/python -c '$(OF)' 2>/dev/null))
.PHONY: another-python
$(VENV)/.core: another-python
CLEAR := --clear
endif
endif

# The program alone, for the demo. The pip that is there already installs it, so the environment needs none of its own.
$(VENV)/.core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(CLEAR) --without-pip $(VENV)
	$(PYTHON) -m pip --python $(BIN)/python $(INSTALL) .
	@touch $@

$(VENV)/.ready: $(VENV)/.core
	$(BIN)/python -m ensurepip >/dev/null
	$(BIN)/python -m pip $(INSTALL) '.[dev]'
	@touch $@

$(VENV)/.docs: $(VENV)/.ready
	$(BIN)/python -m pip $(INSTALL) '.[docs]'
	@touch $@

.PHONY: help demo test test-programs fuzz soak lint format docs requirements mutants threats golden interop hosts image bench-peers screenshots clean

help:  ## show what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 16

demo: $(VENV)/.core  ## start the server on fixtures/skills, talk to it, show what comes back
	@$(BIN)/python tools/demo.py

test: $(VENV)/.ready  ## the tests that need nothing but Python (ARGS="tests/web" for some of them)
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m 'not needs_program' $(ARGS)

test-programs: $(VENV)/.ready  ## those that need another program: a browser, git, a sandbox, proxies, Redis, a registry
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m needs_program $(ARGS)

fuzz: $(VENV)/.ready  ## the tests whose input is wild, with 100 times as much of it (some minutes)
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m hypothesis --hypothesis-profile=fuzz

lint: $(VENV)/.ready  ## ruff (format and rules) and pyright (strict on src/)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/pyright

format: $(VENV)/.ready  ## let ruff format and fix what it can
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

docs: $(VENV)/.docs  ## build the pages and the reference of the library into .site/, and check every link between them
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

requirements: $(VENV)/.ready  ## which rule of docs/requirements.md has which test, both ways
	@$(BIN)/python -m tools.requirements

mutants: $(VENV)/.ready  ## break one package's source on purpose and see what its tests notice (ARGS=--record first, then ARGS="format --sample 20")
	@$(BIN)/python -m tools.mutants $(ARGS)

threats: $(VENV)/.ready  ## take each defence of docs/threats.md away, one at a time, and see its test fail (a minute or two)
	@$(BIN)/python -m tools.threats $(ARGS)

golden: $(VENV)/.ready  ## write tests/golden/ and docs/protocols.md anew from a real server; read the difference before you commit it
	@$(BIN)/python tools/golden.py

soak: $(VENV)/.ready  ## kill replicas and Redis under writers and clients, and see that nothing is lost (10 minutes; ARGS="--minutes 1")
	@$(BIN)/python -m tools.soak $(ARGS)

interop: $(VENV)/.ready  ## let independent referees judge the server (needs npm)
	@$(BIN)/python -m tools.interop $(ARGS)

hosts: $(VENV)/.ready  ## drive seven real hosts with a scripted model (npm, over a gigabyte; ARGS="codex" for one of them)
	@$(BIN)/python -m tools.hosts $(ARGS)

image: $(VENV)/.ready  ## build the container image and run it, with buildah and without a Docker engine
	@$(BIN)/python -m tools.image

bench-peers: $(VENV)/.ready  ## measure speed and memory beside other servers and a floor, and write docs/benchmarks.md (npm; ARGS=--quick: minutes)
	@$(BIN)/python -m bench $(ARGS)

screenshots: $(VENV)/.ready  ## the pictures of docs/images, in the system's Chromium (ARGS="--all DIR": every view, to be looked at)
	@$(BIN)/python -m tools.screenshots $(ARGS)

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .site .pytest_cache .ruff_cache .hypothesis
