# SPDX-License-Identifier: Apache-2.0
#
# dlpackd: the daemon, the library libdlx, the command line tool dlxctl, their tests, benchmarks and
# examples. `make help` lists the targets. Variables that change the result:
#
#   SAN=address,undefined | thread   sanitizers, in a build folder of their own
#   CC=clang                         another compiler, in a build folder of its own
#   WERROR=1                         warnings are errors (continuous integration)
#   V=1                              print the commands
#   T='test_a e2e_b'                 `make check`: only these programs
#   VALGRIND=1                       `make check`: under valgrind
#   QUICK=1                          `make model`: the small sizes only; `make faults`: a fixed sample
#   MINUTES=n SEED=n                 `make soak`
#   FUZZ_RUNS=N T='take topic'       `make fuzz`: executions a target (100000000), and which targets
#   PYTHON=python3                   for `make python`, `make check-python` and the tools
#   INTEROP_PYTHON=python3           `make check-interop`, `bench-python`: a Python that has the frameworks already
#   CHECK_GPU_DRIVER=file            `make check-gpu`: instead of libcuda.so.1, such as the stand-in of tests/standin
#   CUDA_INCLUDE=dir HIP_INCLUDE=dir   the folders of cuda.h and hip/; empty: build without
#   PREFIX DESTDIR BINDIR LIBDIR INCLUDEDIR PKGCONFIGDIR CMAKEDIR MANDIR   where `make install` puts things
#   SYSCONFDIR UNITDIR SYSTEMUNITDIR SYSUSERSDIR TMPFILESDIR   likewise, of the service; UNITDIR is that of user units
#   BASHDIR ZSHDIR FISHDIR           and the completions of these shells
#
# Nothing here downloads or installs anything except through tools/setup.sh, which `check` and `demo`
# call first and which returns at once when everything is there.

MAKEFLAGS += --no-builtin-rules
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.SUFFIXES:
.DEFAULT_GOAL := all

# All processors unless the caller said how many (make adds its own -j to MAKEFLAGS only in recipes, so look at the
# command line of make itself).
ifeq ($(MAKELEVEL),0)
ifeq ($(shell { tr '\0' '\n' </proc/$$PPID/cmdline; tr '\0 ' '\n\n' </proc/$$PPID/environ | \
    sed -nE 's/^MAKEFLAGS=//; /^-j/p'; } 2>/dev/null | grep -E '^(-[a-zA-Z]*j|--jobs)' || true),)
MAKEFLAGS += -j$(shell nproc)
endif
endif

# -- version ------------------------------------------------------------------------------------------
VERSION := 0.1.0
SOVERSION := 0

# -- where things go ----------------------------------------------------------------------------------
PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
PKGCONFIGDIR ?= $(LIBDIR)/pkgconfig
CMAKEDIR ?= $(LIBDIR)/cmake/dlx
UNITDIR ?= $(PREFIX)/lib/systemd/user
SYSTEMUNITDIR ?= $(PREFIX)/lib/systemd/system
SYSUSERSDIR ?= $(PREFIX)/lib/sysusers.d
TMPFILESDIR ?= $(PREFIX)/lib/tmpfiles.d
SYSCONFDIR ?= $(if $(filter /usr /usr/local,$(PREFIX)),/etc,$(PREFIX)/etc)
MANDIR ?= $(PREFIX)/share/man
BASHDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions
FISHDIR ?= $(PREFIX)/share/fish/vendor_completions.d
DESTDIR ?=
INSTALL ?= install

# -- compiler and variant -----------------------------------------------------------------------------
ifeq ($(origin CC),default)
CC := gcc
endif
ifeq ($(origin AR),default)
AR := ar
endif
CXX_FOR_HEADERS ?= g++
PKG_CONFIG ?= pkg-config
PROTOC_C ?= protoc-c
PYTHON ?= python3
SAN ?=
FUZZ ?=
COV ?=
FUZZ_RUNS ?= 100000000
WERROR ?=
V ?=
Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-5s %s\n' $(1) $@)
VALGRIND ?=
QUICK ?=
MINUTES ?= 1
SEED ?=
T ?=

, := ,
empty :=
space := $(empty) $(empty)
VARIANT := $(subst $(space),-,$(strip $(filter-out cc gcc,$(notdir $(firstword $(CC)))) \
    $(if $(SAN),san-$(SAN)) $(if $(FUZZ),fuzz) $(if $(COV),cov)))
BUILD_ROOT ?= build
BUILD := $(BUILD_ROOT)$(if $(VARIANT),/$(VARIANT))
OBJ := $(BUILD)/obj
SIM := $(BUILD)/sim
BUILD_ABS := $(abspath $(BUILD))
RUN_ENV = BUILD='$(BUILD_ABS)' SRCDIR='$(CURDIR)' SAN='$(SAN)' VALGRIND='$(VALGRIND)' \
    CC='$(CC)' PYTHON='$(PYTHON)' GPU_CPPFLAGS='$(GPU_CPPFLAGS)'

CFLAGS ?= $(if $(SAN),$(if $(FUZZ),-O2,-O1),-O2) -g
WARNINGS := -Wall -Wextra -Wshadow -Wconversion -Wsign-conversion -Wmissing-prototypes -Wvla
BASE_CFLAGS := -std=c11 -fPIC -fvisibility=hidden -pthread
BASE_CPPFLAGS := -D_GNU_SOURCE -DDLX_VERSION_STRING='"$(VERSION)"' -Iinclude -I. -I$(BUILD)
BASE_LDFLAGS := -pthread -Wl,--as-needed -Wl,-z,relro,-z,now
ifneq ($(WERROR),)
WARNINGS += -Werror
endif
ifneq ($(SAN),)
BASE_CFLAGS += -fsanitize=$(SAN) -fno-omit-frame-pointer
BASE_LDFLAGS += -fsanitize=$(SAN)
BASE_CPPFLAGS += -DDLX_SANITIZE=1
ifneq ($(findstring thread,$(SAN)),)
ifeq ($(findstring clang,$(CC)),)
# gcc warns at each fence that ThreadSanitizer does not model it: worth reading, not worth failing.
BASE_CFLAGS += -Wno-error=tsan
endif
endif
endif
ifneq ($(FUZZ),)
BASE_CFLAGS += -fsanitize=fuzzer-no-link
endif
ifneq ($(COV),)
# Counts live in a shared map of a file, one a program: those of forked, killed and crashed processes are not lost.
BASE_CFLAGS += -fprofile-instr-generate=$(BUILD_ABS)/profile/%m%c.profraw -fcoverage-mapping -fprofile-update=atomic
BASE_CPPFLAGS += -mllvm -runtime-counter-relocation -DDLX_COVERAGE=1
endif

# -- libraries ----------------------------------------------------------------------------------------
# Evaluated once; a missing library is named before the compiler can say something less clear.
pkg = $(shell $(PKG_CONFIG) $(1) $(2) 2>/dev/null)
# An archive of `make check-gpu-archive` carries them, and the generated code, in bundle/.
BUNDLE := $(if $(wildcard bundle/README),bundle)
NEEDED_PKGS := $(if $(BUNDLE),,libuv libprotobuf-c inih jansson libxxhash libzip check)
LIGHT_GOALS := help gpu-flags check-gpu bench-gpu bench-gpu man clean distclean check check-python check-interop bench-python wheel wheel-check deb deb-check demo setup format model lint fuzz fuzz-quick bench soak hostile hostile-cost faults \
    coverage
ifneq ($(filter-out $(LIGHT_GOALS),$(or $(MAKECMDGOALS),all)),)
ifneq ($(shell for p in $(NEEDED_PKGS); do $(PKG_CONFIG) --exists $$p || echo $$p; done 2>&1),)
$(error missing: $(shell for p in $(NEEDED_PKGS); do $(PKG_CONFIG) --exists $$p 2>/dev/null || echo $$p; done); \
    run tools/setup.sh)
endif
endif
ifneq ($(BUNDLE),)
PKG_CFLAGS := -isystem $(BUNDLE)/include
UV_LIBS := $(BUNDLE)/lib/libuv_a.a -ldl -lrt
PBC_LIBS := $(BUNDLE)/lib/libprotobuf-c.a
JSON_LIBS := $(BUNDLE)/lib/libjansson.a
PKG_CFLAGS += -DDLX_NO_ZIP
INI_LIBS := $(BUNDLE)/lib/libinih.a
CHECK_LIBS := $(BUNDLE)/lib/libcheck_pic.a $(BUNDLE)/lib/libsubunit.a -lm -lrt
CUDA_INCLUDE ?= $(BUNDLE)/cuda
HIP_INCLUDE ?=
else
PKG_CFLAGS := $(call pkg,--cflags,$(NEEDED_PKGS))
UV_LIBS := $(call pkg,--libs,libuv)
PBC_LIBS := $(call pkg,--libs,libprotobuf-c)
JSON_LIBS := $(call pkg,--libs,jansson)
ZIP_LIBS := $(call pkg,--libs,libzip)
INI_LIBS := $(call pkg,--libs,inih)
CHECK_LIBS := $(call pkg,--libs,check) -lm -lrt
endif
IMAGE_LIBS := $(call pkg,--libs,libjpeg) $(call pkg,--libs,libpng) -lm

# -- GPU headers: nothing of CUDA or HIP is linked ---------------------------------------------------
# A toolkit's cuda.h, of 12.5 or later, else that of the wheels that tools/setup.sh fetches.
# CUDA12_INCLUDE and CUDA13_INCLUDE are the wheels', to compile against both versions.
header_dir = $(patsubst %/$(1),%,$(lastword $(sort $(wildcard $(2:%=%/$(1))))))
CUDA_TOOLKITS := /usr/local/cuda/include /usr/local/cuda-*/include \
    /usr/local/cuda*/targets/*/include /opt/cuda/include
CUDA12_INCLUDE := $(call header_dir,cuda.h,$(BUILD_ROOT)/cache/cuda12/nvidia/*/include)
CUDA13_INCLUDE := $(call header_dir,cuda.h,$(BUILD_ROOT)/cache/cuda13/nvidia/*/include)
CUDA_TOOLKIT := $(patsubst %/cuda.h,%,$(lastword $(shell grep -slE \
    'define CUDA_VERSION (120[5-9]|12[1-9].|1[3-9]..).' $(CUDA_TOOLKITS:%=%/cuda.h) | sort)))
CUDA_INCLUDE ?= $(firstword $(CUDA_TOOLKIT) $(CUDA13_INCLUDE) $(CUDA12_INCLUDE))
HIP_INCLUDE ?= $(call header_dir,hip/hip_runtime_api.h,/usr/include /opt/rocm/include)
CUDA_CPPFLAGS = $(CUDA_INCLUDE:%=-isystem %)
HIP_CPPFLAGS = -D__HIP_PLATFORM_AMD__ $(patsubst %,-isystem %,$(filter-out /usr/include,$(HIP_INCLUDE)))

GPU_WITH := $(if $(CUDA_INCLUDE),-DDLX_WITH_CUDA) $(if $(HIP_INCLUDE),-DDLX_WITH_HIP)
GPU_CPPFLAGS = $(strip $(GPU_WITH) $(CUDA_CPPFLAGS) $(if $(HIP_INCLUDE),$(HIP_CPPFLAGS)))

# -- sources ------------------------------------------------------------------------------------------
COMMON_SRC := $(wildcard common/*.c ring/*.c) keeper/wire.c
KEEPER_SRC := $(filter-out keeper/main.c keeper/wire.c,$(wildcard keeper/*.c))
DAEMON_SRC := $(filter-out daemon/server/main.c,$(wildcard daemon/*/*.c))
CLIENT_SRC := $(wildcard client/*.c)
# A backend whose headers are absent is left out, and says so when it is asked for.
CUDA_SRC := $(if $(CUDA_INCLUDE),$(wildcard gpu/cuda_*.c))
HIP_SRC := $(if $(HIP_INCLUDE),$(wildcard gpu/hip_*.c))
GPU_SRC := $(filter-out gpu/cuda_%.c gpu/hip_%.c,$(wildcard gpu/*.c)) $(CUDA_SRC) $(HIP_SRC)
CLI_SRC := $(filter-out cli/main.c,$(wildcard cli/*.c))
HARNESS_SRC := $(wildcard tests/harness/*.c tests/*/harness_*.c)
PROTO_SRC := $(wildcard proto/dlx.proto)
TEST_SRC := $(wildcard tests/*/test_*.c tests/*/e2e_*.c)
# All stories are told on POSIX shared memory, too, but those that choose the memory themselves.
# e2e_memory chooses itself; e2e_debug finds maps by the names that memfds have; e2e_hostile_uid and e2e_hostile_memory try what
# seals forbid.
POSIX_TESTS := $(filter-out e2e_memory e2e_debug e2e_hostile_uid e2e_hostile_memory,$(basename $(notdir $(wildcard tests/*/e2e_*.c))))
SIM_SRC := $(wildcard tests/ring/sim_*.c)
# The simulation of the daemon stands between it and the kernel: what it wraps, and two files of the daemon that it replaces.
SIM_DAEMON_SRC := $(wildcard tests/daemon/sim_daemon.c tests/daemon/sim_daemon/*.c)
SIM_DAEMON_WRAPS := malloc calloc realloc reallocarray strdup strndup free close socketpair memfd_create open fcntl pipe2 \
    fallocate getsockopt clock_gettime shutdown sendmsg recvmsg dlxd_client_send dlxd_client_send_fds dlxd_client_send_ok \
    dlxd_client_send_error dlxd_client_end_some dlx__packet_refuses_fds dlxd_outbox_send dlxd_link_drop_landed dlxd_waiting_send dlxd_report_has_left dlxd_membership_withdrawn dlxd_drain_free
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)
SOAK_SRC := $(wildcard tests/soak/*.c)
STANDIN_SRC := $(wildcard tests/gpu/standin/*.c)
GPU_FACTS_SRC := $(wildcard tests/gpu/facts/*.c)
GPU_BENCH_SRC := $(wildcard tests/gpu/bench/*.c)
BENCH_SRC := $(wildcard bench/bench_*.c)
BENCH_HELP_SRC := $(filter-out $(BENCH_SRC),$(wildcard bench/*.c))
# What we are compared with, in so far as it is installed; bench/peers/iceoryx2 is built by `make bench` alone.
ICEORYX_H := $(lastword $(wildcard /usr/include/iceoryx/*/iceoryx_binding_c/api.h /usr/include/iceoryx_binding_c/api.h))
PEERS := dlx socket $(if $(ICEORYX_H),iceoryx) $(if $(call pkg,--libs,libzmq),zmq)
# In examples/ a file with a main is a program; a file without one is shared by all of them.
EXAMPLE_ALL := $(wildcard examples/*.c)
EXAMPLE_SRC := $(if $(EXAMPLE_ALL),$(shell grep -lE '^(int +)?main\>' $(EXAMPLE_ALL)))
EXAMPLE_HELP_SRC := $(filter-out $(EXAMPLE_SRC),$(EXAMPLE_ALL))

obj = $(patsubst %.c,$(OBJ)/%.o,$(1))
sim = $(patsubst %.c,$(SIM)/%.o,$(1))
COMMON_OBJ := $(call obj,$(COMMON_SRC))
DAEMON_OBJ := $(call obj,$(DAEMON_SRC))
GPU_OBJ := $(call obj,$(GPU_SRC))
# Descriptions of GPU memory need no GPU.
KEEPER_OBJ := $(call obj,$(KEEPER_SRC))
CLIENT_OBJ := $(call obj,$(CLIENT_SRC)) $(GPU_OBJ)
CLI_OBJ := $(call obj,$(CLI_SRC))
HARNESS_OBJ := $(call obj,$(HARNESS_SRC))
PROTO_OBJ := $(if $(PROTO_SRC),$(OBJ)/proto/dlx.pb-c.o)
PROTO_GEN := $(if $(PROTO_SRC),$(BUILD)/proto/dlx.pb-c.h)

# A test is build/tests/NAME, whichever folder of tests/ its source is in.
test = $(patsubst %.c,$(BUILD)/tests/%,$(notdir $(1)))
# A fuzz target without libFuzzer is a test of what is in its corpus.
TEST_BIN := $(call test,$(TEST_SRC) $(SIM_SRC)) $(BUILD)/tests/sim_daemon $(call test,$(FUZZ_SRC)) \
    $(BUILD)/tests/gpu_facts
FAULT_BIN := $(addprefix $(BUILD)/tests/faults/,actor steps words old_kernel libfaultalloc.so)
FUZZ_BIN := $(call test,$(FUZZ_SRC))
# The stand-in for NVIDIA's driver; without cuda.h its tests say SKIP.
STANDIN_LIB := $(if $(CUDA_INCLUDE),$(BUILD)/tests/standin/libcuda.so.1)
BENCH_BIN := $(patsubst bench/%.c,$(BUILD)/bench/%,$(BENCH_SRC))
PEER_BIN := $(PEERS:%=$(BUILD)/bench/peers/%)
SOAK_BIN := $(BUILD)/tests/soak/actor
HONEST_BIN := $(BUILD)/tests/hostile/honest
EXAMPLE_BIN := $(patsubst examples/%.c,$(BUILD)/examples/%,$(EXAMPLE_SRC))
TEST_SCRIPTS := $(wildcard tests/*/check_*.sh)

SOREAL := $(BUILD)/libdlx.so.$(VERSION)
SONAME := libdlx.so.$(SOVERSION)
SOLINKS := $(BUILD)/$(SONAME) $(BUILD)/libdlx.so
MAP := $(wildcard client/libdlx.map)
DAEMON_BIN := $(if $(wildcard daemon/server/main.c),$(BUILD)/dlpackd $(BUILD)/dlpackd-keeper)
CLI_BIN := $(if $(wildcard cli/main.c),$(BUILD)/dlxctl)
LIB_BIN := $(if $(CLIENT_SRC),$(SOREAL) $(SOLINKS) $(BUILD)/libdlx.a)

# Programs' output in one piece; not for the targets below, whose own output should appear as it comes.
SUBMAKE = $(MAKE) --no-print-directory --output-sync=target

# -- what people ask for ------------------------------------------------------------------------------
.PHONY: all man help demo check check-programs bench bench-programs bench-check bench-iceoryx2 soak soak-programs hostile hostile-cost hostile-programs coverage lint lint-analyzer format \
    install uninstall clean distclean model fuzz fuzz-quick faults setup install-check
all: $(DAEMON_BIN) $(LIB_BIN) $(CLI_BIN) $(EXAMPLE_BIN) ## build the daemon, the library, dlxctl and the examples (default)

help: ## list the targets
	@echo 'Targets:'
	@grep -hE '^[a-z][a-z-]*:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:.*## /\t/' | \
	    awk -F'\t' '{ printf "  %-14s %s\n", $$1, $$2 }'
	@echo 'Variables:'
	@sed -nE 's/^#   ([A-Z].*)$$/  \1/p' $(firstword $(MAKEFILE_LIST))

man: $(BUILD)/man/.made ## make the manual pages in build/man (tools/man; `make install` does it too)
$(BUILD)/man/.made: tools/man $(wildcard include/dlx/*.h docs/man/*) $(firstword $(MAKEFILE_LIST))
	@rm -rf $(@D)
	$(call say,GEN)
	$(Q)$(PYTHON) tools/man $(@D) $(VERSION) && touch $@

# What the programs just built offer.
COMPLETED := dlxctl dlpackd dlpackd-keeper
COMPLETION := $(BUILD)/completion
$(COMPLETION)/.made: tools/completion $(COMPLETED:%=$(BUILD)/%)
	@rm -rf $(@D)
	$(call say,GEN)
	$(Q)$(PYTHON) tools/completion $(@D) $(COMPLETED:%=$(BUILD)/%) && touch $@

setup: ## install what the build needs (apt, only what is missing)
	@tools/setup.sh

demo: ## set up if needed, build, and run examples/demo.sh
	@tools/setup.sh
	+@$(SUBMAKE) all
	@$(RUN_ENV) examples/demo.sh

check: ## set up if needed, build, and run every test
	@tools/setup.sh
	+@$(SUBMAKE) all check-programs python
	@$(RUN_ENV) tools/run-tests $(if $(T),--only '$(T)') --posix '$(POSIX_TESTS)' $(TEST_BIN) $(TEST_SCRIPTS)

check-programs: $(TEST_BIN) $(STANDIN_LIB) $(BUILD)/tests/keeper_actor $(BUILD)/tests/gpu_bench $(BUILD)/tests/gpu_probe

# The questions first. Nothing is installed or fetched: a machine with a GPU may have no network.
CHECK_GPU_PROGRAMS := gpu_facts test_gpu_memory test_gpu_share e2e_gpu e2e_gpu_alloc e2e_gpu_order e2e_gpu_retain e2e_gpu_stage e2e_gpu_containers \
    e2e_gpu_release e2e_gpu_stream e2e_gpu_gates e2e_gpu_deaths e2e_gpu_pin
.PHONY: check-gpu check-gpu-programs
check-gpu: ## the stories about GPUs on the GPU of this machine; without one: says so
	+@$(RUN_ENV) CHECK_GPU_DRIVER='$(CHECK_GPU_DRIVER)' \
	    MAKE_PROGRAMS='$(SUBMAKE) -sj$(shell nproc) check-gpu-programs' MAKE_PYTHON='$(SUBMAKE) -sj$(shell nproc) python' \
	    tools/check-gpu $(CHECK_GPU_PROGRAMS)

.PHONY: check-gpu-archive
check-gpu-archive: $(BUILD)/proto/dlx.pb-c.c ## an archive for a machine with a GPU, gcc and make: build/dlpackd-check-gpu.tar.xz
	@tools/check-gpu-archive '$(BUILD_ABS)' '$(CUDA_INCLUDE)'

check-gpu-programs: $(BUILD)/dlpackd $(BUILD)/dlpackd-keeper $(BUILD)/dlxctl $(CHECK_GPU_PROGRAMS:%=$(BUILD)/tests/%)

bench: ## build the benchmarks and run bench/run
	@tools/setup.sh --bench
	+@$(SUBMAKE) all bench-programs bench-iceoryx2
	@$(RUN_ENV) bench/run $(BENCH_ARGS)

bench-programs: $(BENCH_BIN) $(PEER_BIN)

bench-check: ## every benchmark program for a moment: are its figures sane, and those of the peers that are installed?
	+@$(SUBMAKE) all bench-programs
	@$(RUN_ENV) bench/selftest

.PHONY: bench-gpu bench-gpu-programs
bench-gpu: ## the benchmarks of GPUs: build/bench-gpu.json; without a GPU: says so (BENCH_ARGS=--standin: only shows that they run)
	+@$(SUBMAKE) bench-gpu-programs
	@$(RUN_ENV) QUICK='$(QUICK)' bench/run-gpu $(BENCH_ARGS)

bench-gpu-programs: $(BUILD)/dlpackd $(BUILD)/dlpackd-keeper $(BUILD)/tests/gpu_bench $(BUILD)/tests/gpu_probe $(STANDIN_LIB)

bench-iceoryx2: $(OBJ)/bench/peers/pattern.o $(BUILD)/lib/libbench.a
	@CC='$(CC)' bench/peers/iceoryx2/build '$(BUILD_ABS)' $(abspath $^)

soak: ## many programs of random kinds, killed and restarted, for MINUTES=n (1); SEED=n; curves in build/soak
	@tools/setup.sh
	+@$(SUBMAKE) all soak-programs
	@$(RUN_ENV) tests/soak/run --minutes '$(MINUTES)' $(if $(SEED),--seed '$(SEED)')

soak-programs: $(SOAK_BIN)

HOSTILE_TESTS := $(basename $(notdir $(wildcard tests/hostile/e2e_*.c)))
hostile: ## programs that lie, under sanitizers; then two greedy users beside honest ones (QUICK=1; HOSTILE_ARGS: tests/hostile/run)
	+@$(SUBMAKE) check SAN=address,undefined T='$(HOSTILE_TESTS)'
	+@$(SUBMAKE) hostile-cost

hostile-cost: ## only the latter
	+@$(SUBMAKE) all hostile-programs
	@$(RUN_ENV) tests/hostile/run $(HOSTILE_ARGS)

hostile-programs: $(HONEST_BIN)

COV_MAKE = $(SUBMAKE) CC=clang COV=1
coverage: ## which branches the tests and `make faults QUICK=1` take, by file (T: by these tests); build/clang-cov/coverage
	@tools/setup.sh --lint --faults
	@rm -rf '$(BUILD_ROOT)/clang-cov/profile'
	+@$(COV_MAKE) check
	$(if $(T),,+@$(COV_MAKE) faults QUICK=1)
	@tools/coverage '$(BUILD_ROOT)/clang-cov'

lint: ## check the rules of the tree, formatting and static analysers (not gcc -fanalyzer)
	@tools/setup.sh --lint
	+@$(SUBMAKE) all python
	@$(RUN_ENV) tools/lint/run

lint-analyzer: $(PROTO_GEN) ## gcc -fanalyzer over common/, ring/, gpu/, daemon/, client/ and cli/
	@CC='$(CC)' GPU_CPPFLAGS='$(GPU_CPPFLAGS)' $(PYTHON) tools/lint/analyzer '$(BUILD)'

.PHONY: gpu-flags
gpu-flags: # for tools/lint/run
	@echo '$(GPU_CPPFLAGS)'

format: ## format all C and C++ files
	@tools/lint/format --fix

faults: ## kill, stop and starve every process at every system call, step and allocation (QUICK=1: a sample, under 90 s)
	@tools/setup.sh --faults
	+@$(SUBMAKE) all fault-programs
	@$(RUN_ENV) QUICK='$(QUICK)' tests/fail/faults/run

.PHONY: fault-programs
fault-programs: $(FAULT_BIN)

model: ## verify the models of the protocol with spin, and that broken variants fail (QUICK=1: under 120 s)
	@tools/setup.sh --model
	@QUICK='$(QUICK)' tests/model/run.sh

FUZZ_MAKE = $(SUBMAKE) CC=clang SAN=address,undefined FUZZ=1
fuzz: ## run the fuzz targets, FUZZ_RUNS executions each, and report what they cover
	@tools/setup.sh --lint
	+@$(FUZZ_MAKE) fuzz-programs
	+@$(COV_MAKE) fuzz-programs
	@tools/fuzz --build '$(BUILD_ROOT)' --runs $(FUZZ_RUNS) --coverage $(T)

fuzz-quick: ## run all fuzz targets for 60 s together
	@tools/setup.sh --lint
	+@$(FUZZ_MAKE) fuzz-programs
	@tools/fuzz --build '$(BUILD_ROOT)' --seconds 60 $(T)

.PHONY: fuzz-programs
fuzz-programs: $(FUZZ_BIN)

clean: ## remove what was built (not build/venv* and build/cache)
	@if [ -d '$(BUILD_ROOT)' ]; then \
	    find '$(BUILD_ROOT)' -mindepth 1 -maxdepth 1 ! -name 'venv*' ! -name cache -exec rm -rf {} +; fi

distclean: ## remove build/ with everything in it
	@rm -rf '$(BUILD_ROOT)'

# -- flags stamp: other flags rebuild what they change --------------------------------------------------
FLAGS_LINE := $(CC) $(CFLAGS) $(WARNINGS) $(BASE_CFLAGS) $(BASE_CPPFLAGS) $(CPPFLAGS) $(LDFLAGS) \
    $(GPU_CPPFLAGS)
FLAGS_FILE := $(BUILD)/.flags
ifneq ($(filter-out help gpu-flags clean distclean setup format model,$(or $(MAKECMDGOALS),all)),)
ifneq ($(file <$(FLAGS_FILE)),$(FLAGS_LINE))
$(shell mkdir -p '$(BUILD)')
$(file >$(FLAGS_FILE),$(FLAGS_LINE))
endif
endif
$(FLAGS_FILE): ;

# -- compiling ------------------------------------------------------------------------------------------
# What sanitizers add takes the compiler long to optimise, and tests need not be fast.
ifneq ($(SAN),)
ifeq ($(FUZZ),)
$(OBJ)/tests/%.o: CFLAGS += -O0
endif
endif
$(OBJ)/tests/%.o: BASE_CPPFLAGS += $(CUDA_CPPFLAGS) $(if $(CUDA_INCLUDE),-DDLX_TEST_HAS_GPU=1)
COMPILE = $(CC) $(BASE_CPPFLAGS) $(CPPFLAGS) $(PKG_CFLAGS) $(BASE_CFLAGS) $(CFLAGS) -MMD -MP

$(OBJ)/%.o: %.c $(FLAGS_FILE) | $(PROTO_GEN)
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(COMPILE) $(WARNINGS) -c -o $@ $<

$(GPU_OBJ): BASE_CPPFLAGS += $(GPU_WITH)
$(call obj,$(CUDA_SRC)): BASE_CPPFLAGS += $(CUDA_CPPFLAGS)
$(call obj,$(HIP_SRC)): BASE_CPPFLAGS += $(HIP_CPPFLAGS)
$(OBJ)/gpu/gpu.o: | $(if $(CUDA_INCLUDE),,no-cuda) $(if $(HIP_INCLUDE),,no-hip)
.PHONY: no-cuda no-hip
no-cuda:
	@echo 'no cuda.h (tools/setup.sh fetches it): built without support for NVIDIA GPUs'
no-hip:
	@echo 'no hip/hip_runtime_api.h (libamdhip64-dev has it): built without support for AMD GPUs'

# Seeded simulations hook the atomics: they have their own copies of the core.
$(SIM)/%.o: %.c $(FLAGS_FILE) | $(PROTO_GEN)
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(COMPILE) $(WARNINGS) -DDLX_SIM -c -o $@ $<

# Generated code is not held to our warnings.
$(OBJ)/proto/dlx.pb-c.o: $(BUILD)/proto/dlx.pb-c.c $(FLAGS_FILE)
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(COMPILE) -Wall -c -o $@ $<

# A bundle has the generated code, and so has a source distribution of the Python package.
PROTO_MADE := $(wildcard $(if $(BUNDLE),$(BUNDLE)/)proto/dlx.pb-c.[ch])
$(BUILD)/proto/dlx.pb-c.c $(BUILD)/proto/dlx.pb-c.h &: proto/dlx.proto
	@mkdir -p $(BUILD)/proto
	$(call say,GEN)
	$(Q)$(if $(PROTO_MADE),cp $(PROTO_MADE) $(BUILD)/proto/, \
	    $(PROTOC_C) --proto_path=. --c_out=$(BUILD) proto/dlx.proto)

# -- archives -------------------------------------------------------------------------------------------
define archive
$(BUILD)/$(1): $(2)
	@mkdir -p $$(@D)
	@rm -f $$@
	$$(call say,AR)
	$$(Q)$$(AR) rcs $$@ $(2)
endef
$(eval $(call archive,lib/libcommon.a,$(COMMON_OBJ) $(PROTO_OBJ)))
$(eval $(call archive,lib/libdaemon.a,$(DAEMON_OBJ)))
$(eval $(call archive,lib/libkeeper.a,$(KEEPER_OBJ)))
$(eval $(call archive,lib/libclient.a,$(CLIENT_OBJ)))
$(eval $(call archive,lib/libcli.a,$(CLI_OBJ)))
$(eval $(call archive,lib/libharness.a,$(HARNESS_OBJ)))
$(eval $(call archive,lib/libbench.a,$(call obj,$(BENCH_HELP_SRC))))
$(eval $(call archive,lib/libexamples.a,$(call obj,$(EXAMPLE_HELP_SRC))))
$(eval $(call archive,lib/libsim.a,$(call sim,$(COMMON_SRC) $(CLIENT_SRC) $(HARNESS_SRC)) $(GPU_OBJ) $(PROTO_OBJ)))
$(eval $(call archive,libdlx.a,$(COMMON_OBJ) $(CLIENT_OBJ) $(PROTO_OBJ)))

lib = $(BUILD)/lib/lib$(1).a
group = -Wl,--start-group $(1) -Wl,--end-group
LINK = $(CC) $(BASE_CFLAGS) $(CFLAGS) $(BASE_LDFLAGS) $(LDFLAGS)

# -- products -------------------------------------------------------------------------------------------
$(BUILD)/dlpackd: $(OBJ)/daemon/server/main.o $(call lib,daemon) $(call lib,common)
	$(call say,LINK)
	$(Q)$(LINK) -o $@ $(filter %.o,$^) $(call group,$(filter %.a,$^)) $(UV_LIBS) $(PBC_LIBS) $(INI_LIBS)

$(BUILD)/dlpackd-keeper: $(OBJ)/keeper/main.o $(OBJ)/gpu/handle.o $(call lib,keeper) $(call lib,common)
	$(call say,LINK)
	$(Q)$(LINK) -o $@ $(filter %.o,$^) $(call group,$(filter %.a,$^)) $(PBC_LIBS)

# -z defs finds a forgotten library at once; the sanitizers' run-time is left open by clang, so not there.
$(SOREAL): $(COMMON_OBJ) $(CLIENT_OBJ) $(PROTO_OBJ) $(MAP)
	$(call say,LINK)
	$(Q)$(LINK) -shared -Wl,-soname,$(SONAME) $(if $(MAP),-Wl$(,)--version-script=$(MAP)) \
	    $(if $(SAN),,-Wl$(,)-z$(,)defs) -o $@ $(filter %.o,$^) $(PBC_LIBS)

$(BUILD)/$(SONAME): $(SOREAL)
	$(Q)ln -sf $(notdir $<) $@
$(BUILD)/libdlx.so: $(BUILD)/$(SONAME)
	$(Q)ln -sf $(notdir $<) $@

# Programs of the build tree find the library next to them; the installed ones are linked anew.
$(BUILD)/dlxctl: $(OBJ)/cli/main.o $(call lib,cli) $(BUILD)/libdlx.so
	$(call say,LINK)
	$(Q)$(LINK) -Wl,-rpath,'$$ORIGIN' -o $@ $(filter %.o,$^) $(call group,$(filter %.a,$^)) \
	    -L$(BUILD) -ldlx $(JSON_LIBS) $(ZIP_LIBS) -lm

$(EXAMPLE_BIN): $(BUILD)/examples/%: $(OBJ)/examples/%.o $(call lib,examples) $(BUILD)/libdlx.so
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(LINK) -Wl,-rpath,'$$ORIGIN/..' -o $@ $(filter %.o,$^) $(filter %.a,$^) -L$(BUILD) -ldlx $(IMAGE_LIBS)

$(BENCH_BIN): $(BUILD)/bench/%: $(OBJ)/bench/%.o $(call lib,bench) $(call lib,client) $(call lib,common)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(LINK) -o $@ $(filter %.o,$^) $(call group,$(filter %.a,$^)) $(PBC_LIBS) -lm

# Each peer is linked with what it needs: a program of another library does not contain ours.
PEER_LIBS_dlx = $(call group,$(call lib,client) $(call lib,common)) $(PBC_LIBS)
PEER_LIBS_iceoryx := -liceoryx_binding_c
PEER_LIBS_zmq := $(call pkg,--libs,libzmq)
$(OBJ)/bench/peers/peer_iceoryx.o: BASE_CPPFLAGS += -isystem $(patsubst %/iceoryx_binding_c/api.h,%,$(ICEORYX_H))
$(BUILD)/bench/peers/dlx: $(call lib,client) $(call lib,common)
$(PEER_BIN): $(BUILD)/bench/peers/%: $(OBJ)/bench/peers/pattern.o $(OBJ)/bench/peers/peer_%.o $(call lib,bench)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(LINK) -o $@ $(filter %.o,$^) $(call lib,bench) $(PEER_LIBS_$*) -lm

# -- tests ----------------------------------------------------------------------------------------------
TEST_LIBS := $(foreach l,harness cli client daemon keeper common,$(call lib,$(l)))
TEST_LINK_LIBS = $(CHECK_LIBS) $(UV_LIBS) $(PBC_LIBS) $(JSON_LIBS) $(ZIP_LIBS) $(INI_LIBS) -lm

# In tests/fail/*_fails.c each call of these that our code makes can be told to fail.
FAIL_CALLS := $(if $(HARNESS_SRC),$(shell sed -nE 's/^WRAP.[^,]*, (\w+),.*/\1/p; s/^\w+ __wrap_(\w+).*;$$/\1/p' tests/fail/harness_fail.c))
$(BUILD)/tests/%_fails: WRAP = $(FAIL_CALLS:%=-Wl,--wrap=%)
.SECONDEXPANSION:
# The object of the test that is being linked.
of = $(filter %/$(1).o,$(call $(2),$(TEST_SRC) $(SIM_SRC) $(FUZZ_SRC)))
$(call test,$(TEST_SRC)): $(BUILD)/tests/%: $$(call of,$$*,obj) $(TEST_LIBS)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(LINK) $(WRAP) -o $@ $(filter %.o,$^) $(call group,$(filter %.a,$^)) $(TEST_LINK_LIBS)

$(BUILD)/tests/gpu_probe: $(OBJ)/tests/gpu/gpu_probe.o
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(LINK) -o $@ $^ -ldl

$(BUILD)/tests/gpu_bench: $(call obj,$(GPU_BENCH_SRC)) $(TEST_LIBS) $(call lib,bench)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(LINK) -o $@ $(filter %.o,$^) $(call group,$(filter %.a,$^)) $(TEST_LINK_LIBS)

$(BUILD)/tests/keeper_actor: $(OBJ)/tests/gpu/keeper_actor.o $(TEST_LIBS)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(LINK) -o $@ $(filter %.o,$^) $(call group,$(filter %.a,$^)) $(TEST_LINK_LIBS)

$(BUILD)/tests/gpu_facts: $(call obj,$(GPU_FACTS_SRC)) $(TEST_LIBS)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(LINK) -o $@ $(filter %.o,$^) $(call group,$(filter %.a,$^)) $(TEST_LINK_LIBS)

$(call test,$(SIM_SRC)): $(BUILD)/tests/%: $$(call of,$$*,sim) $(call lib,sim)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(LINK) -o $@ $(filter %.o,$^) $(call group,$(filter %.a,$^)) $(TEST_LINK_LIBS)

$(BUILD)/tests/sim_daemon: $(call obj,$(SIM_DAEMON_SRC)) $(call lib,daemon) $(call lib,common)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(LINK) $(patsubst %,-Wl$(,)--wrap=%,$(SIM_DAEMON_WRAPS)) -o $@ $(filter %.o,$^) $(call group,$(filter %.a,$^)) \
	    $(TEST_LINK_LIBS)

# The processes of tests/fail/faults use the library as users do, and an allocator that can be told to fail.
fault_obj = $(patsubst %,$(OBJ)/tests/fail/faults/%.o,$(1))
$(BUILD)/tests/faults/actor: $(call fault_obj,actor publisher subscriber) $(BUILD)/libdlx.so
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(LINK) -Wl,-rpath,'$$ORIGIN/../..' -o $@ $(filter %.o,$^) -L$(BUILD) -ldlx
$(BUILD)/tests/faults/steps: $(call fault_obj,steps) $(call lib,client) $(call lib,common)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(LINK) -o $@ $(filter %.o,$^) $(call group,$(filter %.a,$^)) $(PBC_LIBS)
$(BUILD)/tests/faults/words: $(SIM)/tests/fail/faults/steps.o $(call lib,sim)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(LINK) -o $@ $(filter %.o,$^) $(call group,$(filter %.a,$^)) $(PBC_LIBS)
$(BUILD)/tests/faults/old_kernel: $(call fault_obj,old_kernel)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(LINK) -o $@ $^
$(BUILD)/tests/faults/libfaultalloc.so: $(call fault_obj,alloc)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(LINK) -shared -o $@ $^

$(BUILD)/tests/standin/libcuda.so.1: $(call obj,$(STANDIN_SRC))
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(LINK) -shared -Wl,-soname,$(@F) -o $@ $^

$(HONEST_BIN): $(call obj,tests/hostile/honest.c)
$(SOAK_BIN): $(call obj,$(SOAK_SRC))
$(HONEST_BIN) $(SOAK_BIN): $(BUILD)/libdlx.so
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(LINK) -Wl,-rpath,'$$ORIGIN/../..' -o $@ $(filter %.o,$^) -L$(BUILD) -ldlx

$(FUZZ_BIN): $(BUILD)/tests/%: $$(call of,$$*,obj) $(if $(FUZZ),,$(OBJ)/tests/fuzz/replay.o) \
    $(TEST_LIBS)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(LINK) $(if $(FUZZ),-fsanitize=fuzzer) -Wl,--wrap=mmap,--wrap=munmap,--wrap=mremap -o $@ $(filter %.o,$^) \
	    $(call group,$(filter %.a,$^)) $(TEST_LINK_LIBS)

# -- Python -----------------------------------------------------------------------------------------------
# The package dlx as it is imported, with the programs: setup.py puts the same files into a wheel.
PY_DIR := $(BUILD)/python/dlx
PY_SRC := $(wildcard python/src/*.c)
PY_FILES := $(patsubst python/dlx/%,$(PY_DIR)/%,$(wildcard python/dlx/*.py python/dlx/*.pyi python/dlx/py.typed))
PY_CFLAGS = -isystem '$(shell $(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')'

.PHONY: python check-python check-interop bench-python wheel wheel-check
check-python: ## the tests of the Python package alone
	+@$(SUBMAKE) check T=check_python

INTEROP = $(or $(INTEROP_PYTHON),$(BUILD_ROOT)/venv/bin/python)
# With every framework that can be installed (gigabytes, into build/venv), or those of INTEROP_PYTHON.
check-interop: ## pass tensors between all frameworks that can be installed (large), what they refuse, the suites of NumPy and tvm-ffi, and the examples; the tables are in build/INTEROP.md
	@[ -n '$(INTEROP_PYTHON)' ] || tools/setup.sh --interop
	+@$(SUBMAKE) python
	@CXX='$(CXX_FOR_HEADERS)' tools/nanobind-probe '$(INTEROP)' '$(BUILD_ABS)/nanobind'
	@mxnet=$(BUILD_ROOT)/venv-mxnet/bin/python; \
	PYTHONPATH='$(BUILD_ABS)/python:$(BUILD_ABS)/nanobind' $(INTEROP) -m dlx.selftest \
	    $$([ ! -x "$$mxnet" ] || echo --python "MXNet=$$mxnet") \
	    --json $(BUILD)/interop.json --markdown $(BUILD)/INTEROP.md
	@PYTHONPATH='$(BUILD_ABS)/python' PYTHONDONTWRITEBYTECODE=1 $(INTEROP) -m pytest -q -rs -p no:cacheprovider \
	    python/tests/test_examples.py python/tests/test_loss.py python/tests/test_suites.py

bench-python: ## dlx beside torch.multiprocessing, shared_memory, pyzmq, Ray, zenoh, iceoryx2 (QUICK=1: under 60 s); build/bench-python.json
	@[ -n '$(INTEROP_PYTHON)' ] || tools/setup.sh --interop
	+@$(SUBMAKE) python
	@PYTHONPATH='$(BUILD_ABS)/python' $(INTEROP) python/bench/bench_python.py \
	    $(if $(QUICK),--quick) --json $(BUILD)/bench-python.json

wheel: ## build the source distribution of the Python package, and from that the wheel, in build/wheel
	@tools/setup.sh --wheel
	@rm -rf '$(BUILD_ROOT)/wheel' && mkdir -p '$(BUILD_ROOT)/wheel'
	$(Q)env -u PYTHONDONTWRITEBYTECODE $(BUILD_ROOT)/venv/bin/python -m build --no-isolation --outdir '$(BUILD_ROOT)/wheel' . \
	    >'$(BUILD_ROOT)/wheel/build.log' 2>&1 || { tail -n 40 '$(BUILD_ROOT)/wheel/build.log'; exit 1; }
	@ls $(BUILD_ROOT)/wheel/*.tar.gz $(BUILD_ROOT)/wheel/*.whl

wheel-check: wheel ## install the wheel somewhere, use it from there, and ask auditwheel and abi3audit about it
	@tools/wheel-check '$(BUILD_ROOT)/wheel'

python: $(PY_DIR)/_dlx.abi3.so $(if $(PY_SHARED),,$(PY_DIR)/dlxctl) $(PY_DIR)/dlpackd $(PY_DIR)/dlpackd-keeper $(PY_FILES) ## build the Python package in build/python

$(call obj,$(PY_SRC)): BASE_CPPFLAGS += $(PY_CFLAGS)
# The extension contains libdlx, so that another copy on the system never takes its place. A
# distribution, which has one copy, says PY_SHARED=1.
PY_LIBDLX := $(if $(PY_SHARED),$(BUILD)/libdlx.so,$(COMMON_OBJ) $(CLIENT_OBJ) $(PROTO_OBJ))
$(PY_DIR)/_dlx.abi3.so: $(call obj,$(PY_SRC)) $(PY_LIBDLX) python/src/_dlx.map
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(LINK) -shared -Wl,-Bsymbolic-functions,--version-script=python/src/_dlx.map -o $@ $(filter %.o,$^) \
	    $(if $(PY_SHARED),-L$(BUILD) -ldlx,$(PBC_LIBS))
# dlxctl finds no libdlx.so beside the package: it contains the library, too.
$(PY_DIR)/dlxctl: $(OBJ)/cli/main.o $(call lib,cli) $(call lib,client) $(call lib,common)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(LINK) -o $@ $(filter %.o,$^) $(call group,$(filter %.a,$^)) $(PBC_LIBS) $(JSON_LIBS) $(ZIP_LIBS) -lm
$(PY_DIR)/dlpackd: $(BUILD)/dlpackd
$(PY_DIR)/dlpackd-keeper: $(BUILD)/dlpackd-keeper
$(PY_DIR)/dlpackd $(PY_DIR)/dlpackd-keeper:
	@mkdir -p $(@D)
	$(Q)$(INSTALL) $< $@
$(PY_FILES): $(PY_DIR)/%: python/dlx/%
	@mkdir -p $(@D)
	$(Q)$(INSTALL) -m 644 $< $@

# -- the HTML site ----------------------------------------------------------------------------------------
.PHONY: docs
docs: ## make the HTML site in build/docs/html; warnings and broken links are errors
	@tools/setup.sh --docs
	+@$(SUBMAKE) python
	@$(BUILD_ROOT)/venv/bin/python tools/docs '$(BUILD_ABS)'

# -- Debian packages -----------------------------------------------------------------------------------
.PHONY: deb deb-check
deb: ## build the Debian packages in build/deb, without GPUs unless CUDA_INCLUDE or HIP_INCLUDE is given
	@tools/setup.sh --deb
	@tools/deb $(BUILD_ROOT)/deb

deb-check: ## build them, and install, use, upgrade and purge them in a clean system (minutes; as root)
	@tools/setup.sh --deb
	@tools/deb-check $(BUILD_ROOT)/deb-check

.PHONY: skew-check
skew-check: all ## exchange tensors between builds of this, the former and the next version of the protocol
	@tools/skew-check $(BUILD_ROOT)/skew $(BUILD)

.PHONY: containers-check
containers-check: all ## exchange tensors between containers of Podman, and print who was refused (as root)
	@tools/setup.sh --containers
	@tools/containers-check $(BUILD)

# -- install --------------------------------------------------------------------------------------------
# A run path is written only where the loader would not look by itself.
STD_LIBDIRS := /lib /lib64 /usr/lib /usr/lib64 /usr/local/lib /usr/local/lib64 /usr/lib/% /lib/%
INSTALL_RPATH := $(if $(filter $(STD_LIBDIRS),$(LIBDIR)),,-Wl$(,)-rpath$(,)$(LIBDIR))
D := $(DESTDIR)
UNITS := dlpackd.socket dlpackd@.socket dlpackd.service dlpackd-keeper.socket dlpackd-keeper.service
CONFIG := $(SYSCONFDIR)/dlpackd/dlpackd.conf
fill_in = sed -e 's|@bindir@|$(BINDIR)|g' -e 's|@sysconfdir@|$(SYSCONFDIR)|g'
CMAKE_FILES := dlxConfig.cmake dlxConfigVersion.cmake
from_cmakedir = $(shell realpath -ms --relative-to='$(CMAKEDIR)' '$(1)')
PUBLIC_HEADERS := $(wildcard include/dlx/*.h include/dlx/*.hpp)
# Not in INCLUDEDIR itself, where DLPack's own copy may be, of another version.
DLPACKDIR = $(INCLUDEDIR)/dlx/abi

install: all man $(COMPLETION)/.made ## install under PREFIX (default /usr/local), below DESTDIR when given
	$(INSTALL) -d '$(D)$(BINDIR)' '$(D)$(LIBDIR)' '$(D)$(PKGCONFIGDIR)' \
	    '$(D)$(DLPACKDIR)/dlpack'
	$(if $(DAEMON_BIN),$(INSTALL) -m 755 $(DAEMON_BIN) '$(D)$(BINDIR)/')
	$(if $(CLI_BIN),$(LINK) $(INSTALL_RPATH) -o '$(D)$(BINDIR)/dlxctl' $(OBJ)/cli/main.o \
	    $(call group,$(call lib,cli)) -L$(BUILD) -ldlx $(JSON_LIBS) $(ZIP_LIBS) -lm)
	$(INSTALL) -m 755 $(SOREAL) '$(D)$(LIBDIR)/libdlx.so.$(VERSION)'
	ln -sf libdlx.so.$(VERSION) '$(D)$(LIBDIR)/$(SONAME)'
	ln -sf $(SONAME) '$(D)$(LIBDIR)/libdlx.so'
	$(INSTALL) -m 644 $(BUILD)/libdlx.a '$(D)$(LIBDIR)/libdlx.a'
	$(INSTALL) -m 644 $(PUBLIC_HEADERS) '$(D)$(INCLUDEDIR)/dlx/'
	$(INSTALL) -m 644 include/dlpack/dlpack.h '$(D)$(DLPACKDIR)/dlpack/dlpack.h'
	printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$(LIBDIR)' 'includedir=$(INCLUDEDIR)' '' 'Name: libdlx' \
	    'Description: exchange DLPack tensors between processes without copying' 'Version: $(VERSION)' \
	    'Requires.private: libprotobuf-c' 'Libs: -L$${libdir} -ldlx' 'Libs.private: -pthread' \
	    'Cflags: -I$${includedir}/dlx/abi -I$${includedir}' >'$(D)$(PKGCONFIGDIR)/libdlx.pc'
	$(INSTALL) -d '$(D)$(CMAKEDIR)'
	set -e; for f in $(CMAKE_FILES); do sed -e 's|@VERSION@|$(VERSION)|g' -e 's|@SOVERSION@|$(SOVERSION)|g' \
	    -e 's|@LIBDIR@|$(call from_cmakedir,$(LIBDIR))|g' -e 's|@INCLUDEDIR@|$(call from_cmakedir,$(INCLUDEDIR))|g' \
	    packaging/$$f.in >'$(D)$(CMAKEDIR)'/$$f; chmod 644 '$(D)$(CMAKEDIR)'/$$f; done
	cd $(BUILD)/man && for f in man*/*; do $(INSTALL) -D -m 644 "$$f" '$(D)$(MANDIR)'"/$$f"; done
	$(INSTALL) -d '$(D)$(BASHDIR)' '$(D)$(ZSHDIR)' '$(D)$(FISHDIR)'
	$(INSTALL) -m 644 $(COMPLETED:%=$(COMPLETION)/bash/%) '$(D)$(BASHDIR)/'
	$(INSTALL) -m 644 $(COMPLETED:%=$(COMPLETION)/zsh/_%) '$(D)$(ZSHDIR)/'
	$(INSTALL) -m 644 $(COMPLETED:%=$(COMPLETION)/fish/%.fish) '$(D)$(FISHDIR)/'
	$(INSTALL) -d '$(D)$(UNITDIR)' '$(D)$(SYSTEMUNITDIR)' '$(D)$(SYSUSERSDIR)' '$(D)$(TMPFILESDIR)' \
	    '$(D)$(dir $(CONFIG))conf.d'
	set -e; for u in $(UNITS); do \
	    $(fill_in) systemd/user/$$u >'$(D)$(UNITDIR)'/$$u; chmod 644 '$(D)$(UNITDIR)'/$$u; \
	    $(fill_in) systemd/system/$$u >'$(D)$(SYSTEMUNITDIR)'/$$u; chmod 644 '$(D)$(SYSTEMUNITDIR)'/$$u; done
	$(INSTALL) -m 644 systemd/sysusers.d/dlpackd.conf '$(D)$(SYSUSERSDIR)/'
	$(INSTALL) -m 644 systemd/tmpfiles.d/dlpackd.conf '$(D)$(TMPFILESDIR)/'
	if [ -e '$(D)$(CONFIG)' ]; then echo '$(CONFIG) is there: it stays as it is'; \
	    else $(fill_in) systemd/dlpackd.conf >'$(D)$(CONFIG)'; chmod 644 '$(D)$(CONFIG)'; fi
	$(if $(DESTDIR),,@tools/install-hints '$(BINDIR)' '$(LIBDIR)' '$(PKGCONFIGDIR)')

install-check: all ## install somewhere, use it from there with pkg-config and CMake, uninstall
	+@tools/install-check

uninstall: ## remove what `make install` put there; a configuration that was changed stays
	rm -f '$(D)$(BINDIR)/dlpackd' '$(D)$(BINDIR)/dlpackd-keeper' '$(D)$(BINDIR)/dlxctl' '$(D)$(LIBDIR)/libdlx.so.$(VERSION)' \
	    '$(D)$(LIBDIR)/$(SONAME)' '$(D)$(LIBDIR)/libdlx.so' '$(D)$(LIBDIR)/libdlx.a' \
	    '$(D)$(PKGCONFIGDIR)/libdlx.pc' '$(D)$(DLPACKDIR)/dlpack/dlpack.h' \
	    $(UNITS:%='$(D)$(UNITDIR)/%') $(UNITS:%='$(D)$(SYSTEMUNITDIR)/%') \
	    '$(D)$(SYSUSERSDIR)/dlpackd.conf' '$(D)$(TMPFILESDIR)/dlpackd.conf' $(CMAKE_FILES:%='$(D)$(CMAKEDIR)/%') $(patsubst include/%,'$(D)$(INCLUDEDIR)/%',$(PUBLIC_HEADERS))
	rm -f $(COMPLETED:%='$(D)$(BASHDIR)/%') $(COMPLETED:%='$(D)$(ZSHDIR)/_%') $(COMPLETED:%='$(D)$(FISHDIR)/%.fish')
	for f in $$($(PYTHON) tools/man --list); do rm -f '$(D)$(MANDIR)'"/$$f"; done
	if $(fill_in) systemd/dlpackd.conf | cmp -s - '$(D)$(CONFIG)'; then rm '$(D)$(CONFIG)'; fi
	-rmdir --ignore-fail-on-non-empty '$(D)$(DLPACKDIR)/dlpack' '$(D)$(DLPACKDIR)' '$(D)$(INCLUDEDIR)/dlx' \
	    '$(D)$(CMAKEDIR)' "$$(dirname '$(D)$(CMAKEDIR)')" '$(D)$(dir $(CONFIG))conf.d' '$(D)$(dir $(CONFIG))' 2>/dev/null

# -- dependencies found by the compiler -------------------------------------------------------------------
DEPS := $(shell [ -d '$(OBJ)' ] && find '$(OBJ)' '$(SIM)' -name '*.d' 2>/dev/null)
ifneq ($(filter-out help gpu-flags clean distclean setup,$(or $(MAKECMDGOALS),all)),)
-include $(DEPS)
endif
