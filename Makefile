# `make demo` and `make test` work on a fresh machine with Python 3.11 or newer and nothing else: they make what they need.
#   PYTHON=python3.12      the interpreter to make environments with
#   CONSTRAINTS=           leave the CPU build of torch out, e.g. on a GPU machine
#   PINS='trl==1.9.2'      other releases of the host than the newest, in an environment made anew
PYTHON ?= python3
CONSTRAINTS ?= constraints/cpu.txt

TRL := .venv-trl
PINS ?=
PIP_INSTALL = $(1)/bin/python -m pip install --quiet --disable-pip-version-check $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))
PYTEST = $(1)/bin/python -m pytest

.PHONY: demo test test-slow check bench clean

## two GRPO runs, with and without the objective: demo/report.html
demo: $(TRL)/.done
	$(TRL)/bin/wm demo

## the tests on TRL, without the slow ones
test: $(TRL)/.done
	$(call PYTEST,$(TRL)) -m "not slow"

## end-to-end runs
test-slow: $(TRL)/.done
	$(call PYTEST,$(TRL)) -m slow

## format, lint, types
check: $(TRL)/.done
	$(TRL)/bin/ruff format --check .
	$(TRL)/bin/ruff check .
	$(TRL)/bin/mypy

## figures into benchmarks/results
bench: $(TRL)/.done
	$(TRL)/bin/python benchmarks/step_time.py
	$(TRL)/bin/python benchmarks/bookkeeping.py

# torch first: what comes after it would otherwise choose a build of its own
$(TRL)/.done: pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "wm-plugin needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(TRL)
	$(call PIP_INSTALL,$(TRL)) torch
	$(call PIP_INSTALL,$(TRL)) --editable '.[demo,maze,peft,dev]' $(foreach pin,$(PINS),'$(pin)')
	touch $@

clean:
	rm -rf $(TRL) build demo *.egg-info
