# Everything this project does, as targets. CI, the README and the hooks call these and nothing else.
# Needs: make, git, Python 3.11 or newer with venv, and PyPI the first time.

# The interpreter of the virtualenv: python3, or the newest other one when that is too old.
# make PYTHON=python3.13 VENV=.venv-3.13 test   runs the tests on another.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then echo $$python; exit; fi; \
	done; echo none)
TOLD := $(if $(filter none,$(PYTHON)),python3,$(PYTHON))
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.made
ARGS ?=
ROOM ?=

# The caller's PYTHONPATH would let other code stand in for this. Without compiled files each run compiles all tests anew,
# and each process that a test starts compiles the program.
unexport PYTHONPATH PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-all test-postgres lint format types docs docs-check record pictures site doctor bench bench-smoke conformance clients torture release lock clean

help:  ## say what the targets do
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP)  ## set up .venv; nothing to do when it is there

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || { \
		echo "Capsule needs Python 3.11 or newer, and $(TOLD) says: $$($(TOLD) --version 2>&1 | head -1)." \
			"Install one, or name it: make PYTHON=/path/to/python3.13 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' >/dev/null 2>&1 || { \
		echo "$(PYTHON) has no venv module; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "installing Capsule, what it needs, and the tools of its tests from PyPI into $(VENV), with $$($(PYTHON) --version):" \
		"a minute or two, once"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt hatchling
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[test,lint,web]'
	@touch $@

demo: $(STAMP)  ## show the main job on a real store
	@$(BIN)/capsule store demo $(ARGS)

test: $(STAMP)  ## run the tests, of the slow ones a sample (ROOM=git: of one room; ARGS="-k name")
	@$(BIN)/python -m pytest -q -n auto --dist worksteal -m "not slow or sample" $(if $(ROOM),tests/$(ROOM)) $(ARGS)

# The wheel of claude-agent-sdk has 370 MB of a program that no test runs; its source has 2 MB.
SDKS := --no-binary claude-agent-sdk -c constraints.txt
test-all: $(STAMP)  ## run all tests
	@$(BIN)/python -m pip install -q --disable-pip-version-check $(SDKS) -e '.[agents,browser,server]'
	@HYPOTHESIS_PROFILE=ci $(BIN)/python -m pytest -q -n auto --dist worksteal $(if $(ROOM),tests/$(ROOM)) $(ARGS)
	@$(if $(ROOM),,$(ON_POSTGRES) $(addprefix tests/,core/store core/watch core/index messaging torture/test_model.py))

# With CAPSULE_ENGINE=postgres stores of tests are in PostgreSQL, and those that look at files are skipped.
ON_POSTGRES := CAPSULE_ENGINE=postgres $(BIN)/python -m pytest -q -n auto --dist worksteal -m "not slow or sample"
test-postgres: $(STAMP)  ## run all tests of what stands above the engines on PostgreSQL; make test-all runs a part
	@$(ON_POSTGRES) $(addprefix tests/,core/store core/watch core/index core/cli core/mcp_server context messaging sessions \
		transfer web torture/test_model.py) $(ARGS)

lint: $(STAMP)  ## look for what ruff knows to be wrong, and for other formatting than ruff's
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(STAMP)  ## put the code in ruff's format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: $(STAMP)  ## check the types
	@$(BIN)/mypy

docs: $(STAMP)  ## write what is generated: schemas/, docs/cli.md, cli/, mcp.md, api/, architecture.svg
	@$(BIN)/python docs/generate.py

docs-check: $(STAMP)  ## say whether what is generated is what is committed
	@$(BIN)/python docs/generate.py --check

record: $(STAMP)  ## record docs/tour.svg anew, from real commands
	@$(BIN)/python docs/record.py

pictures: $(STAMP)  ## take the pictures of the page in docs/ anew, in a real browser
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[browser]'
	@CAPSULE_PICTURES=docs $(BIN)/python -m pytest -q -n 0 tests/web/test_pictures.py

# A page of the site must load nothing from elsewhere: no script, style, font or picture.
ELSEWHERE := <(script|img|iframe|source)[^>]+src="?(https?:)?//|<link[^>]+href="?(https?:)?//|@import|url\(.?(https?:)?//
site: $(STAMP)  ## make docs/ a site, in build/site
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[site]'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q
	@! grep -rnoE --include='*.html' --include='*.css' --include='*.svg' '$(ELSEWHERE)' build/site

doctor: $(STAMP)  ## examine the sample conversations of this repository
	@$(BIN)/capsule --store . doctor
	@$(BIN)/capsule store validate conversations

bench: $(STAMP)  ## measure, side by side with what one would use instead
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[bench]'
	@$(BIN)/python -m benchmarks $(ARGS)

bench-smoke: $(STAMP)  ## run every measurement once in its smallest size, without judging times
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[bench]'
	@$(BIN)/python -m benchmarks --smoke $(ARGS)

conformance: $(STAMP)  ## run the official MCP conformance suite on the server (needs npm)
	@$(BIN)/python tests/conformance/run.py $(ARGS)

clients: $(STAMP)  ## run real MCP clients, with the settings that `capsule mcp install` writes (needs npm)
	@$(BIN)/python tests/clients/run.py $(ARGS)
	@$(BIN)/python tests/clients/typescript/run.py --may-skip

torture: $(STAMP)  ## run the long versions of the crash and stress tests (minutes)
	@HYPOTHESIS_PROFILE=torture CAPSULE_TORTURE=1 $(BIN)/python -m pytest -q --timeout=3600 $(ARGS)

release: $(STAMP)  ## make the source distribution and the wheel of this commit in dist/, with SHA256SUMS
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-build-isolation -e '.[release]'
	@$(BIN)/python .ci/release.py

lock:  ## write constraints.txt anew, from what PyPI has today
	@rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	@.venv-lock/bin/python -m pip install -q --disable-pip-version-check --no-binary claude-agent-sdk \
		-e '.[test,lint,web,browser,site,bench,tokens,agents,release,server]'
	@{ grep '^#' constraints.txt; .venv-lock/bin/python -m pip freeze --all --exclude pip --exclude-editable; } > .venv-lock/new
	@mv .venv-lock/new constraints.txt && rm -rf .venv-lock

clean:  ## remove what the other targets made
	@rm -rf .venv .venv-* .node build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
