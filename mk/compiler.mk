# SPDX-License-Identifier: Apache-2.0
#
# The compiler, its flags, and the build folder of each variant. One's own flags go into CFLAGS,
# CPPFLAGS and LDFLAGS; the others are what the code needs.

ifeq ($(origin CC),default)
CC := gcc
endif
ifeq ($(origin AR),default)
AR := ar
endif
CXX_FOR_HEADERS ?= g++
PROTOC_C ?= protoc-c
PYTHON ?= python3
INSTALL ?= install
SAN ?=
FUZZ ?=
COV ?=
WERROR ?=
T ?=
VALGRIND ?=
QUICK ?=

# V=1 prints the commands; otherwise a word and the file, and with -s nothing.
V ?=
Q := $(if $(V),,@)
silent = $(findstring s,$(filter-out --%,$(firstword -$(MAKEFLAGS))))
say = $(if $(V)$(silent),,@printf '  %-5s %s\n' $(1) $@)

, := ,
empty :=
space := $(empty) $(empty)

# -- where things are built -----------------------------------------------------------------------
VARIANT := $(subst $(space),-,$(strip $(filter-out cc gcc,$(notdir $(firstword $(CC)))) \
    $(if $(SAN),san-$(SAN)) $(if $(FUZZ),fuzz) $(if $(COV),cov)))
BUILD_ROOT ?= build
BUILD := $(BUILD_ROOT)$(if $(VARIANT),/$(VARIANT))
BUILD_ABS := $(abspath $(BUILD))
OBJ := $(BUILD)/obj
SIM := $(BUILD)/sim
FLAGS_FILE := $(BUILD)/.flags

# For targets that build first and then run something: each program's output in one piece, and all
# processors unless the caller has said -j, which only recipes can see.
SUBMAKE = $(MAKE) $(if $(filter -j%,$(MAKEFLAGS)),,-j$(shell nproc)) --no-print-directory \
    --output-sync=target
# What programs and scripts know of the build.
RUN_ENV = BUILD='$(BUILD_ABS)' SRCDIR='$(CURDIR)' SAN='$(SAN)' VALGRIND='$(VALGRIND)' \
    QUICK='$(QUICK)' CC='$(CC)' PYTHON='$(PYTHON)' GPU_CPPFLAGS='$(GPU_CPPFLAGS)'

# -- flags ----------------------------------------------------------------------------------------
# Reports of sanitizers name lines, which -g1 has, and no variables.
CFLAGS ?= $(if $(SAN),$(if $(FUZZ),-O2,-O1) -g1,-O2 -g)
WARNINGS := -Wall -Wextra -Wshadow -Wconversion -Wsign-conversion -Wmissing-prototypes -Wvla \
    $(if $(WERROR),-Werror)
BASE_CFLAGS := -std=c11 -fPIC -fvisibility=hidden -pthread
BASE_CPPFLAGS := -D_GNU_SOURCE -DDLX_VERSION_STRING='"$(VERSION)"' -Iinclude -I. -I$(BUILD)
BASE_LDFLAGS := -pthread -Wl,--as-needed -Wl,-z,relro,-z,now
ifneq ($(SAN),)
BASE_CFLAGS += -fsanitize=$(SAN) -fno-omit-frame-pointer
BASE_LDFLAGS += -fsanitize=$(SAN)
BASE_CPPFLAGS += -DDLX_SANITIZE=1
# gcc warns at each fence that ThreadSanitizer does not model it: worth reading, not worth failing.
BASE_CFLAGS += $(if $(findstring thread,$(SAN)),$(if $(findstring clang,$(CC)),,-Wno-error=tsan))
endif
ifneq ($(FUZZ),)
BASE_CFLAGS += -fsanitize=fuzzer-no-link
endif
ifneq ($(COV),)
# Counts live in a shared map of a file, one for each program: those of processes that fork, are
# killed or crash are not lost.
BASE_CFLAGS += -fprofile-instr-generate=$(BUILD_ABS)/profile/%m%c.profraw -fcoverage-mapping \
    -fprofile-update=atomic
BASE_CPPFLAGS += -mllvm -runtime-counter-relocation -DDLX_COVERAGE=1
endif
COMPILE = $(CC) $(BASE_CPPFLAGS) $(CPPFLAGS) $(PKG_CFLAGS) $(BASE_CFLAGS) $(CFLAGS) -MMD -MP
