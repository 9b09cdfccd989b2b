# Every target runs out of .venv and makes it first if it is not there (or if what it is made from has changed).
#
#   make test PYTHON=/path/to/python3.12      another Python for a new .venv (3.11 or later)
#   make test PYTEST_ARGS="-x tests/wire"     other arguments for pytest

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.stamp-dev

# What goes into it.
EXTRAS      := dev
CONSTRAINTS := constraints.txt

# Environments of their own, for `test-launchers` and `test-torch`.
LAUNCHERS_VENV ?= .venv-launchers
TORCH_VENV     ?= .venv-torch-$(VERSION)

# Empty: the first of PYTHON_CANDIDATES that runs and is new enough.
PYTHON ?=
PYTHON_CANDIDATES := python3.11 python3.12 python3.13 python3.14 python3 python
IS_NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))

PYTEST_ARGS ?= -n auto --dist worksteal
BENCH_ARGS  ?= allreduce --workers 2,4 --size 1K,1M,64M --against gloo
DEMO_ARGS   ?=
SOAK_SECONDS ?= 600

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-p4 test-browser test-launchers test-torch soak test-install lint types format bench experiments docs proto vectors p4 clean distclean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv (the other targets do this themselves)

demo: $(STAMP) ## train a model with in-network aggregation on this machine
	$(BIN)/inagg demo $(DEMO_ARGS)

test: $(STAMP) ## the tests of the default tier; needs no root
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-slow: $(STAMP) ## all tests, the slow ones as well
	$(BIN)/python -m pytest --slow $(PYTEST_ARGS)

test-p4: $(STAMP) ## the tests on a real bmv2 switch; needs simple_switch_grpc on PATH, and root
	$(BIN)/python -m pytest -m p4 $(PYTEST_ARGS)

test-browser: $(STAMP) ## the live view in a real browser; needs Chromium on PATH
	$(BIN)/python -m pytest --slow -m browser $(PYTEST_ARGS)

test-launchers: ## the examples with Lightning, Accelerate, Ray and torchft, in an environment of their own
	@$(MAKE) --no-print-directory setup VENV=$(LAUNCHERS_VENV) EXTRAS=dev,lightning,accelerate,ray,torchft
	$(LAUNCHERS_VENV)/bin/python -m pytest -m "lightning or accelerate or ray or torchft"

test-torch: ## the tests of PyTorch with another one: make test-torch VERSION=2.15.0; in an environment of its own
	@[ -n "$(VERSION)" ] || { echo "make: say which: make test-torch VERSION=2.15.0" >&2; exit 1; }
	@echo "torch==$(VERSION)" > .constraints-torch-$(VERSION).txt  # alone: other releases need other dependencies
	@$(MAKE) --no-print-directory setup VENV=$(TORCH_VENV) CONSTRAINTS=.constraints-torch-$(VERSION).txt
	$(TORCH_VENV)/bin/python -m pytest tests/host/torch tests/host/compress $(PYTEST_ARGS)

soak: $(STAMP) ## simulate workers, switch and a bad network for SOAK_SECONDS; prints seeds that fail
	$(BIN)/python -m tests.host.sim --soak $(SOAK_SECONDS)

test-install: $(STAMP) ## install the wheel with its dependencies into an empty environment
	$(BIN)/python -m pytest --slow tests/project/test_install.py

lint: $(STAMP) types ## ruff (rules and format) and mypy --strict
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(STAMP) ## mypy --strict over the packages and the tests
	$(BIN)/mypy --strict

format: $(STAMP) ## let ruff mend and format the sources
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(STAMP) ## measure the all-reduce beside Gloo (1 min); BENCH_ARGS=... for another benchmark
	$(BIN)/inagg bench $(BENCH_ARGS)

experiments: $(STAMP) ## carry out the papers' claims (15 min); writes testbed/results/
	$(BIN)/inagg experiment all --out testbed/results

docs: $(STAMP) ## build the documentation into build/site; what is wrong with a link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open build/site/index.html"

proto: $(STAMP) ## generate the gRPC code anew from protos/inagg_proto
	$(BIN)/python -m inagg_proto.generate

vectors: $(STAMP) ## generate the golden vectors anew
	$(BIN)/python tests/vectors/generate.py

p4: $(STAMP) ## compile the P4 programs, where p4c is on PATH
	$(BIN)/python p4/compile.py

clean: ## remove build outputs and caches; .venv stays
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find protos switch host command testbed docs tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove .venv and its like as well
	rm -rf $(VENV) .venv-* .constraints-torch-*.txt

# pip gets no index from here: it uses the one that is configured on the machine. If it is quiet, it does not say what
# is in conflict with what.
INSTALL = $(BIN)/python -m pip install --disable-pip-version-check -c $(CONSTRAINTS) -e '.[$(EXTRAS)]'
$(STAMP): pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	@echo "$(INSTALL)"
	@$(INSTALL) --quiet || { echo "make: that failed; once more, in full:" >&2; $(INSTALL); }
	@touch $@

$(BIN)/python:
	@set -e; \
	if [ -n "$(PYTHON)" ]; then \
	  "$(PYTHON)" -c '$(IS_NEW_ENOUGH)' || { \
	    echo "make: PYTHON=$(PYTHON) is not a Python 3.11 or later ($$("$(PYTHON)" -V 2>&1))" >&2; exit 1; }; \
	  python="$(PYTHON)"; \
	else \
	  python=; \
	  for candidate in $(PYTHON_CANDIDATES); do \
	    if "$$candidate" -c '$(IS_NEW_ENOUGH)' >/dev/null 2>&1; then python="$$candidate"; break; fi; \
	  done; \
	  [ -n "$$python" ] || { \
	    echo "make: inagg needs Python 3.11 or later, and none of these is one: $(PYTHON_CANDIDATES)." >&2; \
	    echo "make: Install one, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }; \
	fi; \
	echo "making $(VENV) with $$("$$python" -V)"; \
	"$$python" -m venv $(VENV) || { \
	  rm -rf $(VENV); \
	  echo "make: could not make $(VENV); on Debian and Ubuntu the package python3-venv is needed" >&2; exit 1; }
