# SPDX-License-Identifier: Apache-2.0
# The front door: everything here is a line of CMake or a script of scripts/, for those who have the tools.
# On a fresh Debian or Ubuntu `sh demo.sh` and `sh test.sh` install what is missing first.
#
#   make            build into build/            make bench      the speed table (ARGS="attention --causal" for one operation)
#   make demo       a model that talks           make install    PREFIX=/usr/local DESTDIR=
#   make test       the quick tests              make format     clang-format over the tree
#   make tune       into build-tune/ with every CUDA tile: build-tune/keyfold tune times them
#   make test-all   everything test.sh runs      make lint       clang-tidy over the tree
MAKEFLAGS += --no-print-directory
BUILD ?= build
PREFIX ?= /usr/local
CMAKE ?= cmake
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
CMAKE_ARGS ?=
# The CUDA backend takes minutes to build: by itself only where a device is (the second name is WSL's). CUDA=ON builds it anywhere that nvcc is.
CUDA ?= $(if $(wildcard /dev/nvidiactl /dev/dxg),AUTO,OFF)
ARGS ?=
SOURCES = git ls-files '*.c' '*.h'

all: configure
	@$(CMAKE) --build $(BUILD) -j $(JOBS)

configure:
	@$(CMAKE) -S . -B $(BUILD) -DCMAKE_INSTALL_PREFIX=$(PREFIX) -DKEYFOLD_CUDA=$(CUDA) $(CMAKE_ARGS) >$(BUILD).log 2>&1 || { cat $(BUILD).log; exit 1; }

demo: all
	@sh scripts/run-demo.sh $(BUILD)

test: all
	@sh scripts/run-tests.sh $(BUILD) quick

test-all:
	@$(MAKE) all CMAKE_ARGS="-DKEYFOLD_WERROR=ON $(CMAKE_ARGS)"
	@sh scripts/run-tests.sh $(BUILD) all

bench: all
	@$(BUILD)/keyfold bench $(ARGS)

tune:
	@$(MAKE) all BUILD=$(BUILD)-tune CUDA=ON CMAKE_ARGS="-DKEYFOLD_TUNE=ON $(CMAKE_ARGS)"

install: all
	@DESTDIR="$(DESTDIR)" $(CMAKE) --install $(BUILD) --prefix $(PREFIX)

format:
	$(SOURCES) | xargs clang-format -i

lint: configure
	@sh scripts/lint.sh $(BUILD)

clean:
	rm -rf $(BUILD) $(BUILD).log

.PHONY: all configure demo test test-all bench tune install format lint clean
