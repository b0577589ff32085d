# The commands of this project. `make` alone lists them.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARTIFACTS ?= out

.DEFAULT_GOAL := help
.PHONY: help docs demo demo-local test test-long test-all test-without-bubblewrap mutants messages check fix bench picture notebooks dist lock clean system

help: ## List the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

# pip prints a line per package; this makes one moving line of them, and one line where nobody looks on.
PIP := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --no-deps
COUNT = awk -v live="$$(test -t 2 && echo 1)" '/^(Collecting|Processing|Requirement already|Obtaining)/ {++n; if (live) {printf "\r  %d packages", n; fflush()}} /^(ERROR|error)/ {print} END {printf "%s  %d packages\n", live ? "\r" : "", n}'

# The package is compiled at once: where PYTHONDONTWRITEBYTECODE is set each of the hundreds of processes that tests start would do it anew.
$(VENV)/.run: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "kestrel_lab needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12 …")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing pinned packages into $(VENV) (a minute or two the first time)"
	@$(PIP) -r requirements.txt 2>&1 | $(COUNT)
	@$(PIP) --editable . 2>&1 | $(COUNT)
	@$(BIN)/python -m compileall -q kestrel_lab
	@touch $@

$(VENV)/.dev: $(VENV)/.run requirements-dev.txt
	@echo "installing what tests and checks need"
	@$(PIP) -r requirements-dev.txt 2>&1 | $(COUNT)
	@touch $@

# Runs are kept under the output folder: a demonstration leaves the project's own log alone. Answers of the model are replayed; leave
# `--cassette replay` out, and it works anew: three minutes on two cores.
demo: export KESTREL_HOME = $(abspath $(ARTIFACTS))/demo/.kestrel
demo: $(VENV)/.run ## Set up and show recorded runs of real models: matrix, comparison, pages (needs no key)
	@$(BIN)/python evals/demo_recorded.py $(ARTIFACTS)/demo || { test $$? = 3 \
		&& echo "Shown instead: the recorded answers of a small local model." && $(MAKE) --no-print-directory demo-local; }

demo-local: export KESTREL_HOME = $(abspath $(ARTIFACTS))/demo-local/.kestrel
demo-local: $(VENV)/.run ## Run an agent with a small local model: a suite over three ways to use it, two commits compared, a notebook
	@$(BIN)/kestrel eval run evals/demo.yaml --cassette replay --report $(ARTIFACTS)/demo-local/report.html --csv $(ARTIFACTS)/demo-local/trials.csv
	@$(BIN)/python evals/demo_repository.py $(ARTIFACTS)/demo-local/repository
	@cd $(ARTIFACTS)/demo-local/repository && $(abspath $(BIN))/kestrel eval compare suite.yaml search memory --suite-at-commit --report ../comparison.html
	@$(BIN)/kestrel notebook run notebooks/01_first_run.ipynb --out $(ARTIFACTS)/demo-local/01_first_run.ipynb
	@echo "report:     $(ARTIFACTS)/demo-local/report.html"
	@echo "comparison: $(ARTIFACTS)/demo-local/comparison.html"
	@echo "trials:     $(ARTIFACTS)/demo-local/trials.csv"
	@echo "notebook:   $(ARTIFACTS)/demo-local/01_first_run.ipynb"

# A file stays in one process, which makes what its tests share once; files with slow tests are begun first. What failed is run once more,
# alone: what passes then is reported as unsteady.
test test-long test-without-bubblewrap: export KESTREL_ARTIFACTS = $(abspath $(ARTIFACTS))/tests
# Written bytecode spares each worker, and each of the three runs, the rewriting of all assertions.
test test-long test-without-bubblewrap: export PYTHONDONTWRITEBYTECODE =
PYTEST := $(BIN)/python tests/second_pass.py -n auto --maxprocesses 5 --no-loadscope-reorder --dist loadfile

test: $(VENV)/.dev system ## Set up what tests need, a browser too, and run all but the long ones
	@$(PYTEST)

# The conformance suite of the Model Context Protocol; it runs on the Node of a Python package. A machine without the network skips its tests.
$(VENV)/conformance/.done: tests/mcp/package.json tests/mcp/package-lock.json $(VENV)/.dev
	@mkdir -p $(@D) && cp tests/mcp/package.json tests/mcp/package-lock.json $(@D)
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/npm ci --prefix $(@D) --ignore-scripts --no-audit --no-fund --loglevel error \
		&& touch $@ || { test -z "$$CI" && echo "the conformance suite of MCP could not be installed: its tests are skipped"; }

test-long: $(VENV)/.dev $(VENV)/conformance/.done system ## Run the long tests: hundreds of kills, hostile pages, every notebook
	@$(PYTEST) -m long

# As on a machine without bubblewrap: a PATH of links to every program but that one.
test-without-bubblewrap: $(VENV)/.dev system ## Run the tests where it matters that bubblewrap is not installed
	@$(BIN)/python tests/path_without.py bwrap -- $(PYTEST) $(WITHOUT_BUBBLEWRAP)

# Where level S1 and the levels of bubblewrap differ; all of CI's time is not there for more.
WITHOUT_BUBBLEWRAP := tests/attacks/test_sandbox_attacks.py tests/checks/test_checks.py tests/cli/test_no_user.py \
	tests/evals/execution/test_checks_held_in.py tests/evals/execution/test_judging.py tests/evals/stored/test_rescore.py \
	$(addprefix tests/runtime/mcp/test_,mcp.py mcp_sandbox.py mcp_start.py) \
	$(addprefix tests/tools/test_,autorun_list.py home_protected.py sandbox.py sandbox_terminal.py shell.py work_folder.py)

test-all: test test-without-bubblewrap test-long ## Run every test

mutants: $(VENV)/.dev ## Change the package in a sample of places and see which changes the tests notice; SEED=, NUMBER=, ONLY=, MODULES= choose
	@$(BIN)/python -m bench.mutants --out $(ARTIFACTS)/mutants $(if $(SEED),--seed $(SEED)) $(if $(NUMBER),--number $(NUMBER)) $(if $(ONLY),--only $(ONLY)) $(if $(MODULES),--modules '$(MODULES)')

messages: $(VENV)/.dev ## Write docs/messages.md, the list of what a person reads
	@$(BIN)/python -m bench.messages

check: $(VENV)/.dev ## Lint, format, types, import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: $(VENV)/.dev ## Repair what ruff can repair
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev ## Measure beside other tools, installed apart, and write the table of README.md; DATA= and REPOSITORIES= add what is found in public data
	@$(BIN)/python -m bench --readme --out $(ARTIFACTS)/bench $(if $(DATA),--data $(DATA)) $(if $(REPOSITORIES),--repositories $(REPOSITORIES))

docs: $(VENV)/.dev ## Build the documentation site, without the network and with broken links as errors
	@$(BIN)/python -m bench.reference_pages
	@$(BIN)/zensical build --strict --clean

picture: $(VENV)/.dev system ## Take the pictures of README.md and docs anew: a run in a real JupyterLab, the page of a suite
	@$(BIN)/python -m bench.picture

notebooks: $(VENV)/.dev ## Execute the notebooks and keep their outputs
	@$(BIN)/python notebooks/execute.py

# What tests need beside Python: a browser, bubblewrap, two servers. Debian's packages where apt may be used, else the browser that playwright
# brings. Tests that still lack something are skipped, and the last lines of a run say what it is.
system: $(VENV)/.dev ## Install what tests need beside Python, where that is allowed
	@missing="$$(for program in chromium bwrap redis-server pg_ctlcluster; do command -v $$program >/dev/null || echo $$program; done)"; \
	if test -n "$$missing" && test "$$(id -u)" = 0 && command -v apt-get >/dev/null; then \
		echo "installing Chromium, bubblewrap, PostgreSQL and Redis for the tests"; \
		(export DEBIAN_FRONTEND=noninteractive; apt-get update -qq && apt-get install -y -qq chromium fonts-dejavu-core bubblewrap postgresql redis-server) >/dev/null \
			|| echo "apt-get could not install them: tests that need them are skipped"; \
	fi
	@command -v chromium chromium-browser google-chrome >/dev/null || $(BIN)/playwright install chromium >/dev/null 2>&1 \
		|| echo "no browser could be installed: its tests are skipped"

dist: $(VENV)/.run ## Build wheel and source distribution and try them in an empty environment of each Python here
	@$(BIN)/python -m bench.distribution --out $(ARTIFACTS)/dist

lock: ## Write the pinned requirements anew (needs uv)
	@$(PYTHON) bench/lock.py

clean: ## Remove what was built
	rm -rf $(VENV) $(ARTIFACTS) build dist .pytest_cache .mypy_cache .ruff_cache
