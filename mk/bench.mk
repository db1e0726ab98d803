# SPDX-License-Identifier: Apache-2.0
#
# The benchmarks (docs/BENCHMARKS.md), and what they compare us with, as far as it is installed;
# bench/peers/iceoryx2 is built by `make bench` alone.

BENCH_SRC := $(wildcard bench/bench_*.c)
BENCH_BIN := $(patsubst %.c,$(BUILD)/%,$(BENCH_SRC))
ICEORYX_H := $(lastword $(wildcard /usr/include/iceoryx/*/iceoryx_binding_c/api.h \
    /usr/include/iceoryx_binding_c/api.h))
ZMQ_LIBS := $(call pkg,--libs,libzmq)
GRPC_PLUGIN := $(if $(wildcard /usr/include/grpcpp/grpcpp.h),$(shell command -v grpc_cpp_plugin))
PEERS := dlx socket $(if $(ICEORYX_H),iceoryx) $(if $(ZMQ_LIBS),zmq) $(if $(GRPC_PLUGIN),grpc)
PEER_BIN := $(PEERS:%=$(BUILD)/bench/peers/%)

.PHONY: bench bench-programs bench-check bench-observed bench-gpu bench-gpu-programs bench-iceoryx2
bench: ## build the benchmarks and run bench/run (QUICK=1; BENCH_ARGS)
	@tools/setup.sh --bench
	+@$(SUBMAKE) all bench-programs bench-iceoryx2
	@$(RUN_ENV) bench/run $(BENCH_ARGS)

bench-programs: $(BENCH_BIN) $(PEER_BIN)

bench-check: ## run every benchmark program for a moment: are its figures sane?
	+@$(SUBMAKE) all bench-programs
	@$(RUN_ENV) bench/selftest

bench-observed: ## what `dlxctl top`, `serve` and a page cost (ROUNDS=15, TOPICS=5000)
	+@$(SUBMAKE) all python bench-programs
	@$(RUN_ENV) $(PYTHON) bench/observed '$(BUILD)' $(or $(ROUNDS),15) $(or $(TOPICS),5000)

bench-gpu: ## benchmarks on a GPU; BENCH_ARGS=--standin tries them without one
	+@$(SUBMAKE) bench-gpu-programs
	@$(RUN_ENV) bench/run-gpu $(BENCH_ARGS)

bench-gpu-programs: $(DAEMON_BIN) $(BUILD)/tests/gpu_bench $(BUILD)/tests/gpu_probe $(STANDIN_LIB)

bench-iceoryx2: $(OBJ)/bench/peers/pattern.o $(call lib,bench)
	@CC='$(CC)' bench/peers/iceoryx2/build '$(BUILD_ABS)' $(abspath $^)

$(call lib,bench): $(call obj,$(filter-out $(BENCH_SRC),$(wildcard bench/*.c)))
$(BENCH_BIN): $(BUILD)/%: $(OBJ)/%.o $(call lib,bench) $(call lib,client) $(call lib,common)
$(BENCH_BIN): private LIBS = $(PBC_LIBS) -lm

# Each peer is linked with what it needs: a program of another library does not contain ours.
$(PEER_BIN): $(BUILD)/bench/peers/%: $(OBJ)/bench/peers/pattern.o $(OBJ)/bench/peers/peer_%.o \
    $(call lib,bench)
$(OBJ)/bench/peers/peer_iceoryx.o: BASE_CPPFLAGS += \
    -isystem $(patsubst %/iceoryx_binding_c/api.h,%,$(ICEORYX_H))
$(BUILD)/bench/peers/dlx: $(call lib,client) $(call lib,common)
$(BUILD)/bench/peers/dlx: private LIBS = $(PBC_LIBS) -lm
$(BUILD)/bench/peers/socket: private LIBS = -lm
$(BUILD)/bench/peers/iceoryx: private LIBS = -liceoryx_binding_c -lm
$(BUILD)/bench/peers/zmq: private LIBS = $(ZMQ_LIBS) -lm

# C++, as the code that gRPC makes of the description, which is compiled with it.
GRPC_MADE := $(BUILD)/bench/peers/peer_grpc
$(GRPC_MADE).pb.cc: bench/peers/peer_grpc.proto
	@mkdir -p $(@D)
	$(call say,GEN)
	$(Q)protoc --proto_path=. --cpp_out=$(BUILD) --grpc_out=$(BUILD) \
	    --plugin=protoc-gen-grpc=$(GRPC_PLUGIN) $<
$(OBJ)/bench/peers/peer_grpc.o: bench/peers/peer_grpc.cpp $(GRPC_MADE).pb.cc
	@mkdir -p $(@D)
	$(call say,CXX)
	$(Q)$(CXX_FOR_HEADERS) -std=c++17 -O2 -fPIC -Wall -Wextra $(if $(WERROR),-Werror) -I. \
	    -I$(BUILD) -MMD -MP -c -o $@ $<
$(BUILD)/bench/peers/grpc: private LIBS = $(call pkg,--libs,grpc++ protobuf) -lstdc++ -lm

$(BENCH_BIN) $(PEER_BIN):
	$(link)
