# SPDX-License-Identifier: Apache-2.0
#
# dlpackd: the daemon, the library libdlx, the command line tool dlxctl, their tests, benchmarks and
# examples. `make help` lists the targets and these variables:
#
#   SAN=address,undefined | thread      sanitizers, in a build folder of their own
#   CC=clang                            another compiler, in a build folder of its own
#   WERROR=1                            warnings are errors (continuous integration)
#   V=1                                 print the commands
#   T='test_a e2e_b'                    `make check`: only these programs
#   POSIX_TESTS='e2e_a'                 `make check`: run these again on POSIX shared memory (most)
#   VALGRIND=1                          `make check`: under valgrind
#   QUICK=1                             a sample or small sizes: bench, bench-gpu, faults, model
#   MINUTES=n SEED=n                    `make soak`
#   CALLERS=n                           `make scale`
#   N=n SEED=n FILES= SINCE=revision    `make mutants`: n mistakes in these or the changed files
#   FUZZ_RUNS=n T='take topic'          `make fuzz`: executions of a target, and which targets
#   BENCH_ARGS= HOSTILE_ARGS=           passed to bench/run, bench/run-gpu and tests/hostile/run
#   TURNS_ARGS=                         passed to tests/hostile/turns.py
#   CARGO=cargo                         for `make rust`, `check-rust` and `install-rust`
#   RUST_PROFILE=release                what of it `make install-rust` builds and installs
#   PYTHON=python3                      for `make python`, `make check-python` and the tools
#   INTEROP_PYTHON=python3              a Python with the frameworks: check-interop, bench-python
#   CHECK_GPU_DRIVER=file               `make check-gpu`: a driver instead of libcuda.so.1
#   SETUP=no                            name what is missing, and install nothing
#   CUDA_INCLUDE=dir HIP_INCLUDE=dir    where cuda.h and hip/ are; empty: build without
#   PREFIX DESTDIR BINDIR LIBDIR        where `make install` puts things
#   INCLUDEDIR PKGCONFIGDIR CMAKEDIR    headers, pkg-config and CMake files
#   MANDIR DOCDIR                       manual pages, and licences of the Rust programs
#   BASHDIR ZSHDIR FISHDIR              shell completion
#   SYSCONFDIR UNITDIR SYSTEMUNITDIR    configuration, systemd units of users and of the system
#   SYSUSERSDIR TMPFILESDIR             systemd's users and temporary files
#
# `make` alone runs one job at a time; `check`, `demo` and other targets that build before they run
# something use all processors unless -j says otherwise. Nothing here downloads or installs anything
# except through tools/setup.sh, which these targets call first and which returns at once when
# everything is there.
#
#   mk/compiler.mk   compiler, sanitizers, flags          mk/tests.mk     make check, its programs
#   mk/libraries.mk  libraries, headers of GPU drivers    mk/trials.mk    lint, fuzz, faults, model
#   mk/install.mk    make install                         mk/bench.mk     benchmarks
#   mk/python.mk     the Python package                   mk/packages.mk  Debian packages, the site
#   mk/rust.mk       the Rust crates

VERSION := 0.1.0
SOVERSION := 0

MAKEFLAGS += --no-builtin-rules
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.SUFFIXES:
.DEFAULT_GOAL := all

include mk/compiler.mk
include mk/libraries.mk

# -- sources, by the library that they are in -----------------------------------------------------
obj = $(patsubst %.c,$(OBJ)/%.o,$(1))
lib = $(BUILD)/lib/lib$(1).a

# The library does not listen.
LISTEN_OBJ := $(call obj,common/listen.c)
COMMON_OBJ := $(filter-out $(LISTEN_OBJ),$(call obj,$(wildcard common/*.c ring/*.c)))
PROTO_OBJ := $(OBJ)/proto/dlx.pb-c.o
DAEMON_OBJ := $(call obj,$(filter-out daemon/server/main.c,$(wildcard daemon/*/*.c)))
KEEPER_OBJ := $(call obj,$(filter-out keeper/main.c keeper/wire.c,$(wildcard keeper/*.c)))
# cli/trace.bpf.c is a program for the kernel.
CLI_OBJ := $(call obj,$(filter-out cli/main.c %.bpf.c,$(wildcard cli/*.c)))
# A backend whose headers are absent is left out, and says so when it is asked for.
CUDA_OBJ := $(call obj,$(if $(CUDA_INCLUDE),$(wildcard gpu/cuda_*.c)))
HIP_OBJ := $(call obj,$(if $(HIP_INCLUDE),$(wildcard gpu/hip_*.c)))
# libdlx-gpu: libdlx.so loads it, and static programs link it.
GPU_OBJ := $(call obj,$(filter-out gpu/cuda_%.c gpu/hip_%.c,$(wildcard gpu/*.c gpu/lib/*.c)) \
    keeper/wire.c) $(CUDA_OBJ) $(HIP_OBJ)
# What of it the keeper has, too: the backends, and nothing of the library.
BACKEND_OBJ := $(call obj,gpu/backend.c gpu/gpu.c gpu/handle.c) $(CUDA_OBJ) $(HIP_OBJ)
# What loads it is in libdlx.so alone.
LOAD_OBJ := $(call obj,client/gpu/load.c)
# Nothing but a weak reference names this one, which takes none out of an archive.
LINKED_GPU := $(call obj,gpu/lib/library.c)
CLIENT_OBJ := $(filter-out $(LOAD_OBJ),$(call obj,$(wildcard client/*.c client/*/*.c)))
# In examples/ a file with a main is a program; a file without one is shared by all of them.
EXAMPLE_ALL := $(wildcard examples/*.c)
EXAMPLE_SRC := $(if $(EXAMPLE_ALL),$(shell grep -lE '^(int +)?main\>' $(EXAMPLE_ALL)))
EXAMPLE_BIN := $(patsubst %.c,$(BUILD)/%,$(EXAMPLE_SRC))

DAEMON_BIN := $(BUILD)/dlpackd $(BUILD)/dlpackd-keeper
SONAME := libdlx.so.$(SOVERSION)
SOREAL := $(BUILD)/libdlx.so.$(VERSION)
LIBDLX := $(BUILD)/libdlx.so
GPU_SONAME := libdlx-gpu.so.$(SOVERSION)
GPU_SOREAL := $(BUILD)/libdlx-gpu.so.$(VERSION)
LIB_BIN := $(SOREAL) $(BUILD)/$(SONAME) $(LIBDLX) $(BUILD)/libdlx.a \
    $(GPU_SOREAL) $(BUILD)/$(GPU_SONAME) $(BUILD)/libdlx-gpu.a

# -- what people ask for --------------------------------------------------------------------------
.PHONY: all help setup demo man clean distclean
all: $(DAEMON_BIN) $(LIB_BIN) $(BUILD)/dlxctl $(EXAMPLE_BIN) ## build programs, library and examples

help: ## list the targets
	@echo 'Targets:'
	@grep -hE '^[a-z][a-z-]*:.*## ' Makefile mk/*.mk | \
	    sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | \
	    awk -F'\t' '{ printf "  %-18s %s\n", $$1, $$2 }'
	@echo 'Variables:'
	@sed -nE 's/^#   ([A-Z].*)$$/  \1/p' Makefile

setup: ## install what the build needs (apt, only what is missing)
	@tools/setup.sh

demo: ## set up if needed, build, and run examples/demo.sh
	@tools/setup.sh
	+@$(SUBMAKE) all
	@$(RUN_ENV) examples/demo.sh

man: $(BUILD)/man/.made ## make the manual pages in build/man (`make install` does it, too)
$(BUILD)/man/.made: tools/man $(wildcard include/dlx/*.h docs/man/*) Makefile
	$(call say,GEN)
	$(Q)rm -rf $(@D) && $(PYTHON) tools/man $(@D) $(VERSION) && touch $@

# For each of these shells, what the programs just built offer.
COMPLETED := dlxctl dlpackd dlpackd-keeper
COMPLETION := $(BUILD)/completion
$(COMPLETION)/.made: tools/completion $(COMPLETED:%=$(BUILD)/%)
	$(call say,GEN)
	$(Q)rm -rf $(@D) && $(PYTHON) tools/completion $(@D) $(COMPLETED:%=$(BUILD)/%) && touch $@

clean: ## remove what was built (not build/venv* and build/cache)
	@if [ -d '$(BUILD_ROOT)' ]; then \
	    find '$(BUILD_ROOT)' -mindepth 1 -maxdepth 1 ! -name 'venv*' ! -name cache \
	        -exec rm -rf {} +; fi

distclean: ## remove build/ with everything in it
	@rm -rf '$(BUILD_ROOT)'

# -- compiling ------------------------------------------------------------------------------------
MADE_HEADERS := $(BUILD)/proto/dlx.pb-c.h $(BUILD)/gpu_build.h $(BUILD)/page_files.h
$(OBJ)/%.o: %.c $(FLAGS_FILE) | $(MADE_HEADERS) needed-packages
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(COMPILE) $(WARNINGS) -c -o $@ $<

# Generated code is not held to our warnings.
$(PROTO_OBJ): $(BUILD)/proto/dlx.pb-c.c $(FLAGS_FILE) | needed-packages
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(COMPILE) -Wall -c -o $@ $<

# A bundle has the generated code, and so has a source distribution of the Python package.
PROTO_MADE := $(wildcard $(if $(BUNDLE),$(BUNDLE)/)proto/dlx.pb-c.[ch])
$(BUILD)/proto/dlx.pb-c.c $(BUILD)/proto/dlx.pb-c.h &: proto/dlx.proto
	@mkdir -p $(@D)
	$(call say,GEN)
	$(Q)$(if $(PROTO_MADE),cp $(PROTO_MADE) $(@D)/, \
	    $(PROTOC_C) --proto_path=. --c_out=$(BUILD) proto/dlx.proto)

# What libdlx and libdlx-gpu have to agree on: the release, and all private headers that both see.
$(BUILD)/gpu_build.h: $(wildcard include/*/*.h common/*.h ring/*.h client/*/*.h) keeper/wire.h \
    Makefile
	@mkdir -p $(@D)
	$(call say,GEN)
	$(Q)printf '#define DLX_GPU_BUILD "%s %s"\n' '$(VERSION)' \
	    "$$(cat $(filter %.h,$^) | sha256sum | cut -c1-16)" >$@

# The page of `dlxctl serve`: each file is a string of that name, such as page_html.
$(BUILD)/page_files.h: cli/page/page.html cli/page/page.css cli/page/page.js Makefile
	@mkdir -p $(@D)
	$(call say,GEN)
	$(Q)for f in $(filter cli/%,$^); do name=$${f##*/}; \
	    echo "static const char $${name/./_}[] ="; \
	    sed 's/[\\"?]/\\&/g; s/.*/    "&\\n"/' $$f; echo ';'; done >$@

# The BPF program of `dlxctl trace`, as a header with its code.
BPF_ARCH = $(shell uname -m | sed -e 's/x86_64/x86/' -e 's/aarch64/arm64/' -e 's/ppc64.*/powerpc/' \
    -e 's/riscv64/riscv/')
BPF_SKELETON := $(if $(BPF_LIBS),$(BUILD)/cli/trace.skel.h)
$(BUILD)/cli/trace.bpf.o: cli/trace.bpf.c cli/trace_event.h Makefile
	@mkdir -p $(@D)
	$(call say,BPF)
	$(Q)$(BPF_CLANG) -target bpf -D__TARGET_ARCH_$(BPF_ARCH) -O2 -g -ffreestanding \
	    -Wall -Wextra -Wno-unused-parameter $(if $(WERROR),-Werror) -I. \
	    -isystem /usr/include/$(shell $(CC) -print-multiarch 2>/dev/null) -c -o $@.all $<
	$(Q)$(BPFTOOL) gen object $@ $@.all && rm $@.all
$(BUILD)/cli/trace.skel.h: $(BUILD)/cli/trace.bpf.o
	$(call say,GEN)
	$(Q)$(BPFTOOL) gen skeleton $< name trace_bpf >$@
$(OBJ)/cli/trace.o: | $(BPF_SKELETON)

# Objects depend on the flags that they were compiled with: other flags rebuild what they change.
# Expanded here, since the first object of a make lends its own flags to what it depends on.
.PHONY: always
$(FLAGS_FILE): export FLAGS := $(CC) $(CFLAGS) $(WARNINGS) $(BASE_CFLAGS) $(BASE_CPPFLAGS) \
    $(CPPFLAGS) $(LDFLAGS) $(GPU_CPPFLAGS)
$(FLAGS_FILE): always
	@mkdir -p $(@D); cmp -s - $@ <<<"$$FLAGS" || printf '%s\n' "$$FLAGS" >$@

$(GPU_OBJ): BASE_CPPFLAGS += $(GPU_WITH) -DDLX_GPU_LIBRARY
$(CUDA_OBJ): BASE_CPPFLAGS += $(CUDA_CPPFLAGS)
$(HIP_OBJ): BASE_CPPFLAGS += $(HIP_CPPFLAGS)
$(OBJ)/cli/graphics.o: BASE_CPPFLAGS += $(CHAFA_CPPFLAGS)
$(OBJ)/gpu/gpu.o: | $(if $(CUDA_INCLUDE),,no-cuda) $(if $(HIP_INCLUDE),,no-hip)

# -- archives: one rule ---------------------------------------------------------------------------
$(call lib,common): $(COMMON_OBJ) $(LISTEN_OBJ) $(PROTO_OBJ) $(OBJ)/keeper/wire.o
$(call lib,daemon): $(DAEMON_OBJ)
$(call lib,keeper): $(KEEPER_OBJ)
$(call lib,client): $(CLIENT_OBJ)
$(call lib,gpu): $(GPU_OBJ)
$(call lib,cli): $(CLI_OBJ)
$(call lib,examples): $(call obj,$(filter-out $(EXAMPLE_SRC),$(EXAMPLE_ALL)))
$(BUILD)/libdlx.a: $(COMMON_OBJ) $(CLIENT_OBJ) $(PROTO_OBJ)
$(BUILD)/libdlx-gpu.a: $(GPU_OBJ)

%.a:
	@mkdir -p $(@D)
	@rm -f $@
	$(call say,AR)
	$(Q)$(AR) rcs $@ $^

# -- programs and shared libraries: one rule ------------------------------------------------------
# A program is linked of its prerequisites: objects, archives in one group, and libdlx.so where it
# is one of them. LIBS and LINK_FLAGS are what it needs besides.
LIBS :=
LINK_FLAGS :=
LINK = $(CC) $(BASE_CFLAGS) $(CFLAGS) $(BASE_LDFLAGS) $(LDFLAGS)
# Programs of the build tree find the library in it, from whichever of its folders.
RPATH = -Wl,-rpath,'$$ORIGIN:$$ORIGIN/..:$$ORIGIN/../..'
group = $(if $(1),-Wl$(,)--start-group $(1) -Wl$(,)--end-group)
define link
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(LINK) $(LINK_FLAGS) -o $@ $(filter %.o,$^) $(call group,$(filter %.a,$^)) \
	    $(if $(filter $(LIBDLX),$^),$(RPATH) -L$(BUILD) -ldlx) $(LIBS)
endef

$(BUILD)/dlpackd: $(OBJ)/daemon/server/main.o $(call lib,daemon) $(call lib,common)
$(BUILD)/dlpackd: private LIBS = $(UV_LIBS) $(PBC_LIBS) $(INI_LIBS)

$(BUILD)/dlpackd-keeper: $(OBJ)/keeper/main.o $(call lib,keeper) $(BACKEND_OBJ) $(call lib,common)

# The installed dlxctl is linked anew, without the run path of the build tree.
CLI_LIBS = $(JSON_LIBS) $(ZIP_LIBS) $(CURSES_LIBS) $(HTTP_LIBS) $(PNG_LIBS) $(CHAFA_LIBS) \
    $(BPF_LIBS) -ldl -lm
$(BUILD)/dlxctl: $(OBJ)/cli/main.o $(call lib,cli) $(LIBDLX)
$(BUILD)/dlxctl: private LIBS = $(CLI_LIBS)

# -z defs finds a forgotten library at once; not with sanitizers, whose run-time clang leaves open.
LINK_SHARED = -shared -Wl,-soname,$(1) -Wl,--version-script=$(2) $(if $(SAN),,-Wl$(,)-z$(,)defs)
$(SOREAL): $(COMMON_OBJ) $(CLIENT_OBJ) $(LOAD_OBJ) $(PROTO_OBJ) client/libdlx.map
$(SOREAL): private LIBS = $(PBC_LIBS)
$(SOREAL): private LINK_FLAGS = $(call LINK_SHARED,$(SONAME),client/libdlx.map)

# It is never found by itself, but by libdlx.so, which it needs.
$(GPU_SOREAL): $(GPU_OBJ) $(LIBDLX) gpu/libdlx-gpu.map
$(GPU_SOREAL): private RPATH :=
$(GPU_SOREAL): private LINK_FLAGS = $(call LINK_SHARED,$(GPU_SONAME),gpu/libdlx-gpu.map)

$(EXAMPLE_BIN): $(BUILD)/%: $(OBJ)/%.o $(call lib,examples) $(LIBDLX)
$(EXAMPLE_BIN): private LIBS = $(IMAGE_LIBS)

$(DAEMON_BIN) $(BUILD)/dlxctl $(SOREAL) $(GPU_SOREAL) $(EXAMPLE_BIN):
	$(link)

$(BUILD)/$(SONAME): $(SOREAL)
$(BUILD)/$(GPU_SONAME): $(GPU_SOREAL)
$(LIBDLX): $(BUILD)/$(SONAME)
$(BUILD)/$(SONAME) $(BUILD)/$(GPU_SONAME) $(LIBDLX):
	$(Q)ln -sf $(<F) $@

include mk/tests.mk
include mk/trials.mk
include mk/bench.mk
include mk/python.mk
include mk/rust.mk
include mk/packages.mk
include mk/install.mk

# Dependencies that the compiler has found.
-include $(shell find '$(OBJ)' '$(SIM)' -name '*.d' 2>/dev/null)
