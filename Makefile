# make demo | picture | test | test-core | test-modern | test-flower | test-torch | test-all | bench-fit | bench-noise | bench-aggregator | bench-participation | bench-simulation | bench-cluster | compare | lint | docs | lock | clean. Each target does its own set-up; a second run finds it done.
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PIP = $(PYTHON) -m pip --disable-pip-version-check --python
INSTALL = install --quiet --no-deps --require-hashes

.PHONY: demo picture test test-core test-modern test-flower test-torch test-all bench-fit bench-noise bench-aggregator bench-participation bench-simulation bench-cluster compare lint docs lock clean setup modern

demo: setup
	.venv/bin/fedmf demo

# The README's picture, and the accuracies that its text names.
picture: setup
	.venv/bin/fedmf demo --json | .venv/bin/python -c 'import json, sys; print(json.dumps(json.load(sys.stdin)["accuracy"], indent=1))' > docs/images/demo.json
	cp demo/accuracy.png docs/images/demo.png

# A file stays in one process, which imports TensorFlow and builds the mechanisms once; tests/conftest.py has the long files first.
# None gets threads of its own for linear algebra. Bytecode is kept, whatever the environment says: each process would rewrite the
# assertions of 250 files.
PYTEST = PYTHONDONTWRITEBYTECODE= OPENBLAS_NUM_THREADS=1 .venv/bin/python -m pytest -q --dist loadfile --no-loadscope-reorder

test: setup
	$(PYTEST) -n 2 -m "not slow"

CLUSTER_TESTS = $$(grep -rl --include=*.py mark.cluster tests)

# Ray counts a process that waits for a processor as lost, and keeps the address of one cluster a machine: its tests come last. They
# wait a third of their time, which the site has, whose build may wait as long.
# Before them three processes fill two cores: slow tests wait for programs.
test-all: setup .venv-docs/.installed
	$(PYTEST) -n 3 -m "not cluster" --ignore tests/site
	nice -n 19 env $(PYTEST) -n 1 tests/site & site=$$!; $(PYTEST) -n 1 -m cluster $(CLUSTER_TESTS); cluster=$$?; wait $$site && exit $$cluster

# What needs no TensorFlow, on every Python 3.11 to 3.14 of this machine, each with an environment of its own under .venv-core.
MINORS = 11 12 13 14
core_python = $(firstword $(wildcard $(HOME)/.pyenv/versions/3.$(1).*/bin/python3.$(1)) $(shell python3.$(1) -c 'import sys; print(sys.executable)' 2>/dev/null))
CORES = $(foreach minor,$(MINORS),$(if $(call core_python,$(minor)),3.$(minor)))

# CORE_TESTS names some of them; those on a Ray cluster come last, alone.
CORE_TESTS =

test-core: $(CORES:%=.venv-core/%/.installed)
	@test -n "$(CORES)" || { echo "fedmf: this machine has no Python 3.11 or newer"; exit 1; }
	@for core in $(CORES); do \
	  echo "fedmf: the tests that need no TensorFlow, on Python $$core"; \
	  OPENBLAS_NUM_THREADS=1 .venv-core/$$core/bin/python -m pytest -q -n 2 --dist worksteal --doctest-ignore-import-errors \
	    -m "not tensorflow and not slow and not cluster" $(CORE_TESTS) || exit; \
	  .venv-core/$$core/bin/python -m pytest -q -m "cluster and not tensorflow" tests/training || exit; \
	done

# PyTorch, and Flower, beside which TensorFlow 2.14 would not install, in one environment; nothing asks another machine.
test-flower: .venv-torch/.installed
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 .venv-torch/bin/python -m pytest -q --doctest-ignore-import-errors tests/flower

test-torch: .venv-torch/.installed
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 .venv-torch/bin/python -m pytest -q -m "not slow" tests/pytorch

# What needs TensorFlow and no TensorFlow Federated, on Python 3.13.
MODERN = $(call core_python,13)

modern: $(if $(MODERN),.venv-modern/.installed)

test-modern: modern
ifeq ($(MODERN),)
	@echo "fedmf: this machine has no Python 3.13: training there is not tested"
else
	OPENBLAS_NUM_THREADS=1 .venv-modern/bin/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder \
	  --ignore fedmf/federated/tff --doctest-ignore-import-errors -m "tensorflow and not slow"
endif

bench-fit: setup
	.venv/bin/python -m benchmarks.fit

bench-noise: setup
	.venv/bin/python -m benchmarks.noise
	.venv/bin/python -m benchmarks.server

bench-aggregator: setup
	.venv/bin/python -m benchmarks.aggregator

bench-participation: setup
	.venv/bin/python -m benchmarks.participation

bench-simulation: setup
	.venv/bin/python -m benchmarks.simulation
	.venv/bin/python -m benchmarks.gradients

# On two cores: workers of one core beside as many threads.
bench-cluster: setup
	for workers in 1 2; do \
	  .venv/bin/python -m benchmarks.simulation --model full --kind compiled --kind cluster --threads $$workers --clients 10 --clients 100 --clients 1000 || exit; \
	done

# Other libraries in an environment of their own, beside fedmf in one sitting; not part of CI. Flower and PyTorch have theirs already.
# opake does not start on early releases of Python 3.11 and 3.12, and runs from the same environment on 3.13.
compare: setup .venv-compare/.installed .venv-torch/.installed
	.venv/bin/python -m benchmarks.compare $(if $(MODERN),--newer $(MODERN)) --write docs/costs.md

lint: setup .venv-lint/.installed
	.venv-lint/bin/ruff check .
	.venv-lint/bin/ruff format --check .
	.venv-lint/bin/mypy --python-executable .venv/bin/python

# build/site/index.html. Warnings and unknown references are errors; every cell of a page is executed.
docs: .venv-docs/.installed
	rm -rf build/site build/site-doctrees
	.venv-docs/bin/sphinx-build -W --keep-going --nitpicky -q -b html -d build/site-doctrees docs build/site

setup: .venv/.installed

define check_python
	@test -n "$(PYTHON)" || { echo "fedmf needs Python 3.11 and found no python3: install it, or name one with make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if (3, 11) <= v < (3, 12) else "fedmf needs Python 3.11 (TensorFlow Federated 0.87 runs on no newer one); $(PYTHON) is %d.%d: name a 3.11 with make PYTHON=/path/to/python3.11" % v[:2])'
endef

# Created without pip and filled by the outer pip: Debian's bare python3 has no ensurepip.
.venv/.dependencies: requirements.lock
	$(call check_python)
	@echo "fedmf: creating .venv (about 2.7 GB; once)"
	rm -rf .venv
	$(PYTHON) -m venv --without-pip .venv
	$(PIP) .venv/bin/python $(INSTALL) -r requirements.lock
	@touch $@

.venv/.installed: .venv/.dependencies pyproject.toml
	$(PIP) .venv/bin/python install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

.venv-core/3.%/.installed: requirements-core.lock pyproject.toml
	$(call core_python,$*) -m venv --without-pip --clear .venv-core/3.$*
	$(PIP) .venv-core/3.$*/bin/python $(INSTALL) -r requirements-core.lock
	$(PIP) .venv-core/3.$*/bin/python install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

.venv-modern/.installed: requirements-train.lock pyproject.toml
	@echo "fedmf: creating .venv-modern (about 2 GB; once)"
	$(MODERN) -m venv --clear .venv-modern
	.venv-modern/bin/python -m pip --disable-pip-version-check $(INSTALL) -r requirements-train.lock
	.venv-modern/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

.venv-lint/.installed: requirements-lint.lock
	$(call check_python)
	rm -rf .venv-lint
	$(PYTHON) -m venv --without-pip .venv-lint
	$(PIP) .venv-lint/bin/python $(INSTALL) -r requirements-lint.lock
	@touch $@

.venv-docs/.installed: requirements-docs.lock
	$(call check_python)
	rm -rf .venv-docs
	$(PYTHON) -m venv --without-pip .venv-docs
	$(PIP) .venv-docs/bin/python $(INSTALL) -r requirements-docs.lock
	@touch $@

.venv-compare/.installed: requirements-compare.lock
	$(call check_python)
	@echo "fedmf: creating .venv-compare (about 1.5 GB; once)"
	rm -rf .venv-compare
	$(PYTHON) -m venv --without-pip .venv-compare
	$(PIP) .venv-compare/bin/python $(INSTALL) -r requirements-compare.lock
	echo '$(TORCH) --hash=sha256:$(TORCH_DIGEST)' > .venv-compare/torch.txt
	$(PIP) .venv-compare/bin/python $(INSTALL) -r .venv-compare/torch.txt \
	  || echo "fedmf: no build of PyTorch without GPUs was found; the rows that need it will say so"
	@touch $@

# A build of PyTorch without GPUs, for CI; its build for GPUs takes 4 GB.
.venv-torch/.installed: requirements-torch.lock pyproject.toml
	$(call check_python)
	@echo "fedmf: creating .venv-torch (about 1.5 GB; once)"
	rm -rf .venv-torch
	$(PYTHON) -m venv --without-pip .venv-torch
	$(PIP) .venv-torch/bin/python $(INSTALL) -r requirements-torch.lock
	echo '$(TORCH) --hash=sha256:$(TORCH_DIGEST)' > .venv-torch/torch.txt
	$(PIP) .venv-torch/bin/python $(INSTALL) -r .venv-torch/torch.txt
	$(PIP) .venv-torch/bin/python install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# What `make compare` measures; pfl asks for a dp-accounting below 0.6 and runs with it. PyTorch's libraries for GPUs (4 GB) stay out, and the
# index's build for Linux does not start without them. So PyTorch's own build without GPUs is installed where pip finds it (PIP_FIND_LINKS).
PEERS = correlated-noise-mechanism dp-accounting jax-privacy opake-accounting 'pfl[pytorch]' pld-accounting riskcal $(TORCH)
TORCH = torch==2.13.0
TORCH_DIGEST = 6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b
GPU = cuda-bindings cuda-toolkit nvidia-cudnn-cu13 nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvshmem-cu13 triton

# TFF 0.87.0 asks for jaxlib 0.4.14, which is gone from the index; 0.4.13 imports and runs with jax 0.4.14.
lock:
	$(call check_python)
	rm -rf .venv-lock && $(PYTHON) -m venv --without-pip .venv-lock
	$(PIP) .venv-lock/bin/python install --quiet uv
	echo 'jaxlib==0.4.13' > .venv-lock/override.txt
	.venv-lock/bin/uv pip compile pyproject.toml --extra tff --extra ray --extra search --extra dev --override .venv-lock/override.txt \
	  --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --quiet -o requirements.lock
	.venv-lock/bin/uv pip compile pyproject.toml --extra ray --extra mlflow --extra wandb --extra dev --universal \
	  --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --quiet -o requirements-core.lock
	printf '%s\n' $(GPU) > .venv-lock/exclude.txt
	printf '%s\n' $(TORCH) > .venv-lock/torch.txt
	.venv-lock/bin/uv pip compile pyproject.toml --extra flower --extra torch --extra dev --constraint .venv-lock/torch.txt --excludes .venv-lock/exclude.txt \
	  --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --quiet -o requirements-torch.lock
	sed -i '/^torch==/,/[^\]$$/d' requirements-torch.lock
	.venv-lock/bin/uv pip compile pyproject.toml --extra train --extra dev --universal \
	  --python-version 3.12 --generate-hashes --no-emit-index-url --no-header --no-annotate --quiet -o requirements-train.lock
	printf 'ruff\nmypy\n' | .venv-lock/bin/uv pip compile - \
	  --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --quiet -o requirements-lint.lock
	grep -oE '^(dp-accounting|duckdb|matplotlib|msgspec|numpy|scipy)==[^ ]+' requirements.lock > .venv-lock/same.txt
	printf 'furo\nlatex2mathml\nmyst-nb\nplaywright\nsphinx\n' | .venv-lock/bin/uv pip compile pyproject.toml - --constraint .venv-lock/same.txt \
	  --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --quiet -o requirements-docs.lock
	printf '%s\n' $(GPU) torchvision > .venv-lock/exclude.txt
	printf '%s\n' dp-accounting==0.6.0 > .venv-lock/override.txt
	printf '%s\n' $(PEERS) | .venv-lock/bin/uv pip compile - --override .venv-lock/override.txt --excludes .venv-lock/exclude.txt --prerelease disallow \
	  --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate --quiet -o requirements-compare.lock
	sed -i '/^torch==/,/[^\]$$/d' requirements-compare.lock

clean:
	rm -rf .venv .venv-lint .venv-core .venv-modern .venv-torch .venv-compare .venv-docs .venv-lock build *.egg-info
