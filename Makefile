# Needs Python 3.11 or newer and make; everything else goes into .venv.
#   make lab LAB_FLAGS=--no-browser     make test PYTEST_FLAGS="-k fusion"     make lab PYTHON=python3.12
#   make figures FIGURES_FLAGS=--twice: twice, elsewhere, and do all files agree to the last byte?

PYTHON ?= python3
LAB_FLAGS ?=
PYTEST_FLAGS ?=
FUZZ_FLAGS ?=
STUDY_FLAGS ?=
FIGURES_FLAGS ?=
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
PINS := pyproject.toml constraints.txt
ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

# Jupyter must take this environment's kernel, whatever the user has installed elsewhere.
export JUPYTER_PREFER_ENV_PATH := 1
unexport JUPYTER_PATH PYTHONPATH PYTHONHOME

.PHONY: help lab test test-all figures pages bench bench-large study fuzz lint
.DELETE_ON_ERROR:

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

lab: .venv/lab-installed  ## open JupyterLab at notebooks/00-start-here.ipynb
	$(BIN)/jupyter lab --ip=127.0.0.1 $(ROOT) --ServerApp.root_dir="$(CURDIR)" \
	    --LabApp.default_url=/lab/tree/notebooks/00-start-here.ipynb $(LAB_FLAGS)

test: .venv/test-installed  ## run the tests, all but the exhaustive ones
	$(PYTEST) -m "not all" $(PYTEST_FLAGS)

test-all: .venv/test-installed  ## run every test
	$(PYTEST) $(PYTEST_FLAGS)

figures: .venv/test-installed  ## execute every notebook, rebuild notebooks/figures/
	$(BIN)/python tests/tools/run_notebooks.py $(FIGURES_FLAGS)

pages: .venv/lab-installed  ## execute every notebook, write notebooks/pages/index.html
	$(BIN)/python -m workbench.notebooks

bench: .venv/test-installed .venv-peers/installed  ## fits of known truth; speed of loads, model, widgets and hooks
	$(BIN)/python tests/tools/bench_fits.py
	$(BIN)/python tests/tools/bench_load.py --peer .venv-peers/bin/python
	$(BIN)/python tests/tools/bench_model.py
	$(BIN)/python tests/tools/bench_explore.py
	$(BIN)/python tests/tools/bench_capture.py

bench-large: .venv/test-installed  ## generated traces of up to 2 GB: time and memory by size
	$(BIN)/python tests/tools/bench_large.py

study: .venv/test-installed  ## predicted and measured on emulated networks, as root, about an hour
	TORCH_CPP_LOG_LEVEL=ERROR $(BIN)/python tests/tools/study.py $(STUDY_FLAGS)

fuzz: .venv/test-installed  ## 20,000 damaged files: each refused in a sentence or loaded right
	$(BIN)/python tests/tools/fuzz.py $(FUZZ_FLAGS)

lint: .venv/test-installed  ## ruff and nbstripout, changing nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/nbstripout --keep-id --verify notebooks/*.ipynb

# Stamps lie inside the environments, so removing one removes its stamps too.
.venv/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo 'Needs Python 3.11 or newer; "$(PYTHON)" is' \
	        "$$($(PYTHON) --version 2>/dev/null || echo not found). Name one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	$(PIP) --upgrade pip
	touch $@

.venv/lab-installed: .venv/made $(PINS)
	$(PIP) -c constraints.txt -e '.[lab]'
	touch $@

.venv/test-installed: .venv/made $(PINS)
	$(PIP) -c constraints.txt -e '.[lab,test,cluster]'
	touch $@ .venv/lab-installed

# HTA needs an older pandas than ours, hence an environment of its own; isal and pysimdjson are the
# fastest way to unpack and parse, beside which loads are shown.
.venv-peers/installed: Makefile | .venv/made
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check \
	    'traceinsight==0.6.1' 'pandas<3' 'isal==1.9.1' 'pysimdjson==7.0.2'
	touch $@
