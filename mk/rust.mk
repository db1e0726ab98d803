# SPDX-License-Identifier: Apache-2.0
#
# The workspace rust/: the crates dlpackd-sys and dlpackd, and programs on top of them. Nothing else
# needs cargo.

CARGO ?= cargo
RUST_ENV = DLX_BUILD='$(BUILD_ABS)' CARGO_TARGET_DIR='$(BUILD_ABS)/rust' CARGO='$(CARGO)' \
    LD_LIBRARY_PATH='$(BUILD_ABS)'

RUST_PROGRAMS := dlx-record dlx-play

.PHONY: rust check-rust install-rust
rust: $(LIB_BIN) ## build the Rust crates in build/rust (cargo 1.89 or later)
	@tools/setup.sh --rust
	+$(Q)cd rust && env $(RUST_ENV) \
	    $(CARGO) build --locked --workspace --all-features --examples

check-rust: ## the tests of the Rust crates, and what their linters say
	@tools/setup.sh --rust
	+@$(SUBMAKE) all python conformance-programs
	+@$(RUN_ENV) $(RUST_ENV) tools/check-rust

install-rust: $(LIB_BIN) ## install dlx-record and dlx-play under PREFIX, after `make install`
	@tools/setup.sh --rust
	+$(Q)cd rust && env $(RUST_ENV) $(CARGO) build --locked --release $(RUST_PROGRAMS:%=--bin %)
	for p in $(RUST_PROGRAMS); do \
	    $(INSTALL) -D -m 755 '$(BUILD)'/rust/release/$$p '$(D)$(BINDIR)'/$$p; done
