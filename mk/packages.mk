# SPDX-License-Identifier: Apache-2.0
#
# The HTML site and the Debian packages.

.PHONY: docs deb deb-check
docs: ## make the HTML site in build/docs/html; warnings and broken links are errors
	@tools/setup.sh --docs
	+@$(SUBMAKE) python
	@$(BUILD_ROOT)/venv/bin/python tools/docs '$(BUILD_ABS)'

deb: ## build Debian packages in build/deb (for GPUs: CUDA_INCLUDE, HIP_INCLUDE)
	@tools/setup.sh --deb
	@tools/deb $(BUILD_ROOT)/deb

deb-check: ## install, use, upgrade and purge them in a clean system (as root)
	@tools/setup.sh --deb
	@tools/deb-check $(BUILD_ROOT)/deb-check
