# Needs Python 3.11 or newer, pip and make; everything else is installed into .venv.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
INSTALLED = $(VENV)/.installed
READY = $(VENV)/.ready
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
ENGINES = .venv-engines
TORCHES = .venv-torches
PINS = --constraint constraints.txt --constraint docs/engines/constraints.txt
WORKERS ?= 2
OUT ?= pipeconform-results

.PHONY: help setup demo engines torches gpu gpu-bundle test test-full clusters disasters coverage check format bench kill-matrix mutants standard pictures docs docs-version release clean

help:
	@echo "make demo       judge torch's own pipelining on CPU (smoke profile)"
	@echo "make engines    judge DeepSpeed, megatron-core, ColossalAI, DualPipe and torchgpipe, in an environment of their own"
	@echo "make torches    judge torch 2.9 to 2.15, in an environment each (25 GB)"
	@echo "make gpu        everything that is to be known of a machine with an NVIDIA GPU; can be interrupted and repeated"
	@echo "make gpu-bundle  the same as an archive for such a machine without a network"
	@echo "make test       pipeconform's own tests"
	@echo "make test-full  these and the long ones (wheel, findings, other engines); can be interrupted and repeated"
	@echo "make clusters   runs under a real Slurm and a real Ray, started on this machine"
	@echo "make disasters  a hundred runs under Slurm that are killed, cancelled, drained, preempted"
	@echo "make coverage   which lines the tests reach (without those that only rank processes run)"
	@echo "make check      lint, types, import contracts"
	@echo "make kill-matrix  run every fault and 80 mutants, and write docs/kill-matrix.md"
	@echo "make mutants    run the tests on small mistakes in pipeconform's own code, and write docs/mutants.md"
	@echo "make standard   write docs/standard.md, faults.md, judged-fields.md and reference/ from the code"
	@echo "make pictures   draw docs/learn, and write its captions and tables"
	@echo "make docs       the documentation as a site, in build/site"
	@echo "make docs-version  commit the site of this version beside earlier ones, to the branch gh-pages"
	@echo "make release    check that this can be released, and build it; uploads nothing"
	@echo "make bench      all benchmarks; needs a quiet machine"

setup: $(READY)

define venv
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "pipeconform needs Python 3.11 or newer; set PYTHON=")'
$(PYTHON) -m venv $(VENV)
endef

# What a user installs: enough to judge.
$(INSTALLED): pyproject.toml constraints.txt
	$(venv)
	@echo "installing pipeconform and torch into $(VENV); the first time this takes minutes (README.md says how much)"
	$(PIP) --editable .
	$(BIN)/python -m compileall -q pipeconform suites reference_impl
	@touch $@

# What working on pipeconform needs in addition.
$(READY): pyproject.toml constraints.txt
	$(venv)
	@echo "installing pipeconform, torch and the tools for tests and documentation into $(VENV); this takes minutes"
	$(PIP) --editable '.[dev,bench,docs,release]'
	$(BIN)/python -m compileall -q pipeconform suites reference_impl tests benchmarks
	@touch $(INSTALLED) $@

# Exit code 1 means that the run completed and found violations, so the demo succeeded.
demo: $(if $(wildcard $(READY)),$(READY),$(INSTALLED))
	$(BIN)/pipeconform run --impl torch --profile smoke -n $(WORKERS) --out $(OUT) || test $$? -eq 1

# Installing DeepSpeed builds it from source; its compiled operators are left out. ColossalAI asks for torch before 2.6 and
# for much that its schedules do not use; what they use, DeepSpeed brings. DualPipe is installed likewise. Without these
# two the others are judged.
$(ENGINES)/.ready: pyproject.toml constraints.txt docs/engines/constraints.txt
	$(PYTHON) -m venv $(ENGINES)
	$(ENGINES)/bin/python -m pip install --quiet --disable-pip-version-check \
	  $(PINS) 'setuptools>=77' wheel ninja torch
	DS_ACCELERATOR=cpu DS_BUILD_OPS=0 $(ENGINES)/bin/python -m pip install --quiet --disable-pip-version-check \
	  $(PINS) --no-build-isolation --editable '.[engines]'
	-$(ENGINES)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --no-deps --no-build-isolation colossalai==0.5.0 dualpipe==1.0.0
	@touch $@

# Fails on what two runs both show and docs/engines does not expect; skips engines that cannot be installed.
# JUDGED names some of them.
JUDGED ?=
engines:
	@$(PYTHON) docs/engines/judge.py --environment $(ENGINES) $(JUDGED)

# Releases of torch, one after the other; RELEASES, PROFILE and REQUIREMENTS choose. What is judged already is not
# judged again.
RELEASES ?=
PROFILE ?= smoke
REQUIREMENTS ?=
torches:
	@$(PYTHON) docs/torches/judge.py --environments $(TORCHES) --profile $(PROFILE) $(REQUIREMENTS:%=--requirements %) $(RELEASES)

# A machine with a GPU has its own torch, and often no network: what is set up is used, else PYTHON as it is.
# GPU holds options: GPU="--within 560 --out FOLDER", or names of parts. Exit code 2 means that some parts are left.
GPU ?=
gpu:
	$(if $(wildcard $(READY) $(INSTALLED)),$(BIN)/python,$(PYTHON)) -m benchmarks.gpu $(GPU)

# NCCL="--nccl libnccl.so.2.xz" adds one of release 2.30 or newer, with which ranks can share a GPU.
NCCL ?=
gpu-bundle: $(READY)
	$(BIN)/python -m benchmarks.gpu.bundle $(NCCL)

# What is compiled is kept, whatever the machine says: each worker and each session that tests start would do it anew.
test test-full: export PYTHONDONTWRITEBYTECODE :=

# Of the long tests that are many of a kind a tenth, by the last digit, and of others that take long a fifth: ten runs of CI, or commits,
# have all (TENTH= has all but the long ones at once). build/flaky.txt has what failed by chance.
TENTH ?= $(or $(GITHUB_RUN_NUMBER),$(shell git rev-list --count HEAD 2>/dev/null),$(shell date +%j))
test: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not slow" $(if $(TENTH),--tenth $(TENTH)) --ask-again build/flaky.txt tests

# The tests of the page need Playwright and a separately installed Chromium; without them they are skipped.
# Interrupted, or with TESTS="tests/export tests/report", it goes on with what has not passed yet; build/test-full.jsonl
# has a line for each test, and is removed to begin anew.
TESTS ?= tests
test-full: $(READY) engines
	-$(PIP) --editable '.[browser]'
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --ask-again build/flaky.txt --go-on build/test-full.jsonl $(TESTS)

# Starts the schedulers that are installed (Debian: slurm-wlm, munge); skips others with the reason.
clusters: $(READY)
	-$(PIP) --editable '.[clusters]'
	$(BIN)/python -m pytest -n 0 -rs tests/clusters

# Goes on where it was interrupted; docs/disasters.jsonl has a line for each disaster.
disasters: $(READY)
	$(BIN)/python -m tests.clusters.disasters

coverage: $(READY)
	$(BIN)/coverage run -m pytest -n $(WORKERS) --dist loadgroup -m "not slow" tests
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered --sort=cover

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy pipeconform reference_impl suites
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	@for script in benchmarks/[a-z]*.py; do \
	  case $$script in benchmarks/measure.py) continue;; esac; \
	  echo "== $$script"; $(BIN)/python $$script || exit 1; \
	done

# Outcomes are kept in build/kill-matrix and not computed again.
kill-matrix: $(READY)
	$(BIN)/python -m benchmarks.kill_matrix

# Outcomes are kept in build/own-mutants. SEED and NUMBER choose the mutants, WITHIN (such as judge.forward) the modules.
SEED ?= 0
NUMBER ?= 100
mutants: $(READY)
	$(BIN)/python -m benchmarks.own_mutants --seed $(SEED) --number $(NUMBER) --within "$(WITHIN)"

standard: $(READY)
	$(BIN)/python -m pipeconform.spec.page docs/standard.md
	$(BIN)/python -m pipeconform.reference_impl.faults.page docs/faults.md
	$(BIN)/python -m tests.judge.fields_page docs/judged-fields.md
	$(BIN)/python -m tests.docs.reference

pictures: $(READY)
	$(BIN)/python -m tests.docs.learning

docs: $(READY) standard pictures
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# mike keeps a folder for each version on a branch; pushing the branch publishes it. "mike serve" shows it here.
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
docs-version: $(READY) standard pictures
	PATH="$(abspath $(BIN)):$$PATH" DOCS_VERSIONS_BY=mike NO_MKDOCS_2_WARNING=1 mike deploy --update-aliases $(VERSION) latest
	PATH="$(abspath $(BIN)):$$PATH" mike set-default latest

release: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python docs/release.py

clean:
	rm -rf $(VENV) $(ENGINES) $(TORCHES) build dist *.egg-info pipeconform-results .pytest_cache .mypy_cache .ruff_cache
