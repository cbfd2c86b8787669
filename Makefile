# Every verb sets up what it needs first (scripts/bootstrap) and says so; the second time it is silent.
#
#   make demo         trains a language model on four ranks, and shows what the pipeline did
#   make test         everything CI checks
#   make test-slow    what takes longer
#   make gpu-test     tests on a CUDA device (needs one)
#   make build        the tool at build/bin/stagecraft, libraries, tests, benchmarks, examples
#   make bench        all benchmarks; make bench NAME=microbatch for one
#   make package      a tarball and a Debian package, in build/packages
#   make docs         draws the pictures of docs/ anew
#   make reference    the reference of the headers: build/reference/html/index.html
#   make docs-test    compiles and runs the snippets of README.md and docs/
#   make format lint  clang-format in place; clang-tidy
#   make clang        builds and tests with clang 14
#   make asan tsan    the tests under AddressSanitizer + UBSan; under ThreadSanitizer
#
# STAGECRAFT_PYTHON=PATH uses that Python's torch (2.11 to 2.13) instead of .venv.
# STAGECRAFT_TORCH=OFF builds and tests the half of the library that needs no torch.

SHELL := /bin/bash
.DEFAULT_GOAL := build
export STAGECRAFT_PYTHON STAGECRAFT_TORCH

JOBS ?= $(shell nproc)
PYTHON = $(if $(STAGECRAFT_PYTHON),$(STAGECRAFT_PYTHON),$(if $(wildcard .venv/bin/python),.venv/bin/python,python3))
SOURCES = git ls-files --cached --others --exclude-standard '*.h' '*.cpp'
CTEST = ctest --output-on-failure --no-tests=error -j $(JOBS)
configure = cmake --log-level=NOTICE --preset $(1) -DSTAGECRAFT_TORCH=$(or $(STAGECRAFT_TORCH),ON) \
	-DSTAGECRAFT_PYTHON="$(STAGECRAFT_PYTHON)" >/dev/null

.PHONY: bootstrap configure build test test-slow gpu-test demo bench package format lint clang asan tsan docs docs-test reference clean

bootstrap:
	@scripts/bootstrap

configure: bootstrap
	@$(call configure,dev)

build: configure
	cmake --build build -j $(JOBS)

test: build
	cd build && $(CTEST) -LE 'slow|gpu'

test-slow: build
	cd build && $(CTEST) -L slow

gpu-test: build
	cd build && STAGECRAFT_REQUIRE_GPU=1 $(CTEST) -L gpu

docs: build
	cmake --build build --target docs_update

reference: configure
	cmake --build build --target reference

docs-test: build
	cd build && $(CTEST) -L docs

# Four ranks, about two minutes on two cores.
DEMO = build/bin/stagecraft train --ranks 4 --schedule 1F1B --steps 450 --report demo/report.html --trace demo/trace.json

demo: build
ifeq ($(STAGECRAFT_TORCH),OFF)
	@build/bin/stagecraft compare --ranks 4 --microbatches 8 --costs F=10,B=10,W=8,C=1
	@build/bin/stagecraft draw ZBVZeroBubble --ranks 4 --microbatches 8
else
	@mkdir -p demo
	@printf '%s\n\n' '$(DEMO)'
	@$(DEMO)
	@printf '\nWhat the pipeline did, in a browser: demo/report.html; in ui.perfetto.dev: demo/trace.json\n'
endif

bench: build
	@"$(PYTHON)" benchmarks/run.py --build build $(if $(NAME),--name $(NAME))

package: build
	cd build && cpack && ls packages/*.*

format: bootstrap
	$(SOURCES) | xargs clang-format -i

lint: bootstrap
	@$(call configure,tidy)
	cmake --build build-tidy -j $(JOBS) -- -k 0

asan: bootstrap
	@$(call configure,asan)
	cmake --build build-asan -j $(JOBS)
	cd build-asan && $(CTEST) -LE 'slow|gpu|docs|package'

clang: bootstrap
	@command -v clang++-14 >/dev/null || { echo 'make clang: there is no clang++-14; on Debian 12: apt-get install clang-14' >&2; exit 1; }
	@$(call configure,clang)
	cmake --build build-clang -j $(JOBS)
	cd build-clang && $(CTEST) -LE 'slow|gpu|docs|package'

tsan: bootstrap
	@$(call configure,tsan)
	cmake --build build-tsan -j $(JOBS)
	cd build-tsan && $(CTEST) -LE 'slow|gpu|docs|package|oracle'

clean:
	rm -rf demo build build-release build-clang build-asan build-tsan build-tidy
