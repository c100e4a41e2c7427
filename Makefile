# `make demo` and `make test` need nothing but Python >= 3.10; the rest uses the same environment.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
# The first is enough for the demo; the second brings what tests, types and pages need.
INSTALLED := $(VENV)/installed
DEVELOP := $(VENV)/installed-for-development
# Machine code for this processor, beside the sources.
COMPILED := $(VENV)/kernels-compiled
# make test TORCH=newest takes the last one that there is.
TORCH := 2.13.0
TORCH_BUILD := torch$(if $(filter newest,$(TORCH)),,==$(TORCH)+cpu)
# A file of versions to keep to, as oldest.txt; changing it or TORCH needs make clean before.
CONSTRAINTS :=
# What is imported is compiled then, once: all of it would take as long as the rest of the installation.
INSTALL = $(RUN) -m pip install --quiet --no-compile $(CONSTRAINTS:%=-c %)
unexport PYTHONDONTWRITEBYTECODE
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu

.PHONY: demo test test-generic lint types docs spacy-suite bench wheel clean

demo: $(INSTALLED)
	$(RUN) -m spacy project run demo

# One file of tests at a time on each core. The hash seed makes all of them collect the same.
test: $(COMPILED)
	OMP_NUM_THREADS=1 PYTHONHASHSEED=0 $(RUN) -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

# A part of it as on a processor that rounds in another way, since it has neither the vectors nor the
# fused products of newer ones, and with two threads. Each kernel is compiled anew for it, so only
# these: the machine code that we write ourselves, and training until trees are found.
SUPERVISION := tests/pipeline/test_supervision.py
GENERIC := tests/kernels/test_exponential.py tests/kernels/test_vector.py \
	tests/kernels/test_scaled_floats.py $(SUPERVISION)::test_beside_listeners_that_come_late_or_never \
	$(SUPERVISION)::test_trees_are_learned_from_some_of_their_heads
test-generic: $(DEVELOP)
	NUMBA_CPU_NAME=generic ATEN_CPU_CAPABILITY=default OMP_NUM_THREADS=2 \
		$(RUN) -m pytest --numprocesses auto --dist loadfile $(GENERIC)

lint: $(DEVELOP)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

types: $(DEVELOP)
	$(RUN) -m mypy

docs: $(DEVELOP)
	$(RUN) -m mkdocs build --strict

# A wheel and an archive of the source, in dist.
wheel: $(DEVELOP)
	$(RUN) -m build

spacy-suite: $(DEVELOP)
	$(RUN) -m tests.spacy_suite

bench: $(INSTALLED)
	$(INSTALL) -e '.[benchmarks]'
	$(RUN) -m benchmarks inference

# The default torch for Linux brings gigabytes of CUDA; without a GPU the CPU build is installed
# first, from a configured index if one has it, else from PyTorch's own.
$(INSTALLED): setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 10) else "Python 3.10 or newer is needed, and this is %s. Say which: make PYTHON=python3.12" % sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	@if [ "$$(uname)" = Linux ] && ! command -v nvidia-smi >/dev/null; then \
		echo "No GPU: installing the CPU build of torch $(TORCH)"; \
		$(if $(filter newest,$(TORCH)),false,$(INSTALL) $(TORCH_BUILD) 2>/dev/null) \
		|| $(INSTALL) $(TORCH_BUILD) --extra-index-url $(TORCH_CPU_INDEX) \
		|| echo "There is none for this machine: taking the default torch"; \
	fi
	$(INSTALL) --progress-bar on -e .
	touch $@

$(DEVELOP): $(INSTALLED)
	$(INSTALL) --progress-bar on -e '.[dev,docs]'
	touch $@

$(COMPILED): $(DEVELOP) $(wildcard spacy_latent/kernels/*/*.py)
	$(RUN) -m tests.compile_kernels
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
