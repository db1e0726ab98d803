# SPDX-License-Identifier: Apache-2.0
#
# The workspace rust/: the crates dlpackd-sys and dlpackd, and programs on top of them. Nothing else
# needs cargo.

CARGO ?= cargo
RUST_ENV = DLX_BUILD='$(BUILD_ABS)' CARGO_TARGET_DIR='$(BUILD_ABS)/rust' CARGO='$(CARGO)' \
    LD_LIBRARY_PATH='$(BUILD_ABS)'

RUST_PROGRAMS := dlx-record dlx-play dlx-bridge

.PHONY: rust check-rust check-bridge bench-bridge install-rust
rust: $(LIB_BIN) ## build the Rust crates in build/rust (cargo 1.89 or later)
	@tools/setup.sh --rust
	+$(Q)cd rust && env $(RUST_ENV) \
	    $(CARGO) build --locked --workspace --all-features --examples

check-rust: ## the tests of the Rust crates, and what their linters say
	@tools/setup.sh --rust
	+@$(SUBMAKE) all python conformance-programs
	+@$(RUN_ENV) $(RUST_ENV) tools/check-rust

# Those in which a connection is broken or slow take network namespaces, and so root.
check-bridge: ## all tests of dlx-bridge, for a minute or two (as root)
	@tools/setup.sh --rust
	+@$(SUBMAKE) all
	+$(Q)cd rust && env $(RUST_ENV) \
	    $(CARGO) test --locked --package dlx-bridge -- --include-ignored --test-threads=3 \
	    --skip speed

bench-bridge: ## the speed of dlx-bridge, beside a stream of TCP
	@tools/setup.sh --rust
	+@$(SUBMAKE) all
	+$(Q)cd rust && env $(RUST_ENV) \
	    $(CARGO) test --locked --release --package dlx-bridge --test two_hosts -- \
	    --ignored --nocapture speed

install-rust: $(LIB_BIN) ## install the Rust programs under PREFIX, after `make install`
	@tools/setup.sh --rust
	+$(Q)cd rust && env $(RUST_ENV) $(CARGO) build --locked --release $(RUST_PROGRAMS:%=--bin %)
	for p in $(RUST_PROGRAMS); do \
	    $(INSTALL) -D -m 755 '$(BUILD)'/rust/release/$$p '$(D)$(BINDIR)'/$$p; done
	mkdir -p $(STAGE)/system
	$(fill_in) systemd/system/dlx-bridge.service >$(STAGE)/system/dlx-bridge.service
	$(INSTALL) -D -m 644 $(STAGE)/system/dlx-bridge.service \
	    '$(D)$(SYSTEMUNITDIR)'/dlx-bridge.service
	$(INSTALL) -D -m 644 rust/dlx-bridge/dlx-bridge.1 '$(D)$(MANDIR)'/man1/dlx-bridge.1
