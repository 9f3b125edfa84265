# `make lab` and `make test` do all of their own set-up, in .venv. Each target says what it is: `make help`.
# Choices:  TORCH=cu130 (a CUDA build; kept until changed)   PYTHON=/path/to/python3.12   WORKERS=4
#           WITH=triton (chapter 15's kernels, 0.7 GB; kept until WITH=none)
.POSIX:
SHELL = /bin/sh
WORKERS = 2
PROVE = all
NOTEBOOK = notebooks/01_tensors.ipynb
RUN = .venv/bin/python
PYTEST = $(RUN) -m pytest --complete -n $(WORKERS) --dist loadscope --no-loadscope-reorder --nbval-lax --nbval-current-env --nbval-cell-timeout=500
# The suite starts hundreds of processes: what one has compiled, the others read.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help setup peers lab test prove chapter check fix book bench lock clean

help:            ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1	\2/p' Makefile

setup:           ## what every target starts with: .venv with torch, the locked requirements and the course
	@TORCH="$(TORCH)" PYTHON="$(PYTHON)" WITH="$(WITH)" sh tools/setup.sh

peers: setup     ## nbgrader and otter-grader in .peers, for the suite and the benchmark
	@sh tools/peers.sh

lab: setup       ## JupyterLab on the first chapter (or on NOTEBOOK=notebooks/02_strides.ipynb)
	@$(RUN) -m course_utils.lab $(NOTEBOOK)

test: check peers  ## every check of the project
	CHROMIUM="$$($(RUN) -m course_utils.authoring.browser)" COURSE_REQUIRE_BROWSER=1 $(PYTEST) tests notebooks

prove: setup     ## every proof of every exercise, and the ledger written anew (PROVE=stale: only what it does not hold of)
	COURSE_PROVE=$(PROVE) $(RUN) -m pytest -n $(WORKERS) --dist worksteal tests/grading/test_proofs.py tests/grading/test_mutants.py

chapter: setup   ## everything about one chapter: make chapter N=02
	@CHROMIUM="$$($(RUN) -m course_utils.authoring.browser)" COURSE_REQUIRE_BROWSER=1 $(RUN) -m tests.support.chapter $(N) -n $(WORKERS) --dist loadscope

check: setup     ## the quick ones: lint, format, types, notebooks; fit for a pre-commit hook
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy
	.venv/bin/lint-imports --no-cache
	$(RUN) -m course_utils.cli normalise --check

fix: setup       ## what can be put right without thinking: format, imports, notebooks
	$(RUN) -m ruff check --fix
	$(RUN) -m ruff format
	$(RUN) -m course_utils.cli normalise

book: setup      ## the site, in _build/html
	.venv/bin/jupyter-book build . -W -n --keep-going
	$(RUN) -m course_utils.authoring.languages build

bench: peers     ## how long things take, measured here and now
	@for script in tests/bench/*.py; do echo "$$script"; OMP_NUM_THREADS=1 PYTHONPATH=. $(RUN) "$$script" || exit 1; done

lock: setup      ## requirements.in -> requirements.txt
	@sh tools/lock.sh

clean:           ## everything that was made, the environment aside
	rm -rf _build .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
