# Everything a newcomer or CI types. `make help` lists it.
.DEFAULT_GOAL := help
.PHONY: help setup demo test fast check gpu-check wheel docs bench soak mutants clean
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip --disable-pip-version-check install --quiet -c constraints.txt

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 12

setup: .venv/demo.stamp  ## make .venv and install vitlab with what the demo needs

demo: .venv/demo.stamp  ## pre-train, fine-tune, compare, look inside: one report, in minutes
	@$(BIN)/vitlab demo

test: .venv/test.stamp  ## all tests
	@VITLAB_REQUIRE_PEERS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

fast: .venv/test.stamp  ## the tests that take seconds
	@$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

check: .venv/test.stamp  ## ruff, pyrefly and the import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyrefly check
	@$(BIN)/python -m pytest tests/test_house.py

gpu-check: .venv/test.stamp  ## train on this machine's accelerator and compare with its CPU
	@$(BIN)/python -m pytest -rs tests/world/test_accelerator.py

wheel: .venv/test.stamp  ## build dist/vitlab-*.whl
	@$(BIN)/python -m build --wheel --no-isolation

docs: .venv/docs.stamp  ## the documentation site, into docs/_build
	@$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build
	@echo "open docs/_build/index.html"

soak: .venv/test.stamp  ## the long proofs; output goes to evidence/
	@mkdir -p evidence
	@VITLAB_MUTATIONS=100000 $(BIN)/python -m pytest tests/weights/test_mutations.py -s -o timeout=7200 > evidence/mutations.txt
	@cat evidence/mutations.txt
	@VITLAB_KILLS=200 $(BIN)/python -m pytest tests/train/checkpoints/test_crashes.py -k any_moment -s -o timeout=7200 > evidence/kills.txt
	@cat evidence/kills.txt
	@VITLAB_TRIALS=50 $(BIN)/python -m pytest tests/world/test_rank_faults.py -s -o timeout=14400 > .ranks.log
	@grep -a "trials\|passed" .ranks.log > evidence/ranks.txt && rm .ranks.log
	@cat evidence/ranks.txt
	@VITLAB_REQUESTS=10000 VITLAB_LOAD=20000 $(BIN)/python -m pytest tests/service/test_abuse.py -s -o timeout=7200 > .service.log
	@grep -a "requests\|passed" .service.log > evidence/service.txt && rm .service.log
	@cat evidence/service.txt

BENCH ?=
bench: .venv-bench/stamp  ## measure speed and memory against other libraries; BENCH="inference busy" runs only those suites
	@.venv-bench/bin/python -m bench run $(BENCH)

MUTANTS ?= 200
SECONDS ?= 3600
JOBS ?= 2
SEED ?= 0
mutants: .venv/test.stamp  ## small faults in the numeric core that the tests must notice; MUTANTS=0 makes all
	@mkdir -p evidence
	@$(BIN)/python tests/run_mutants.py --mutants $(MUTANTS) --seconds $(SECONDS) --jobs $(JOBS) --seed $(SEED) \
	  > evidence/mutants.txt; code=$$?; cat evidence/mutants.txt; exit $$code

clean:  ## remove the virtual environment and what tools left behind
	rm -rf .venv .venv-bench dist docs/_build docs/api docs/generated .pytest_cache .ruff_cache .hypothesis

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "vitlab needs Python 3.11 or newer; name one with: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@echo "making .venv"
	@$(PYTHON) -m venv .venv

.venv-bench/stamp: pyproject.toml constraints.txt
	@echo "installing vitlab with the libraries it is compared with into .venv-bench (once; a few minutes)"
	@$(PYTHON) -m venv .venv-bench
	@.venv-bench/bin/pip --disable-pip-version-check install --quiet -c constraints.txt -e ".[demo,peers,onnxruntime,openvino,serve]" litserve playwright opencv-python-headless albumentations
	@touch $@

.venv/demo.stamp: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing vitlab into .venv (once; a few minutes)"
	@$(PIP) -e ".[demo,serve,onnxruntime]"
	@touch $@

.venv/test.stamp: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing vitlab with its test tools and peer libraries into .venv (once; a few minutes)"
	@$(PIP) -e ".[demo,test,peers,check,docs]"
	@touch $@ .venv/demo.stamp

.venv/docs.stamp: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing vitlab with Sphinx into .venv (once)"
	@$(PIP) -e ".[demo,docs]"
	@touch $@ .venv/demo.stamp
