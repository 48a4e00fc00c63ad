# Two commands matter: `make demo` and `make test`. Each makes its own environment.
# PYTHON is the interpreter to start from: CPython 3.11 or later (3.11 or 3.12 for `make test`).
SHELL := bash
PYTHON ?= python3
DEMO := .venv-demo
DEV := .venv

# Debian keeps mosquitto where a user's PATH does not reach.
MOSQUITTO := $(or $(shell command -v mosquitto),$(wildcard /usr/sbin/mosquitto))
# Without mosquitto the demo takes a broker that pip installs, which exists for x86-64.
DEMO_EXTRAS := $(if $(MOSQUITTO),demo,demo,broker)

.PHONY: demo test image-test lint format bench clean
.DEFAULT_GOAL := demo

demo: $(DEMO)/installed
	$(DEMO)/bin/edge-kit demo $(ARGS)

test: $(DEV)/installed lint
	$(DEV)/bin/pytest --durations=15 $(ARGS)

# Builds an image twice and boots it as QEMU's virt and raspi3b: half an hour, and docs/images.md
# says which programs it needs.
image-test: $(DEV)/installed
	$(DEV)/bin/pytest -m image --durations=0 -s $(ARGS)

lint: $(DEV)/installed
	$(DEV)/bin/ruff check .
	$(DEV)/bin/ruff format --check .
	$(DEV)/bin/mypy
	$(DEV)/bin/lint-imports

format: $(DEV)/installed
	$(DEV)/bin/ruff check --fix .
	$(DEV)/bin/ruff format .

bench: $(DEV)/installed
	set -e; for script in benchmarks/*.py; do echo "== $$script"; $(DEV)/bin/python $$script; done

clean:
	rm -rf $(DEMO) $(DEV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache \
	  .import_linter_cache .hypothesis demo-report
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

define supported
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
  echo "edge-kit needs Python 3.11 or later; name one with: make PYTHON=python3.11" >&2; exit 1; }
endef

$(DEMO)/installed: pyproject.toml
	$(supported)
	@echo "Installing into $(DEMO), once"
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/pip install --quiet -e '.[$(DEMO_EXTRAS)]'
	touch $@

# torch first and by itself, so that the pin is what pip sees before the converters ask for one.
$(DEV)/installed: pyproject.toml
	$(supported)
	$(PYTHON) -m venv $(DEV)
	$(DEV)/bin/pip install torch==2.13.0
	$(DEV)/bin/pip install --quiet -e '.[dev,export]'
	touch $@
