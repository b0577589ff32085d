# The commands of this project. `make` alone lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARTIFACTS ?= out

.DEFAULT_GOAL := help
.PHONY: help demo test check fix bench notebooks lock clean browser

help: ## List the commands
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(VENV)/.run: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "kestrel_lab needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12 …")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing pinned packages into $(VENV) (a minute or two the first time)"
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --progress-bar on --no-deps -r requirements.txt
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.run requirements-dev.txt
	@echo "installing what tests and checks need"
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --progress-bar on --no-deps -r requirements-dev.txt
	@touch $@

demo: $(VENV)/.run ## Set up and run the main job: a suite over a real local model and a scripted one
	@$(BIN)/python -m kestrel_lab.demo --out $(ARTIFACTS)/demo

test: $(VENV)/.dev browser ## Set up what tests need, a browser too, and run all of them
	@KESTREL_ARTIFACTS=$(ARTIFACTS)/tests $(BIN)/python -m pytest

check: $(VENV)/.dev ## Lint, format, types, import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: $(VENV)/.dev ## Repair what ruff can repair
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev ## Measure overhead beside other tools (installs them in environments of their own)
	@$(BIN)/python -m bench --out $(ARTIFACTS)/bench

notebooks: $(VENV)/.dev ## Execute the notebooks and keep their outputs
	@$(BIN)/python notebooks/execute.py

# Debian's Chromium where apt may be used, else the one that playwright brings.
browser: $(VENV)/.dev
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
		|| { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -y -qq chromium fonts-dejavu-core >/dev/null; } \
		|| $(BIN)/playwright install chromium

lock: ## Write the pinned requirements anew (needs uv)
	@$(PYTHON) bench/lock.py

clean: ## Remove what was built
	rm -rf $(VENV) $(ARTIFACTS) build dist .pytest_cache .mypy_cache .ruff_cache
