# SPDX-License-Identifier: Apache-2.0
#
# Libraries, by pkg-config or from the bundle of `make check-gpu-archive`, and the headers of GPU
# drivers, of which nothing is linked.

PKG_CONFIG ?= pkg-config
pkg = $(shell $(PKG_CONFIG) $(1) $(2) 2>/dev/null)
BUNDLE := $(if $(wildcard bundle/README),bundle)
ifneq ($(BUNDLE),)
NEEDED_PKGS :=
PKG_CFLAGS := -isystem $(BUNDLE)/include -DDLX_NO_ZIP -DDLX_NO_NCURSES \
    -DDLX_NO_MICROHTTPD -DDLX_NO_PNG -DDLX_NO_CHAFA \
    -DDLX_NO_BPF
UV_LIBS := $(BUNDLE)/lib/libuv_a.a -ldl -lrt
PBC_LIBS := $(BUNDLE)/lib/libprotobuf-c.a
JSON_LIBS := $(BUNDLE)/lib/libjansson.a
INI_LIBS := $(BUNDLE)/lib/libinih.a
CHECK_LIBS := $(BUNDLE)/lib/libcheck_pic.a $(BUNDLE)/lib/libsubunit.a -lm -lrt
CUDA_INCLUDE ?= $(BUNDLE)/cuda
HIP_INCLUDE ?=
else
NEEDED_PKGS := libuv libprotobuf-c inih jansson libxxhash libzip check
# Without ncurses `dlxctl top` has no screen, and says so.
CURSES_LIBS := $(call pkg,--libs,ncursesw)
# Without libmicrohttpd there is no `dlxctl serve`, and it says so.
HTTP_LIBS := $(call pkg,--libs,libmicrohttpd)
# Without libpng `dlxctl` makes no pictures in files, and says so.
PNG_LIBS := $(call pkg,--libs,libpng)
# Without chafa `dlxctl view` draws by characters, and says so.
CHAFA_LIBS := $(call pkg,--libs,chafa)
CHAFA_CPPFLAGS := $(patsubst -I%,-isystem %,$(call pkg,--cflags,chafa))
# Without libbpf, or what compiles for it, there is no `dlxctl trace`, and it says so. bpftool is in
# a folder that only root's PATH has.
BPF_CLANG ?= $(shell command -v clang)
BPFTOOL ?= $(firstword $(shell command -v bpftool) $(wildcard /usr/sbin/bpftool))
BPF_LIBS := $(if $(BPF_CLANG),$(if $(BPFTOOL),$(call pkg,--libs,'libbpf >= 1.0')))
PKG_CFLAGS := $(call pkg,--cflags,$(NEEDED_PKGS)) $(if $(CURSES_LIBS),,-DDLX_NO_NCURSES) \
    $(if $(HTTP_LIBS),,-DDLX_NO_MICROHTTPD)$(if $(PNG_LIBS),, -DDLX_NO_PNG)$(if \
    $(CHAFA_LIBS),, -DDLX_NO_CHAFA)$(if $(BPF_LIBS),, -DDLX_NO_BPF)
UV_LIBS := $(call pkg,--libs,libuv)
PBC_LIBS := $(call pkg,--libs,libprotobuf-c)
JSON_LIBS := $(call pkg,--libs,jansson)
ZIP_LIBS := $(call pkg,--libs,libzip)
INI_LIBS := $(call pkg,--libs,inih)
CHECK_LIBS := $(call pkg,--libs,check) -lm -lrt
endif
IMAGE_LIBS := $(call pkg,--libs,libjpeg) $(call pkg,--libs,libpng) -lm

# A missing library is named before the compiler can say something less clear.
.PHONY: needed-packages
needed-packages:
	@missing=$$(for p in $(NEEDED_PKGS); do $(PKG_CONFIG) --exists "$$p" || echo "$$p"; done); \
	[ -z "$$missing" ] || { echo "missing:" $$missing"; run tools/setup.sh" >&2; exit 1; }

# -- GPU headers ----------------------------------------------------------------------------------
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
HIP_CPPFLAGS = -D__HIP_PLATFORM_AMD__ \
    $(patsubst %,-isystem %,$(filter-out /usr/include,$(HIP_INCLUDE)))
GPU_WITH := $(if $(CUDA_INCLUDE),-DDLX_WITH_CUDA) $(if $(HIP_INCLUDE),-DDLX_WITH_HIP)
GPU_CPPFLAGS = $(strip $(GPU_WITH) $(CUDA_CPPFLAGS) $(if $(HIP_INCLUDE),$(HIP_CPPFLAGS)))

.PHONY: no-cuda no-hip gpu-flags
no-cuda:
	@echo 'no cuda.h (tools/setup.sh fetches it): built without support for NVIDIA GPUs'
no-hip:
	@echo 'no hip/hip_runtime_api.h (libamdhip64-dev has it):' \
	    'built without support for AMD GPUs'
gpu-flags: # for tools/lint/run
	@echo '$(GPU_CPPFLAGS)'
