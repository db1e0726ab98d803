# SPDX-License-Identifier: Apache-2.0
#
# The package dlx as it is imported, with the programs: setup.py puts the same files into a wheel.

PY_DIR := $(BUILD)/python/dlx
PY_OBJ := $(call obj,$(wildcard python/src/*.c))
PY_FILES := $(patsubst python/%,$(BUILD)/python/%, \
    $(wildcard python/dlx/*.py python/dlx/*.pyi python/dlx/py.typed \
        python/dlx/contrib/*.py python/dlx/contrib/*/*.py))
PY_DAEMON := $(PY_DIR)/dlpackd $(PY_DIR)/dlpackd-keeper
PY_LINKED := $(PY_DIR)/_dlx.abi3.so $(if $(PY_SHARED),,$(PY_DIR)/dlxctl)
INTEROP = $(or $(INTEROP_PYTHON),$(BUILD_ROOT)/venv/bin/python)
NEED_INTEROP = @[ -n '$(INTEROP_PYTHON)' ] || tools/setup.sh --interop

.PHONY: python python-shared check-python check-interop bench-python wheel wheel-check
python: $(PY_LINKED) $(PY_DAEMON) $(PY_FILES) ## build the Python package in build/python
	@rm -f $(filter-out $(PY_FILES), \
	    $(wildcard $(addprefix $(PY_DIR)/,*.py contrib/*.py contrib/*/*.py))) # that have moved

check-python: ## the tests of the Python package alone
	+@$(SUBMAKE) check T=check_python

# With every framework that can be installed (gigabytes, into build/venv), or those of
# INTEROP_PYTHON. The tables are in build/INTEROP.md.
check-interop: ## pass tensors between all frameworks that can be installed (large)
	$(NEED_INTEROP)
	+@$(SUBMAKE) python
	@CXX='$(CXX_FOR_HEADERS)' tools/nanobind-probe '$(INTEROP)' '$(BUILD_ABS)/nanobind'
	@mxnet=$(BUILD_ROOT)/venv-mxnet/bin/python; \
	PYTHONPATH='$(BUILD_ABS)/python:$(BUILD_ABS)/nanobind' PYTHONDONTWRITEBYTECODE=1 \
	$(INTEROP) python/tests/interop/exchange.py \
	    $$([ ! -x "$$mxnet" ] || echo --python "MXNet=$$mxnet") \
	    --json $(BUILD)/interop.json --markdown $(BUILD)/INTEROP.md
	@PYTHONPATH='$(BUILD_ABS)/python' PYTHONDONTWRITEBYTECODE=1 \
	    $(INTEROP) -m pytest -q -rs -p no:cacheprovider \
	    $(addprefix python/tests/,test_examples.py test_loss.py test_strides.py test_suites.py \
	    test_torch.py test_contrib_torch.py test_weights.py)

bench-python: ## dlx beside other packages (QUICK=1: few rounds); build/bench-python.json
	$(NEED_INTEROP)
	+@$(SUBMAKE) python
	@PYTHONPATH='$(BUILD_ABS)/python:python/tests/interop' \
	    $(INTEROP) python/bench/bench_python.py \
	    $(if $(QUICK),--quick) --json $(BUILD)/bench-python.json

WHEEL := $(BUILD_ROOT)/wheel
wheel: ## build the source distribution of the Python package, and from that build/wheel
	@tools/setup.sh --wheel
	@rm -rf '$(WHEEL)' && mkdir -p '$(WHEEL)'
	$(Q)env -u PYTHONDONTWRITEBYTECODE $(BUILD_ROOT)/venv/bin/python -m build --no-isolation \
	    --outdir '$(WHEEL)' . >'$(WHEEL)/build.log' 2>&1 || \
	    { tail -n 40 '$(WHEEL)/build.log'; exit 1; }
	@ls $(WHEEL)/*.tar.gz $(WHEEL)/*.whl

wheel-check: wheel ## use the wheel from elsewhere, and ask auditwheel and abi3audit about it
	@tools/wheel-check '$(WHEEL)'

# -- the files ------------------------------------------------------------------------------------
$(PY_OBJ): BASE_CPPFLAGS += -isystem \
    '$(shell $(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))')'

# The extension contains libdlx, so that another copy on the system never takes its place. A
# distribution, which has one copy, says PY_SHARED=1.
$(PY_DIR)/_dlx.abi3.so: $(PY_OBJ) python/src/_dlx.map \
    $(if $(PY_SHARED),$(LIBDLX),$(COMMON_OBJ) $(CLIENT_OBJ) $(GPU_OBJ) $(PROTO_OBJ))
$(PY_DIR)/_dlx.abi3.so: private LIBS = $(if $(PY_SHARED),,$(PBC_LIBS))

# For tests/gpu/check_gpu_library.sh: that of a distribution.
PY_SHARED_TEST := $(BUILD)/tests/shared/_dlx.abi3.so
$(PY_SHARED_TEST): $(PY_OBJ) python/src/_dlx.map $(LIBDLX) | $(BUILD)/$(GPU_SONAME)
python-shared: $(PY_SHARED_TEST)

PY_EXTENSIONS := $(PY_DIR)/_dlx.abi3.so $(PY_SHARED_TEST)
$(PY_EXTENSIONS): private RPATH :=
$(PY_EXTENSIONS): private LINK_FLAGS = -shared \
    -Wl,-Bsymbolic-functions,--version-script=python/src/_dlx.map

# dlxctl finds no libdlx.so beside the package: it contains the library, too.
$(PY_DIR)/dlxctl: $(OBJ)/cli/main.o $(LINKED_GPU) \
    $(foreach l,cli client gpu common,$(call lib,$(l)))
$(PY_DIR)/dlxctl: private LIBS = $(PBC_LIBS) $(CLI_LIBS)

$(PY_LINKED) $(PY_SHARED_TEST):
	$(link)

$(PY_DAEMON): $(PY_DIR)/%: $(BUILD)/%
	@mkdir -p $(@D)
	$(Q)$(INSTALL) $< $@
$(PY_FILES): $(PY_DIR)/%: python/dlx/%
	@mkdir -p $(@D)
	$(Q)$(INSTALL) -m 644 $< $@
