# `make` lists the verbs. Every verb that needs the environment sets it up first; that is one cached step.
VENV ?= .venv
PYTHON ?= python3
SPEC ?= jobs/specs/sweeps/smoke.yaml
STORE ?= results
OTHER ?= HEAD~1
TREE ?= .
BIN := $(VENV)/bin
READY := $(VENV)/.longhaul-ready
# Tests wait more than they compute: two cores have time for three. Those of a file share what they start, and
# stay together; in their order the short ones come last, so that nobody waits at the end.
SIDE_BY_SIDE := --numprocesses=3 --dist=loadfile --no-loadscope-reorder --max-worker-restart=0

.DEFAULT_GOAL := help
.PHONY: help setup sweep mixed report dry-run unit test test-hosts test-versions test-oldest stores attacks gpu check format golden bench bench-trees bench-scale bench-gpu bench-recovery compare-damage soak lock audit release clean

help:  ## list the verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## make the environment in .venv

$(READY): pyproject.toml constraints.txt
	$(PYTHON) cluster/set_up.py $(VENV) --extras test,check $(VENV_FLAGS)
	@touch $@

sweep: setup  ## run the smoke sweep (SPEC=file STORE=folder), print the table, write the report
	$(BIN)/longhaul sweep $(SPEC) --store $(STORE); found=$$?; $(BIN)/longhaul report --store $(STORE) && exit $$found

# Slower or undecided is an answer too; this machine may well be busier in one half of the time.
mixed: setup  ## compare two simulated groups, side by side on this machine (STORE=folder)
	$(BIN)/longhaul cluster local cluster/mixed.yaml -- $(BIN)/longhaul sweep jobs/specs/sweeps/mixed.yaml --store $(STORE)
	$(BIN)/longhaul report --store $(STORE) --sweep mixed
	$(BIN)/longhaul compare '$(STORE)#sweep=mixed,group=nvidia' '$(STORE)#sweep=mixed,group=amd'; [ $$? -ne 2 ]

report: setup  ## make the report of everything in STORE again and show it
	$(BIN)/longhaul report --store $(STORE) --open

dry-run: setup  ## show what `make sweep` would do
	$(BIN)/longhaul sweep $(SPEC) --store $(STORE) --dry-run

unit: setup  ## run the quick tests alone: no Ray, no torch; minutes
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) tests/unit

test: setup  ## run all tests but the long proofs
	$(BIN)/python -m pytest $(SIDE_BY_SIDE)

test-hosts: setup  ## run the tests that make hosts on this machine, and train on them; needs root
	$(BIN)/python -m pytest -m 'hosts and not soak' $(SIDE_BY_SIDE) tests/hosts_tier

test-versions: setup  ## run the quick tests with the oldest and newest versions of pyproject.toml; half an hour
	$(BIN)/python -m tests.unit.versions

test-oldest: setup  ## run what touches a library with the oldest version of each; two minutes, in CI too
	$(BIN)/python -m tests.unit.versions --oldest

stores: setup  ## run the stores' contract and races against moto, MiniStack, s3rver, Azurite and Swift, each installed once
	$(BIN)/python -m pytest -m '' tests/live/stores/test_objects.py -k 'Moto or Ministack or S3rver or Azurite or Swift'

attacks: setup  ## attack this tree as strangers do, or the checkout in TREE=folder; as root also as other users
	$(BIN)/python -m tests.security $(TREE)

gpu: setup  ## check on this machine's NVIDIA or AMD device whatever can run on one; without one, say so
	$(BIN)/python -m tests.gpu

check: setup  ## format, lint, types, architecture: seconds
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_architecture.py
	$(BIN)/python -m tests.unit.audit --if-at-hand

format: setup  ## let ruff put the code in order
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

golden: setup  ## rewrite what is kept under tests/golden; review the diff
	LONGHAUL_UPDATE_GOLDEN=1 $(BIN)/python -m pytest -q tests/unit

bench: setup  ## show performance as ratios, each beside the obvious alternative
	$(BIN)/python -m tests.bench

bench-trees: setup  ## a step, a save and a start beside those of another commit (OTHER=commit); ten minutes
	$(BIN)/python -m tests.bench.trees $(OTHER)

bench-scale: setup  ## what saves, choices, gc, heartbeats and a month of saves cost at up to 16,384 ranks (manifests 65,536), simulated
	$(BIN)/python -m tests.bench.ten_thousand

bench-gpu: setup  ## measure a 1B model on this machine's device, beside transformers' own; without one, say so
	$(BIN)/python -m tests.bench.gpu

bench-recovery: setup  ## how soon a training goes on after a fault, beside stock Ray Train; root, an hour
	$(BIN)/python -m tests.bench.recovery

compare-damage: setup  ## what the same damage does to checkpoints of torch DCP, Ray Train and ours
	$(BIN)/python -m tests.bench.damage

soak: setup  ## the long proofs: hours; some of them need root
	$(BIN)/python -m pytest -m soak $(SIDE_BY_SIDE)

lock: setup  ## write the versions that are installed to constraints.txt, their digests to locked/
	$(BIN)/python -m tests.unit.lock

audit: setup  ## look up known holes of constraints.txt by pip-audit; say so where its database is out of reach
	$(BIN)/python -m tests.unit.audit

release: setup  ## build the wheel, and list what it needs as an SBOM (CycloneDX), in build/
	$(BIN)/pip wheel --no-deps -w build/wheel .
	$(BIN)/python -m tests.unit.sbom build/longhaul.cdx.json

clean:  ## remove the environment and caches; results stay
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
