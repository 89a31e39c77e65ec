# What can be done with this repository; `make help` lists it. It needs Python 3.11 or later, make and pip. All other
# packages are installed into .venv. Set PYTHON to use another interpreter than the first one that is found.

PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV := .venv
OLDEST := .venv-oldest
PEERS_VENV := .venv-peers
BIN := $(VENV)/bin
PYTHON_CODE := src tests examples docs/_site
PINGS ?= 10000
SEEDS ?= 5000
AGENTS ?= 300
FRAMES ?= 1000000
KILLS ?= 1000
MASTER_KILLS ?= 20
TASKS ?= 300000
MINUTES ?= 10
LOSSES ?= 500
SEED ?= 1
ROUNDS ?= 3
PAIRS ?= 20
WORKLOADS ?=
PEERS ?=

# In Debian, the package python3-venv puts pip into virtual environments. Without this package, the environment has no
# pip, and the pip outside installs into it.
PIP = $$($(BIN)/python -m pip --version >/dev/null 2>&1 && echo $(BIN)/python -m pip || \
	echo $(PYTHON) -m pip --python $(BIN)/python) --disable-pip-version-check

# What decides: its lines should be run by the simulator and by the tests of what goes in and comes out.
COVERED := src/mwpy/_core/*

# Some parts only compute. They leave the processors to the parts that wait for processes and batch systems, which then
# end earlier.
NICE := nice -n 10

# Python keeps compiled modules, whatever the environment says: the tests start thousands of processes, and without
# compiled modules each of them takes twice as long to start.
export PYTHONDONTWRITEBYTECODE :=

# The files of test-documents, and the folders of the other parts. `test-processes-s-z` runs everything that has no part.
DOCUMENTS := $(wildcard tests/test_*.py) $(patsubst %,tests/integration/test_%.py,benches dist docs examples pack site)
OTHERS := $(patsubst %,tests/%,unit properties scenarios simulation batch ecosystem)

# Of the simulator, `make check` runs the histories in which everything may go wrong.
QUICK_SIMULATION := tests/simulation/test_crashes.py tests/simulation/test_overseen_pool.py \
	tests/simulation/test_cluster.py::test_every_task_ends_exactly_once_despite_faults

.DELETE_ON_ERROR:
.PHONY: help venv ping check check-units check-others lint test test-long test-quick test-covered test-seeds test-mistakes test-processes test-processes-a-e test-processes-f-l test-processes-m-p test-processes-q-r test-processes-s-z test-documents test-ecosystem test-condor test-batch test-oldest simulate attack chaos kill kill-master power bench bench-database bench-peers bench-programs bench-costs dist docs clean

help: ## list what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 24

venv: $(VENV)/installed-for-tests ## make .venv, with mwpy and all that the tests need

ping: $(VENV)/installed ## install and run the ping example on local slaves (PINGS=10000)
	$(BIN)/python examples/ping/ping.py --pings $(PINGS)

check: lint $(VENV)/installed-for-tests ## for all-day use: lint, types, the quick tests in two processes, 50 seeds of the simulator
	$(MAKE) --jobs 2 --output-sync=target check-units check-others

check-units: $(VENV)/installed-for-tests
	$(BIN)/python -m pytest -q tests/unit

check-others: $(VENV)/installed-for-tests
	$(BIN)/python -m pytest -q --seeds 50 tests/scenarios $(QUICK_SIMULATION) $(wildcard tests/test_*.py)

lint: $(VENV)/installed-for-tests ## the rules and the format of ruff, and the types
	$(BIN)/ruff check $(PYTHON_CODE)
	$(BIN)/ruff format --check $(PYTHON_CODE)
	$(BIN)/mypy

test: ## run everything that a change can break, with real batch systems, in ten minutes on two cores
	@echo "eight parts run at a time; each part prints its output when it has ended"
	$(MAKE) --jobs 8 --keep-going --output-sync=target test-condor test-batch test-processes-s-z test-processes-m-p test-processes-q-r \
		test-processes-f-l test-processes-a-e test-quick test-seeds test-ecosystem test-documents lint

test-long: ## what takes long: more seeds, kills and losses, chaos, mistakes, oldest versions, the site; about two hours
	$(MAKE) test-oldest test-covered test-mistakes docs
	$(BIN)/python -m pytest -m long --ignore tests/simulation tests
	$(MAKE) simulate kill kill-master chaos power
	$(MAKE) attack FRAMES=100000
	$(BIN)/python -m pytest tests/batch -k condor --agents $(AGENTS)

test-quick: $(VENV)/installed-for-tests ## the tests of single modules and of both cores, and exact audit files
	$(NICE) $(BIN)/python -m pytest -q tests/unit tests/scenarios --durations 40

test-covered: $(VENV)/installed-for-tests ## how much of the core the simulator and the tests of its edges run
	$(BIN)/python -m coverage erase
	$(NICE) $(BIN)/python -m coverage run -m pytest -q tests/unit tests/scenarios tests/simulation
	$(BIN)/python -m coverage report --include '$(COVERED)' --skip-covered --fail-under 95

test-seeds: $(VENV)/installed-for-tests ## random histories with every kind of fault (150 seeds), and hostile messages
	$(NICE) $(BIN)/python -m pytest tests/simulation tests/properties --seeds 150 --frames 500

test-mistakes: $(VENV)/installed-for-tests ## whether the simulator finds mistakes that are put into the core
	$(NICE) $(BIN)/python -m pytest -m long tests/simulation

test-processes: test-processes-a-e test-processes-f-l test-processes-m-p test-processes-q-r test-processes-s-z ## the tests with real processes on this machine, in five parts

test-processes-a-e: $(VENV)/installed-for-tests
	$(BIN)/python -m pytest $(filter-out $(DOCUMENTS),$(wildcard tests/integration/test_[a-e]*.py)) --durations 40

test-processes-f-l: $(VENV)/installed-for-tests
	$(BIN)/python -m pytest $(filter-out $(DOCUMENTS),$(wildcard tests/integration/test_[f-l]*.py)) --durations 40

test-processes-m-p: $(VENV)/installed-for-tests
	$(BIN)/python -m pytest $(filter-out $(DOCUMENTS),$(wildcard tests/integration/test_[m-p]*.py)) --durations 40

test-processes-q-r: $(VENV)/installed-for-tests
	$(BIN)/python -m pytest $(filter-out $(DOCUMENTS),$(wildcard tests/integration/test_[q-r]*.py)) --durations 40

test-processes-s-z: $(VENV)/installed-for-tests
	$(BIN)/python -m pytest $(OTHERS:%=--ignore=%) $(DOCUMENTS:%=--ignore=%) --ignore-glob='tests/integration/test_[a-r]*.py' --durations 40

test-documents: $(VENV)/installed-for-tests ## the style of all files, and what documents, examples and packages show
	$(BIN)/python -m pytest $(DOCUMENTS) --durations 20

test-ecosystem: $(VENV)/installed-for-tests ## joblib, scikit-learn, dask, Optuna, pandas, asyncio and a notebook on slaves
	$(BIN)/python -m pytest tests/ecosystem --durations 5

test-condor: $(VENV)/installed-for-tests ## the tests with a real HTCondor pool; skipped unless run by root on Debian
	$(BIN)/python -m pytest tests/batch -k condor --durations 10

test-batch: $(VENV)/installed-for-tests ## the tests with a real Slurm, Grid Engine and sshd; skipped unless run by root on Debian
	$(BIN)/python -m pytest tests/batch -k 'not condor' --durations 10

test-oldest: ## the quick tests with the oldest versions of all packages that mwpy needs
	$(NICE) $(MAKE) VENV=$(OLDEST) $(OLDEST)/installed-oldest
	$(NICE) $(OLDEST)/bin/python -m pytest tests/unit tests/scenarios tests/integration/test_examples.py

simulate: $(VENV)/installed-for-tests ## run the simulator with every kind of fault (SEEDS=10000)
	$(BIN)/python -m pytest tests/simulation --seeds $(SEEDS) --timeout 0

kill: $(VENV)/installed-for-tests ## kill random processes of a computation (KILLS=1000)
	$(BIN)/python -m pytest tests/integration/test_faults.py -k every_tenth --kills $(KILLS) --timeout 0

kill-master: $(VENV)/installed-for-tests ## kill the master at random moments of a run (MASTER_KILLS=20 TASKS=300000 SEED=1)
	$(BIN)/python -m tests.chaos --kills $(MASTER_KILLS) --tasks $(TASKS) --seed $(SEED)

chaos: $(VENV)/installed-for-tests ## a computation among faults of many kinds; counts losses (MINUTES=10 SEED=1)
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) --seed $(SEED)

power: $(VENV)/installed-for-tests ## let the machine lose its power at random moments, in memory (LOSSES=500 SEED=1)
	$(BIN)/python -m pytest tests/power --losses $(LOSSES) --seed $(SEED) --timeout 0

attack: $(VENV)/installed-for-tests ## send hostile frames to a master, in about an hour (FRAMES=1000000)
	$(BIN)/python -m pytest -s tests/properties/test_hostile_frames.py --frames $(FRAMES) --timeout 0

bench: $(VENV)/installed-for-tests ## measure the speed, and what an interrupt costs, and print tables
	$(BIN)/python bench/bench.py
	$(BIN)/python bench/interrupts.py

bench-database: $(VENV)/installed-for-tests ## measure what the run database costs, for an hour (PAIRS=20)
	$(BIN)/python -m bench.run_database --pairs $(PAIRS)

bench-peers: ## compare with other libraries, for an hour (ROUNDS=3 WORKLOADS=W1,W2 PEERS=ray,joblib)
	$(MAKE) VENV=$(PEERS_VENV) $(PEERS_VENV)/installed-peers
	$(PEERS_VENV)/bin/python -m bench.peers --rounds $(ROUNDS) --workloads '$(WORKLOADS)' --peers '$(PEERS)'

bench-programs: $(VENV)/installed-for-tests ## compare the rate of programs with GNU parallel, in five minutes (ROUNDS=3)
	$(BIN)/python -m bench.programs --rounds $(ROUNDS)

bench-costs: $(VENV)/installed-for-tests ## measure in which process and thread the processor time of a task goes
	$(BIN)/python -m bench.costs
	$(BIN)/python -m bench.encryption

dist: $(VENV)/installed-for-tests ## build the wheel and the source distribution into dist/, and check them
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*

docs: $(VENV)/installed-for-tests ## build the documentation site into site/, and fail at each link that leads nowhere
	NO_MKDOCS_2_WARNING=1 $(NICE) $(BIN)/mkdocs build --quiet

clean: ## remove everything that was made
	rm -rf $(VENV) $(OLDEST) $(PEERS_VENV) site peers.json .coverage .coverage.* .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	find src tests examples bench -name __pycache__ -type d -prune -exec rm -rf {} +

# These empty files record what is installed, so a second `make ping` installs nothing. Sources are installed as links:
# only a change of pyproject.toml installs them again. What mwpy needs is compiled, because jobs of batch systems cannot
# write here. The other packages are large, and Python compiles the few of their modules that are imported.
$(VENV)/pyvenv.cfg:
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or later was found: install one (apt-get install python3), or set PYTHON"; exit 1; }
	@if $(PYTHON) -m ensurepip --version >/dev/null 2>&1; \
		then set -x; $(PYTHON) -m venv --clear $(VENV); \
		else set -x; $(PYTHON) -m venv --clear --without-pip $(VENV); fi

$(VENV)/installed: $(VENV)/pyvenv.cfg pyproject.toml
	@echo "installing mwpy and what it needs into $(VENV)"
	@$(PIP) install --quiet --editable .
	@touch $@

$(VENV)/installed-for-tests: $(VENV)/installed pyproject.toml
	@echo "installing what the tests need into $(VENV)"
	@$(PIP) install --quiet --no-compile --editable '.[test]'
	@touch $@

$(VENV)/installed-oldest: $(VENV)/installed pyproject.toml
	@echo "installing the oldest versions that pyproject.toml allows into $(VENV)"
	@$(PIP) install --quiet --no-compile --editable . numpy pytest pytest-timeout hypothesis \
		$$(sed -n '/^dependencies = /,/^]/s/^ *"\(.*\)>=\(.*\)",$$/\1==\2/p' pyproject.toml)
	@touch $@

# A library that cannot be installed here is named in the table.
$(VENV)/installed-peers: $(VENV)/installed pyproject.toml
	@echo "installing the libraries to compare with into $(VENV)"
	@$(PIP) install --quiet numpy scipy
	@for peer in joblib distributed ray parsl ipyparallel; do \
		$(PIP) install --quiet $$peer || echo "$$peer cannot be installed here, so it is not measured"; done
	@touch $@
