# make serve   set everything up, serve the demo model on http://127.0.0.1:8000
# make test    set everything up, run the tests
# make lint    ruff and mypy
#
# make test-browser    try the pages in a browser
# make test-clients    ask a server with the clients of others, which get an environment of their own
# make test-nvcc       compile the kernels for GPUs, which needs nvcc and no GPU
# make test-soak       everything at once for two minutes, and the engine is killed now and then
#
# make gpu-check, make gpu-bench    what can only be seen on a machine with a GPU
# make gpu-wheels                   what to bring to such a machine that has no network
#
# make serve PORT=8123 MODEL=Qwen/Qwen3-0.6B ARGS='--page-size 32' passes on.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
CLIENTS ?= .venv-clients
PORT   ?= 8000
HOST   ?= 127.0.0.1
MODEL  ?=
ARGS   ?=
TESTS  ?=
# Tests run in a process for each core, up to four: each takes some 1.5 GB. 0 is this process alone.
WORKERS ?= logical
# Tests compare our calls with FlashInfer's signatures: its Python code, without the GPU libraries.
SIGNATURES := flashinfer-python==0.6.13 apache-tvm-ffi==0.1.15.post2 nvidia-ml-py==13.615.71 ninja==1.13.2

.PHONY: serve test test-browser test-clients test-nvcc test-soak lint format setup gpu-check gpu-bench gpu-wheels clean
.DEFAULT_GOAL := help

help:
	@sed -n '1,13s/^# \{0,1\}//p' Makefile

serve: $(VENV)/.serve
	@exec $(BIN)/radixserve serve $(MODEL) --host $(HOST) --port $(PORT) $(ARGS)

test: $(VENV)/.dev
	@$(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 4 --dist worksteal $(TESTS) $(ARGS)

test-browser: $(VENV)/.dev
	@$(BIN)/python -m pytest -m browser $(ARGS)

# Its compilers take all cores, and leave them to whoever answers somebody meanwhile.
test-nvcc: $(VENV)/.dev
	@nice $(BIN)/python -m pytest -m nvcc $(ARGS)

test-soak: $(VENV)/.dev
	@$(BIN)/python -m bench.soak --minutes 2 --kills 3 --no-times --out "$$(mktemp -d)" $(ARGS)

# Without the conftest.py and the warnings of the other tests, which are not for strangers' code.
test-clients: $(VENV)/.dev $(CLIENTS)/.clients
	@RADIXSERVE_PYTHON=$(abspath $(BIN))/python $(CLIENTS)/bin/python -m pytest tests/clients \
	  -m clients --confcutdir tests/clients -W ignore $(ARGS)

lint: $(VENV)/.dev
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

format: $(VENV)/.dev
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

setup: $(VENV)/.dev

gpu-check: $(VENV)/.dev
	@$(BIN)/python -m bench.gpu_check $(ARGS)

gpu-bench: $(VENV)/.dev
	@$(BIN)/python -m bench.gpu_check --bench $(ARGS)

gpu-wheels:
	@$(PYTHON) -m bench.gpu_check --wheels

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "radixserve needs Python 3.11 or newer; name one: make PYTHON=python3.12 ..."; exit 1; }
	@echo "Setting up $(VENV) (once)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.serve: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing radixserve and what it needs (once)"
	@$(BIN)/python -m pip install -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.serve
	@echo "Installing the tools for development (once)"
	@$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	@$(BIN)/python -m pip install --no-deps $(SIGNATURES)
	@touch $@

$(CLIENTS)/.clients: tests/clients/requirements.txt
	@echo "Installing the clients of others into $(CLIENTS) (once)"
	@$(PYTHON) -m venv $(CLIENTS)
	@$(CLIENTS)/bin/python -m pip install -r $<
	@$(CLIENTS)/bin/python -m pip install --no-deps -e .
	@touch $@

clean:
	rm -rf $(VENV) $(CLIENTS)
