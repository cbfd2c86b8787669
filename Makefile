# Every target installs missing requirements (scripts/bootstrap), and builds what it needs.
#
#   make demo         trains a language model on four ranks, and shows what the pipeline did
#   make test         everything CI checks
#   make test-slow    what takes longer
#   make gpu-test     tests on a CUDA device (needs one)
#   make build        the library, and the tools at build/bin
#   make bench        all benchmarks; make bench NAME=microbatch for one
#   make python       builds the Python package and installs it into the environment
#   make python-test  the tests of the Python package, which are part of make test
#   make wheel        a wheel of it, in build/wheels
#   make package      a tarball and a Debian package, in build/packages
#   make docs         draws the pictures of docs/ again
#   make reference    the reference of the headers: build/reference/html/index.html
#   make docs-test    compiles and runs the snippets of README.md and docs/
#   make format lint  clang-format in place; clang-tidy
#   make single-files compiles every source of library, tools and tests alone, without a precompiled header
#   make clang        builds and tests with clang 14
#   make asan tsan    the tests under AddressSanitizer + UBSan; under ThreadSanitizer
#
# JOBS=N compiles N files at a time (default: the cores), TEST_JOBS=N runs N tests at a time (default: one more).
# TORCH=2.13.0 uses that version of torch instead of the default, in folders of its own: `make test TORCH=2.13.0`
#   installs into .venv-2.13.0 and builds in build-2.13.0.
# STAGECRAFT_PYTHON=PATH uses that Python's torch (2.11 to 2.15) instead of .venv.
# STAGECRAFT_TORCH=OFF builds and tests the half of the library that needs no torch.

SHELL := /bin/bash
.DEFAULT_GOAL := build
ifneq ($(TORCH),)
  ifneq ($(STAGECRAFT_PYTHON),)
    $(error TORCH=$(TORCH) names a version to install and STAGECRAFT_PYTHON=$(STAGECRAFT_PYTHON) a Python that has one: give one of them)
  endif
  SUFFIX = -$(TORCH)
  export STAGECRAFT_TORCH_VERSION = $(TORCH)
endif
export STAGECRAFT_PYTHON STAGECRAFT_TORCH
export NINJA_STATUS ?= [%f of %t, %e s] 

JOBS ?= $(shell nproc)
VENV_PYTHON = .venv$(SUFFIX)/bin/python
PYTHON = $(if $(STAGECRAFT_PYTHON),$(STAGECRAFT_PYTHON),$(if $(wildcard $(VENV_PYTHON)),$(VENV_PYTHON),python3))
# The build folder of the preset `dev`, and those of other presets.
BUILD = build$(SUFFIX)
build_of = $(if $(filter dev,$(1)),$(BUILD),build-$(1)$(SUFFIX))
SOURCES = git ls-files --cached --others --exclude-standard '*.h' '*.cpp'
# One test more than there are cores, because many tests wait for processes.
TEST_JOBS ?= $(shell expr $(JOBS) + 1)
CTEST = ctest --output-on-failure --no-tests=error -j $(TEST_JOBS)
WITH_TORCH = $(or $(STAGECRAFT_TORCH),ON)
# A build folder keeps its configuration: after `make test`, `make demo` keeps the tests.
configure = cmake --log-level=NOTICE --preset $(1) -B $(call build_of,$(1)) -DSTAGECRAFT_TORCH=$(WITH_TORCH) \
  -DSTAGECRAFT_PYTHON="$(if $(TORCH),$(VENV_PYTHON),$(STAGECRAFT_PYTHON))" $(2) >/dev/null
WITH_TESTS = -DSTAGECRAFT_TESTS=ON -DSTAGECRAFT_BENCHMARKS=ON -DSTAGECRAFT_PYTHON_MODULE=ON
build = cmake --build $(1) -j $(JOBS) --target $(2)

.PHONY: demo build python python-test wheel package test test-slow gpu-test docs-test bench tests format lint single-files clang asan tsan docs reference clean

build:
	@scripts/bootstrap demo
	@$(call configure,dev)
	@$(call build,$(BUILD),all)

# pip compiles in the build folder, so that only what has changed is compiled.
PIP_OPTIONS = --no-build-isolation --no-deps --disable-pip-version-check -Cbuild-dir=$(BUILD)
python:
	@scripts/bootstrap test
	"$(PYTHON)" -m pip install $(PIP_OPTIONS) .

python-test:
	@scripts/bootstrap test
	@$(call configure,dev,$(WITH_TESTS))
	@$(call build,$(BUILD),python_package)
	cd $(BUILD) && $(CTEST) -L python -LE 'slow|gpu'

wheel:
	@scripts/bootstrap test
	"$(PYTHON)" -m pip wheel $(PIP_OPTIONS) --wheel-dir $(BUILD)/wheels .

package:
	@scripts/bootstrap package
	@$(call configure,dev)
	@$(call build,$(BUILD),all)
	cd $(BUILD) && cpack && ls packages/*.*

# Builds everything that tests run. Packages that only tests need are installed while the library is
# compiled.
tests:
	@scripts/bootstrap demo
	@$(call configure,dev)
	@scripts/bootstrap test >$(BUILD)/bootstrap.log 2>&1 </dev/null & packages=$$!; \
	$(call build,$(BUILD),all); built=$$?; \
	wait $$packages; installed=$$?; cat $(BUILD)/bootstrap.log; [ $$built = 0 ] && [ $$installed = 0 ]
	@$(call configure,dev,$(WITH_TESTS))
	@$(call build,$(BUILD),all checked)

# `make`, not $(MAKE): with the latter, `make --dry-run test` would run the tests.
test:
	@begin=$$(date +%s); make --no-print-directory tests || exit; built=$$(date +%s); \
	(cd $(BUILD) && $(CTEST) -LE 'slow|gpu' --output-junit ctest.xml); result=$$?; \
	python3 scripts/test_times.py $(BUILD) $$begin $$built; exit $$result

test-slow: tests single-files
	cd $(BUILD) && $(CTEST) -L slow

gpu-test:
	@scripts/bootstrap test
	@$(call configure,dev,$(WITH_TESTS))
	@$(call build,$(BUILD),all tests/gpu/all)
	cd $(BUILD) && STAGECRAFT_REQUIRE_GPU=1 $(CTEST) -L gpu

docs-test:
	@scripts/bootstrap test
	@$(call configure,dev,$(WITH_TESTS))
	@$(call build,$(BUILD),all tests/docs/all docs_pictures)
	cd $(BUILD) && $(CTEST) -L docs

docs:
	@scripts/bootstrap demo
	@$(call configure,dev)
	@$(call build,$(BUILD),docs_update)

reference:
	@scripts/bootstrap test
	@$(call configure,dev)
	@$(call build,$(BUILD),reference)

bench:
	@scripts/bootstrap test
	@$(call configure,dev,$(WITH_TESTS))
	@$(call build,$(BUILD),all benchmarks/all)
	@"$(PYTHON)" benchmarks/run.py --build $(BUILD) $(if $(NAME),--name $(NAME))

demo:
	@scripts/bootstrap demo
	@$(call configure,dev)
	@$(if $(filter OFF,$(WITH_TORCH)),$(call build,$(BUILD),stagecraft),$(call build,$(BUILD),stagecraft stagecraft-train))
	@scripts/demo $(BUILD)

format:
	@scripts/bootstrap test
	$(SOURCES) | xargs clang-format -i

lint:
	@scripts/bootstrap develop
	@$(call configure,tidy)
	cmake --build $(call build_of,tidy) -j $(JOBS) --target all benchmarks/all examples/all -- -k 0

single-files:
	@scripts/bootstrap test
	@$(call configure,single)
	@$(call build,$(call build_of,single),all checked)

clang:
	@scripts/bootstrap develop
	@command -v clang++-14 >/dev/null || { echo 'make clang: there is no clang++-14; on Debian 12: apt-get install clang-14' >&2; exit 1; }
	@$(call configure,clang)
	@$(call build,$(call build_of,clang),all checked)
	cd $(call build_of,clang) && $(CTEST) -LE 'slow|gpu|docs|package'

asan:
	@scripts/bootstrap test
	@$(call configure,asan)
	@$(call build,$(call build_of,asan),all checked)
	cd $(call build_of,asan) && $(CTEST) -LE 'slow|gpu|docs|package'

tsan:
	@scripts/bootstrap test
	@$(call configure,tsan)
	@$(call build,$(call build_of,tsan),all checked)
	cd $(call build_of,tsan) && $(CTEST) -LE 'slow|gpu|docs|package|oracle'

clean:
	rm -rf demo $(BUILD) $(foreach preset,single clang asan tsan tidy,$(call build_of,$(preset)))
