# SPDX-License-Identifier: Apache-2.0
#
# The programs of tests/ (tests/README.md) and `make check`. A program is build/tests/NAME,
# whichever folder its source is in.

TEST_SRC := $(wildcard tests/*/test_*.c tests/*/e2e_*.c)
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)
SIM_SRC := $(wildcard tests/ring/sim_*.c)
TEST_SCRIPTS := $(wildcard tests/*/check_*.sh)
test = $(patsubst %.c,$(BUILD)/tests/%,$(notdir $(1)))
# A fuzz target without libFuzzer is a test of what is in its corpus.
FUZZ_BIN := $(call test,$(FUZZ_SRC))
TEST_BIN := $(call test,$(TEST_SRC) $(SIM_SRC)) $(BUILD)/tests/sim_daemon $(FUZZ_BIN) \
    $(BUILD)/tests/gpu_facts
# The stand-in for NVIDIA's driver; without cuda.h its tests say SKIP.
STANDIN_LIB := $(if $(CUDA_INCLUDE),$(BUILD)/tests/standin/libcuda.so.1)
# One for AMD's HIP runtime on top of it, where both have their headers.
HIP_STANDIN := $(if $(HIP_INCLUDE),$(STANDIN_LIB:%libcuda.so.1=%libamdhip64.so.7))
GPU_BIN := $(addprefix $(BUILD)/tests/,gpu_facts gpu_bench gpu_probe keeper_actor)
FAULT_BIN := $(addprefix $(BUILD)/tests/faults/,steps words old_kernel libfaultalloc.so)
ACTOR_BIN := $(BUILD)/tests/actor/actor
CONFORMANCE_BIN := $(addprefix $(BUILD)/tests/conformance/,driver c)
CONFORMANCE_CPP := $(BUILD)/tests/conformance/cpp

# Stories are told on POSIX shared memory, too, but those that choose the memory themselves, and
# those to which it makes no difference. e2e_memory chooses itself; e2e_debug finds maps by the
# names that memfds have; e2e_hostile_uid and e2e_hostile_memory try what seals forbid. dlxctl has
# no memory of its own; of those about GPUs, e2e_gpu and e2e_gpu_words share memory with the CPU; of
# those about calls that fail, e2e_fails and e2e_restart_fails make memory.
POSIX_TESTS := e2e_gpu e2e_gpu_words e2e_fails e2e_restart_fails $(filter-out e2e_memory e2e_debug \
    e2e_hostile_uid e2e_hostile_memory, $(basename $(notdir $(wildcard \
    $(patsubst %,tests/%/e2e_*.c,client connect daemon hostile restart service)))))

# Stories about GPUs that are told of HIP's backend, too: of all programs that call a backend but
# test_standin*, which are about the stand-in.
HIP_TESTS := $(if $(HIP_STANDIN),e2e_gpu e2e_gpu_alloc e2e_gpu_containers e2e_gpu_contexts \
    e2e_gpu_deaths e2e_gpu_gates e2e_gpu_host e2e_gpu_imports e2e_gpu_keep e2e_gpu_keep_users \
    e2e_gpu_library e2e_gpu_order e2e_gpu_peers e2e_gpu_pin e2e_gpu_range e2e_gpu_refusals \
    e2e_gpu_release e2e_gpu_retain e2e_gpu_stage e2e_gpu_stream test_gpu_memory test_gpu_share \
    test_keeper)

.PHONY: check golden check-build check-programs standin check-gpu check-gpu-programs \
    check-gpu-archive fault-programs soak-programs hostile-programs fuzz-programs \
    conformance conformance-programs
# With T only the programs that it names are built; a script may need anything.
CHECKED = $(if $(T),$(filter $(addprefix %/,$(T)),$(TEST_BIN)) $(STANDIN_LIB) $(HIP_STANDIN), \
    check-programs)
check: ## set up if needed, build, and run every test
	@tools/setup.sh
	+@$(SUBMAKE) check-build
	@$(RUN_ENV) tools/run-tests $(if $(T),--only '$(T)') --posix '$(POSIX_TESTS)' \
	    --hip '$(HIP_TESTS)' \
	    $(TEST_BIN) $(TEST_SCRIPTS)

golden: ## write what dlxctl prints now into tests/cli/sessions and tests/data/cli
	+@DLX_GOLDEN=write $(SUBMAKE) check T='check_sessions e2e_cli_look' || true
	@git status --short tests/cli/sessions tests/data/cli

check-build: all $(if $(filter check_%,$(T)),check-programs python python-shared, \
    $(CHECKED) $(if $(T),,python python-shared))
check-programs: $(TEST_BIN) $(STANDIN_LIB) $(HIP_STANDIN) $(GPU_BIN) conformance-programs
standin: $(STANDIN_LIB) $(HIP_STANDIN)
fault-programs: $(FAULT_BIN) $(ACTOR_BIN)
soak-programs: $(ACTOR_BIN)
hostile-programs: $(ACTOR_BIN)
fuzz-programs: $(FUZZ_BIN)
conformance-programs: $(CONFORMANCE_BIN) $(CONFORMANCE_CPP)

conformance: ## the conformance suite with each language that is built (T=case: one)
	+@$(SUBMAKE) all conformance-programs python
	@$(RUN_ENV) tests/conformance/run $(if $(T),--only '$(T)')

# Nothing is installed or fetched for it: a machine with a GPU may have no network. The questions
# come first.
CHECK_GPU_PROGRAMS := gpu_facts test_gpu_memory test_gpu_share e2e_gpu e2e_gpu_alloc e2e_gpu_order \
    e2e_gpu_retain e2e_gpu_stage e2e_gpu_host e2e_gpu_containers e2e_gpu_release e2e_gpu_stream \
    e2e_gpu_gates e2e_gpu_deaths e2e_gpu_pin e2e_gpu_contexts e2e_gpu_refusals e2e_gpu_range \
    e2e_gpu_keep e2e_gpu_words
check-gpu: ## tests on the GPU of this machine; without one it says so
	+@$(RUN_ENV) CHECK_GPU_DRIVER='$(CHECK_GPU_DRIVER)' \
	    MAKE_PROGRAMS='$(SUBMAKE) -s check-gpu-programs' MAKE_PYTHON='$(SUBMAKE) -s python' \
	    tools/check-gpu $(CHECK_GPU_PROGRAMS)

check-gpu-programs: $(DAEMON_BIN) $(BUILD)/dlxctl $(BUILD)/$(GPU_SONAME) \
    $(CHECK_GPU_PROGRAMS:%=$(BUILD)/tests/%)

check-gpu-archive: $(BUILD)/proto/dlx.pb-c.c ## pack what check-gpu needs, without a network
	@tools/check-gpu-archive '$(BUILD_ABS)' '$(CUDA_INCLUDE)'

# -- compiling ------------------------------------------------------------------------------------
# What sanitizers add takes the compiler long to optimise, and tests need not be fast.
$(OBJ)/tests/%.o: CFLAGS += $(if $(SAN),$(if $(FUZZ),,-O0))
$(OBJ)/tests/%.o: BASE_CPPFLAGS += $(CUDA_CPPFLAGS) $(if $(CUDA_INCLUDE),-DDLX_TEST_HAS_GPU=1)

# Seeded simulations hook the atomics: they have their own copies of the core.
sim = $(patsubst $(OBJ)/%,$(SIM)/%,$(1))
$(SIM)/%.o: %.c $(FLAGS_FILE) | $(MADE_HEADERS) needed-packages
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(COMPILE) $(WARNINGS) -DDLX_SIM -c -o $@ $<

$(call lib,harness): $(call obj,$(wildcard tests/harness/*.c tests/*/harness_*.c))
$(call lib,sim): $(call sim,$(COMMON_OBJ) $(CLIENT_OBJ) \
    $(call obj,tests/harness/run.c tests/ring/harness_sim.c)) $(PROTO_OBJ)

# -- programs: what each is made of ---------------------------------------------------------------
TEST_LIBS := $(foreach l,harness cli client gpu daemon keeper common,$(call lib,$(l))) $(LINKED_GPU)
$(foreach t,$(TEST_SRC) $(FUZZ_SRC),$(eval $(call test,$(t)): $(call obj,$(t)) $(TEST_LIBS)))
$(foreach t,$(SIM_SRC),$(eval $(call test,$(t)): $(call sim,$(call obj,$(t))) $(call lib,sim)))
$(FUZZ_BIN): $(if $(FUZZ),,$(OBJ)/tests/fuzz/replay.o)

parts = $(call obj,$(wildcard $(1:%=tests/%/*.c)))
# Questions register themselves, in the order of their files: what may upset the device comes last.
FACTS := memory capture lifetimes order legacy facts main
$(BUILD)/tests/gpu_facts: $(FACTS:%=$(OBJ)/tests/gpu/facts/%.o) $(TEST_LIBS)
$(BUILD)/tests/gpu_bench: $(call parts,gpu/bench) $(TEST_LIBS) $(call lib,bench)
$(BUILD)/tests/gpu_probe: $(OBJ)/tests/gpu/gpu_probe.o
$(BUILD)/tests/keeper_actor: $(OBJ)/tests/gpu/keeper_actor.o $(TEST_LIBS)
$(BUILD)/tests/standin/libcuda.so.1: $(call parts,gpu/standin)
$(call parts,gpu/standin_hip): BASE_CPPFLAGS += $(HIP_CPPFLAGS)
$(BUILD)/tests/standin/libamdhip64.so.7: $(call parts,gpu/standin_hip) | $(STANDIN_LIB)
# It loads libdlx.so and what that finds.
OTHER_BUILD := $(BUILD)/tests/other_build/$(GPU_SONAME)
$(OTHER_BUILD): $(OBJ)/tests/gpu/other_build.o
$(BUILD)/tests/e2e_gpu_library: | $(OTHER_BUILD) $(LIBDLX) $(BUILD)/$(GPU_SONAME)
$(BUILD)/tests/sim_daemon: $(OBJ)/tests/daemon/sim_daemon.o $(call parts,daemon/sim_daemon) \
    $(OBJ)/tests/harness/run.o $(call lib,daemon) $(call lib,common)

# The processes of tests/soak, tests/hostile and tests/fail/faults use the library as users do; the
# last ones also an allocator that can fail.
$(ACTOR_BIN): $(call parts,actor) $(LIBDLX)
$(BUILD)/tests/conformance/driver: $(OBJ)/tests/conformance/driver.o
$(BUILD)/tests/conformance/c: $(OBJ)/tests/conformance/adapter.o $(LIBDLX)
$(CONFORMANCE_CPP): tests/conformance/adapter.cpp $(wildcard include/dlx/*) | $(LIBDLX)
	@mkdir -p $(@D)
	$(call say,CXX)
	$(Q)$(if $(findstring clang,$(CC)),$(subst clang,clang++,$(CC)),$(CXX_FOR_HEADERS)) \
	    -std=c++17 -g -O1 -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow \
	    $(if $(WERROR),-Werror) -Iinclude -pthread $(if $(SAN),-fsanitize=$(SAN)) -o $@ $< \
	    $(RPATH) -L$(BUILD) -ldlx
faults = $(1:%=$(OBJ)/tests/fail/faults/%.o)
$(BUILD)/tests/faults/steps: $(call faults,steps) $(call lib,client) $(call lib,common)
$(BUILD)/tests/faults/words: $(call sim,$(call faults,steps)) $(call lib,sim)
$(BUILD)/tests/faults/old_kernel: $(call faults,old_kernel)
$(BUILD)/tests/faults/libfaultalloc.so: $(call faults,alloc)

# -- programs: how each is linked -----------------------------------------------------------------
TEST_LINKED := $(sort $(TEST_BIN) $(GPU_BIN))
OTHER_LINKED := $(STANDIN_LIB) $(HIP_STANDIN) $(OTHER_BUILD) $(FAULT_BIN) $(ACTOR_BIN) \
    $(CONFORMANCE_BIN)
$(TEST_LINKED): private LIBS = $(CHECK_LIBS) $(UV_LIBS) $(PBC_LIBS) $(JSON_LIBS) $(ZIP_LIBS) \
    $(HTTP_LIBS) $(PNG_LIBS) $(CHAFA_LIBS) $(INI_LIBS) -lm
$(BUILD)/tests/gpu_probe: private LIBS = -ldl
$(BUILD)/tests/faults/steps $(BUILD)/tests/faults/words: private LIBS = $(PBC_LIBS)
$(BUILD)/tests/faults/libfaultalloc.so: private LINK_FLAGS = -shared
$(STANDIN_LIB) $(HIP_STANDIN) $(OTHER_BUILD): private LINK_FLAGS = -shared -Wl,-soname,$(@F)
$(HIP_STANDIN): private LIBS = $(STANDIN_LIB)

# The linker's --wrap puts a function of the tests between our code and the one that it calls.
wrap = $(1:%=-Wl,--wrap=%)
# In tests/fail/*_fails.c each call of these that our code makes can be told to fail.
FAIL_CALLS = $(shell sed -nE 's/^WRAP.[^,]*, (\w+),.*/\1/p; s/^\w+ __wrap_(\w+).*;$$/\1/p' \
    tests/fail/harness_fail.c)
FAIL_BIN := $(filter %_fails,$(TEST_LINKED))
$(if $(FAIL_BIN),$(eval $(FAIL_BIN): private LINK_FLAGS := $(call wrap,$(FAIL_CALLS))))
$(FUZZ_BIN): private LINK_FLAGS = $(if $(FUZZ),-fsanitize=fuzzer) $(call wrap,mmap munmap mremap)
# The library below client/service, for the caller and the service alone.
$(BUILD)/tests/fuzz_call: private LINK_FLAGS = $(if $(FUZZ),-fsanitize=fuzzer) \
    $(call wrap,mmap munmap mremap dlx__publisher_new dlx_publisher_unref dlx_subscribe \
    dlx__subscribe dlx_subscription_unref dlx_take dlx__message_cut_meta dlx_message_meta \
    dlx_message_done dlx_message_attempt dlx_message_unref dlx_alloc dlx_publish_set \
    dlx__writer_group_passed dlx__writer_look_for_dead dlx__publisher_mark \
    dlx_publisher_next_event dlx_publisher_get_stats dlx__publisher_link_n_attached \
    dlx__publisher_describe_late)
$(BUILD)/tests/e2e_cli_pub: private LINK_FLAGS = $(call wrap,dlx_list_publishers)
# Calls of these are the tests' own: what they would do needs a GPU.
$(BUILD)/tests/test_gpu_exports: private LINK_FLAGS = $(call wrap,dlx__gpu_api)
$(BUILD)/tests/test_gpu_threads: private LINK_FLAGS = $(call wrap,dlx__gpu_gate_shut \
    dlx__gpu_gate_open dlx__gpu_event_record dlx__gpu_event_wait dlx__gpu_event_end \
    dlx__gpu_retain dlx__gpu_release dlx__message_abandon dlx__reader_made_room poll)
# The simulation of the daemon stands between it and the kernel, and replaces two of its files.
$(BUILD)/tests/sim_daemon: private LINK_FLAGS = $(call wrap,malloc calloc realloc reallocarray \
    strdup strndup free close socketpair memfd_create open fcntl pipe2 fallocate getsockopt \
    clock_gettime shutdown sendmsg recvmsg dlxd_client_send dlxd_client_send_fds \
    dlxd_client_send_ok dlxd_client_send_error dlxd_client_end_some dlxd_slice_is_over \
    dlx__packet_refuses_fds \
    dlxd_outbox_send dlxd_link_drop_landed dlxd_pending_join_send dlxd_report_has_left \
    dlxd_membership_withdrawn dlxd_idmap_remove dlxd_lack_begin dlxd_proof_begin \
    dlx__region_prove timerfd_create dlxd_group_admit dlxd_group_make_page dlxd_group_leave \
    dlxd_publisher_look_at_groups)

$(TEST_LINKED) $(OTHER_LINKED):
	$(link)
