# SPDX-License-Identifier: Apache-2.0
#
# What looks at the code besides `make check`: linters, models, fuzzing, faults, soak, coverage.

.PHONY: lint lint-analyzer format abi model fuzz fuzz-quick fuzz-build faults soak scale hostile \
    hostile-cost hostile-turns coverage mutants skew-check containers-check
lint: ## check the tree's rules, formatting and static analysers
	@tools/setup.sh --lint
	+@$(SUBMAKE) all python
	@$(RUN_ENV) tools/lint/run

lint-analyzer: $(MADE_HEADERS) ## gcc -fanalyzer, which lint leaves out
	@CC='$(CC)' GPU_CPPFLAGS='$(GPU_CPPFLAGS)' $(PYTHON) tools/lint/analyzer '$(BUILD)'

format: ## format all C, C++ and Python files
	@tools/lint/format --fix
	@tools/lint/run format_python

abi: $(BUILD)/libdlx.so ## write what programs are compiled against to client/libdlx.abi
	@tools/setup.sh --lint
	@tools/lint/abi --write $< client/libdlx.abi

model: ## verify models of the protocol, and that broken ones fail (QUICK=1: 4 minutes)
	@tools/setup.sh --model
	@QUICK='$(QUICK)' tests/model/run.sh

FUZZ_RUNS ?= 100000000
FUZZ_MAKE = $(SUBMAKE) CC=clang SAN=address,undefined FUZZ=1 fuzz-programs
fuzz: ## run the fuzz targets, FUZZ_RUNS executions each, and report what they cover
	@tools/setup.sh --lint
	+@$(FUZZ_MAKE)
	+@$(COV_MAKE) fuzz-programs
	@tools/fuzz --build '$(BUILD_ROOT)' --runs $(FUZZ_RUNS) --coverage $(T)

fuzz-build:
	@tools/setup.sh --lint
	+@$(FUZZ_MAKE)

fuzz-quick: fuzz-build ## run all fuzz targets for 60 s together
	@tools/fuzz --build '$(BUILD_ROOT)' --seconds 60 $(T)

faults: ## kill, stop and starve processes at each step (QUICK=1: under 90 s)
	@tools/setup.sh --faults
	+@$(SUBMAKE) all fault-programs
	@$(RUN_ENV) tests/fail/faults/run

MINUTES ?= 1
SEED ?=
soak: ## kill and restart many programs for MINUTES=1; SEED=n; build/soak
	@tools/setup.sh
	+@$(SUBMAKE) all soak-programs
	@$(RUN_ENV) tests/soak/run --minutes '$(MINUTES)' $(if $(SEED),--seed '$(SEED)')

CALLERS ?= 10000
scale: ## 1,000 workers, and CALLERS=10000 of a service or as many as a limit allows
	@tools/setup.sh
	+@$(SUBMAKE) $(BUILD)/dlpackd $(BUILD)/tests/e2e_scale
	@DLX_SCALE='$(CALLERS)' $(RUN_ENV) $(BUILD)/tests/e2e_scale

HOSTILE_TESTS := $(basename $(notdir $(wildcard tests/hostile/e2e_*.c)))
hostile: ## programs that lie, under sanitizers; then hostile-cost and hostile-turns
	+@$(SUBMAKE) check SAN=address,undefined T='$(HOSTILE_TESTS)'
	+@$(SUBMAKE) hostile-cost
	+@$(SUBMAKE) hostile-turns

hostile-cost: ## two greedy users beside honest ones (QUICK=1; HOSTILE_ARGS)
	+@$(SUBMAKE) all hostile-programs
	@$(RUN_ENV) tests/hostile/run $(HOSTILE_ARGS)

hostile-turns: ## the longest turn that each kind of request can cause (QUICK=1; TURNS_ARGS)
	+@$(SUBMAKE) all
	@$(RUN_ENV) tests/hostile/turns.py $(TURNS_ARGS)

COV_MAKE = $(SUBMAKE) CC=clang COV=1
coverage: ## which branches the tests take, by file (T); build/clang-cov/coverage
	@tools/setup.sh --lint --faults
	@rm -rf '$(BUILD_ROOT)/clang-cov/profile'
	+@$(COV_MAKE) check
	$(if $(T),,+@$(COV_MAKE) faults QUICK=1)
	@tools/coverage '$(BUILD_ROOT)/clang-cov'

# Those of tests/mutants/$(SET), or N of universalmutator in FILES, else in the files changed SINCE.
SET ?= set
SINCE ?= HEAD~1
mutants: ## which mistakes the tests catch: a SET, or N=20 (SEED, FILES, SINCE); build/mutants
	@tools/setup.sh $(if $(N),--mutants)
	@tools/mutants $(if $(N),--sample '$(N)' --seed '$(or $(SEED),1)' --since '$(SINCE)' \
	    --bar 80 $(FILES),--set 'tests/mutants/$(SET)')

skew-check: all ## exchange tensors with the former and the next version of the protocol
	@tools/skew-check $(BUILD_ROOT)/skew $(BUILD)

containers-check: all ## exchange tensors between containers of Podman (as root)
	@tools/setup.sh --containers
	@tools/containers-check $(BUILD)
