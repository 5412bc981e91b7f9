# eyas: `make demo` and `make test` are enough on a machine with git, make and Python 3.11 or newer.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
BIN := .venv/bin
STAMP := .venv/.installed
# Pytest's own options, and the number of processes that run tests: make test PYTEST="-k draft" WORKERS=4
PYTEST ?=
WORKERS ?= 2
# Which engines are installed: make engines ENGINES=llamacpp
ENGINES ?= llamacpp vllm sglang

# Benchmarks that need nothing but the environment
BENCHES ?= audit extraction flow_overhead http_client paid_journal reconstruction served_losses state_reading training

.PHONY: help venv engines demo smoke up test lint bench clean

help: ## What can be made
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1	\2/'

venv: $(STAMP) ## The environment in .venv, every version as in constraints.txt

engines: venv ## llama.cpp, vLLM and SGLang for this CPU, each in an environment under ~/.cache/eyas/engines
	$(BIN)/python -m tasks.engines.install $(ENGINES)

demo: venv ## The main job: prompts to a measured draft, on two cores (results in ./store)
	$(BIN)/python -m flows.build_draft deployments/recipes/quickstart.yaml

smoke: venv ## The same way in about two minutes
	$(BIN)/python -m flows.build_draft deployments/recipes/smoke.yaml

up: venv ## Prefect's server and the flows that can be started from it, on http://127.0.0.1:4200
	$(BIN)/python -m deployments.serve

lint: venv ## Style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

test: lint ## Style, types and every test, the slow ones too
	$(BIN)/pytest -m "" -n $(WORKERS) --dist loadfile $(PYTEST)

bench: venv ## Speed and memory, as ratios that are printed; others in tests/benchmarks need engines or a finished run
	@for name in $(BENCHES); do \
		echo "== $$name"; $(BIN)/python -m tests.benchmarks.$$name || exit 1; done

clean: ## Remove the environment; the store stays
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache .hypothesis

$(STAMP): pyproject.toml constraints.txt deployments/demo-wheels.txt
	@test -n "$(PYTHON)" || { \
		echo "eyas needs Python 3.11 or newer: none was found. Install one, or say which: make $(MAKECMDGOALS) PYTHON=/path/to/python" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "eyas needs Python 3.11 or newer; $(PYTHON) is $$("$(PYTHON)" -V 2>&1). Say which to take: make $(MAKECMDGOALS) PYTHON=/path/to/python" >&2; exit 1; }
	@test -x $(BIN)/pip || "$(PYTHON)" -m venv .venv || { rm -rf .venv; \
		echo "$(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "installing into .venv (some minutes the first time)"
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo,dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -r deployments/demo-wheels.txt
	@touch $@
