# The two commands of the README are `make demo` and `make test`; each makes the environment first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version $(1) --generate-hashes \
	--no-emit-index-url --custom-compile-command 'make lock, for Python $(1)$(2)'
# For all that we run on, and for the one of the images.
LOCK := $(call COMPILE,3.11, and later) pyproject.toml
IMAGE_PYTHON := $(shell sed -n 's/^ARG PYTHON_IMAGE=python:\([0-9.]*\)-.*/\1/p' Dockerfile)
IMAGE_LOCK := $(call COMPILE,$(IMAGE_PYTHON)) pyproject.toml

# Python keeps what it compiles, whatever the shell says: each of a thousand processes would do it anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint types unit docs test-faults test-containers serve lock clean

demo: $(VENV)/.cpu  ## start the service, resolve the samples over HTTP, show what came out
	$(BIN)/python samples/demo.py

# Types are checked while the kernels are compiled, by two processes.
test: $(VENV)/.dev  ## all that needs no GPU
	$(MAKE) --no-print-directory --jobs 2 lint types unit

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo

types: $(VENV)/.dev
	$(BIN)/mypy

# Four processes, a file in one of them: where two cores have two, one waits a third of the time.
PYTEST := $(BIN)/pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder

unit: $(VENV)/.dev
	$(PYTEST)

docs: $(VENV)/.dev  ## the pages as a site, in site/
	$(BIN)/mkdocs build --strict

test-faults: $(VENV)/.dev  ## kill everything, again and again, generate clients, run benchmarks
	$(PYTEST) tests/faults tests/clients tests/benchmarks

test-containers: $(VENV)/.dev  ## build the images and run docker-compose.yml; needs a Docker engine
	$(BIN)/pytest tests/containers tests/deploy/test_images.py

serve: $(VENV)/.cpu  ## run the service on this machine
	$(BIN)/georesolve serve

lock: $(VENV)/.dev  ## resolve the requirements anew; the CPU follows the versions of the GPU stack
	$(PIP) uv
	$(LOCK) --extra service --extra gpu --output-file requirements/gpu.txt
	$(LOCK) --constraint requirements/gpu.txt --extra service --extra postgres --output-file requirements/cpu.txt
	$(IMAGE_LOCK) --constraint requirements/gpu.txt --extra service --extra postgres --output-file requirements/api.txt
	$(IMAGE_LOCK) --constraint requirements/gpu.txt --extra service --extra gpu --output-file requirements/worker.txt
	echo 'setuptools>=77' | $(call COMPILE,$(IMAGE_PYTHON)) - --output-file requirements/build.txt
	$(LOCK) --constraint requirements/gpu.txt --extra service --extra postgres --extra client --extra gis --extra test --extra dev --extra docs --output-file requirements/dev.txt

clean:
	rm -rf $(VENV) .demo

# The tree is run where it stands: the installed project is a link to it.
$(VENV)/.cpu: requirements/cpu.txt pyproject.toml
	PYTHON=$(PYTHON) deploy/make_environment.sh $(VENV)
	$(PIP) --require-hashes --requirement requirements/cpu.txt
	$(PIP) --no-deps --editable .
	touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.cpu
	$(PIP) --require-hashes --requirement requirements/dev.txt
	touch $@
