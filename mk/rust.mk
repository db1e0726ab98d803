# SPDX-License-Identifier: Apache-2.0
#
# The workspace rust/: the crates dlpackd-sys and dlpackd, and programs on top of them. Nothing else
# needs cargo.

CARGO ?= cargo
RUST_ENV = DLX_BUILD='$(BUILD_ABS)' CARGO_TARGET_DIR='$(BUILD_ABS)/rust' CARGO='$(CARGO)' \
    LD_LIBRARY_PATH='$(BUILD_ABS)'

RUST_SETUP = tools/setup.sh --rust
# The profile of cargo of what is installed. RUST_BUILT=1 installs what is there: with `dev`, what
# the tests have built.
RUST_PROFILE ?= release
RUST_OUT = $(BUILD)/rust/$(RUST_PROFILE:dev=debug)
RUST_PROGRAMS := dlx-record dlx-play dlx-bridge
RUST_PAGES := $(wildcard rust/*/*.1)
RUST_PACKAGES := dlx-record dlx-bridge
RUST_INSTALLED = $(call from_to,$(RUST_OUT),$(BINDIR),$(RUST_PROGRAMS)) \
    $(foreach p,$(RUST_PAGES),$(p):$(MANDIR)/man1/$(notdir $(p))) \
    $(STAGE)/system/dlx-bridge.service:$(SYSTEMUNITDIR)/dlx-bridge.service \
    $(foreach p,$(RUST_PACKAGES),$(STAGE)/$(p).licences:$(DOCDIR)/$(p)/LICENCES)

.PHONY: rust check-rust check-rust-build check-bridge bench-bridge bench-record rust-programs \
    install-rust
rust: $(LIB_BIN) ## build the Rust crates in build/rust (cargo 1.89 or later)
	@$(RUST_SETUP)
	+$(Q)cd rust && env $(RUST_ENV) \
	    $(CARGO) build --locked --workspace --all-features --examples

check-rust: ## the tests of the Rust crates, and what their linters say
	@$(RUST_SETUP)
	+@$(SUBMAKE) all python conformance-programs standin
	+@$(RUN_ENV) $(RUST_ENV) tools/check-rust

check-rust-build: ## what check-rust compiles, and what the linters say, without the tests
	@$(RUST_SETUP)
	+@$(SUBMAKE) all
	+@$(RUN_ENV) $(RUST_ENV) tools/check-rust --build

# Those in which a connection is broken or slow take network namespaces, and so root.
check-bridge: ## all tests of dlx-bridge, for a minute or two (as root)
	@$(RUST_SETUP)
	+@$(SUBMAKE) all
	+$(Q)cd rust && env $(RUST_ENV) \
	    $(CARGO) test --locked --package dlx-bridge -- --include-ignored --test-threads=3 \
	    --skip speed

bench-bridge: ## the speed of dlx-bridge, beside a stream of TCP
	@$(RUST_SETUP)
	+@$(SUBMAKE) all
	+$(Q)cd rust && env $(RUST_ENV) \
	    $(CARGO) test --locked --release --package dlx-bridge --test two_hosts -- \
	    --ignored --nocapture speed

rust-programs: $(LIB_BIN)
	@$(RUST_SETUP)
	+$(Q)cd rust && env $(RUST_ENV) \
	    $(CARGO) build --locked --profile $(RUST_PROFILE) $(RUST_PROGRAMS:%=--bin %)

bench-record: ## the speed of dlx-record, beside dd, with some GB of disk
	@$(RUST_SETUP)
	+@$(SUBMAKE) all
	+$(Q)cd rust && env $(RUST_ENV) $(CARGO) build --locked --release --bin dlx-record
	@bench/record '$(BUILD)' '$(BUILD)'/rust/release/dlx-record $(ROUNDS)

install-rust: $(if $(RUST_BUILT),,rust-programs)
install-rust: ## install the Rust programs under PREFIX, after `make install`
	mkdir -p $(STAGE)/system
	$(fill_in) systemd/system/dlx-bridge.service >$(STAGE)/system/dlx-bridge.service
	for p in $(RUST_PACKAGES); do tools/rust-licences $$p >$(STAGE)/$$p.licences; done
	$(call install_files,$(RUST_INSTALLED))
