# SPDX-License-Identifier: Apache-2.0
#
# `make install`, `make uninstall`, and where they put things.

PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
PKGCONFIGDIR ?= $(LIBDIR)/pkgconfig
CMAKEDIR ?= $(LIBDIR)/cmake/dlx
UNITDIR ?= $(PREFIX)/lib/systemd/user
SYSTEMUNITDIR ?= $(PREFIX)/lib/systemd/system
SYSUSERSDIR ?= $(PREFIX)/lib/sysusers.d
TMPFILESDIR ?= $(PREFIX)/lib/tmpfiles.d
SYSCONFDIR ?= $(if $(filter /usr /usr/local,$(PREFIX)),/etc,$(PREFIX)/etc)
MANDIR ?= $(PREFIX)/share/man
BASHDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions
FISHDIR ?= $(PREFIX)/share/fish/vendor_completions.d
DESTDIR ?=
D := $(DESTDIR)
CONFIG := $(SYSCONFDIR)/dlpackd/dlpackd.conf
# Not in INCLUDEDIR itself, where DLPack's own copy may be, of another version.
DLPACKDIR = $(INCLUDEDIR)/dlx/abi

PUBLIC_HEADERS := $(wildcard include/dlx/*.h include/dlx/*.hpp)
CMAKE_FILES := dlxConfig.cmake dlxConfigVersion.cmake
UNITS := dlpackd.socket dlpackd@.socket dlpackd.service dlpackd-keeper.socket dlpackd-keeper.service

# A run path is written only where the loader would not look by itself.
STD_LIBDIRS := /lib /lib64 /usr/lib /usr/lib64 /usr/local/lib /usr/local/lib64 /usr/lib/% /lib/%
INSTALL_RPATH := $(if $(filter $(STD_LIBDIRS),$(LIBDIR)),,-Wl$(,)-rpath$(,)$(LIBDIR))
INSTALL_FILES := $(INSTALL) -m 644
from_cmakedir = $(shell realpath -ms --relative-to='$(CMAKEDIR)' '$(1)')
# Templates: packaging/ and systemd/ have the marks that these replace.
fill_in = sed -e 's|@bindir@|$(BINDIR)|g' -e 's|@sysconfdir@|$(SYSCONFDIR)|g'
fill_in_cmake = sed -e 's|@VERSION@|$(VERSION)|g' -e 's|@SOVERSION@|$(SOVERSION)|g' \
    -e 's|@LIBDIR@|$(call from_cmakedir,$(LIBDIR))|g' \
    -e 's|@INCLUDEDIR@|$(call from_cmakedir,$(INCLUDEDIR))|g'
define PC_FILE
prefix=$(PREFIX)
libdir=$(LIBDIR)
includedir=$(INCLUDEDIR)

Name: libdlx
Description: exchange DLPack tensors between processes without copying
Version: $(VERSION)
Requires.private: libprotobuf-c
Libs: -L$${libdir} -ldlx
Libs.private: -pthread
Cflags: -I$${includedir}/dlx/abi -I$${includedir}
endef

.PHONY: install install-check uninstall
install: export PC_FILE := $(PC_FILE)
install: all man $(COMPLETION)/.made ## install under PREFIX (/usr/local), below DESTDIR if given
	$(INSTALL) -d '$(D)$(BINDIR)' '$(D)$(LIBDIR)' '$(D)$(PKGCONFIGDIR)' '$(D)$(CMAKEDIR)' \
	    '$(D)$(DLPACKDIR)/dlpack' '$(D)$(BASHDIR)' '$(D)$(ZSHDIR)' '$(D)$(FISHDIR)' \
	    '$(D)$(UNITDIR)' '$(D)$(SYSTEMUNITDIR)' '$(D)$(SYSUSERSDIR)' '$(D)$(TMPFILESDIR)' \
	    '$(D)$(dir $(CONFIG))conf.d'
	$(INSTALL) -m 755 $(DAEMON_BIN) '$(D)$(BINDIR)/'
	$(LINK) $(INSTALL_RPATH) -o '$(D)$(BINDIR)/dlxctl' $(OBJ)/cli/main.o $(call lib,cli) \
	    -L$(BUILD) -ldlx $(CLI_LIBS)
	$(INSTALL) -m 755 $(SOREAL) '$(D)$(LIBDIR)/libdlx.so.$(VERSION)'
	ln -sf libdlx.so.$(VERSION) '$(D)$(LIBDIR)/$(SONAME)'
	ln -sf $(SONAME) '$(D)$(LIBDIR)/libdlx.so'
	$(INSTALL_FILES) $(BUILD)/libdlx.a '$(D)$(LIBDIR)/libdlx.a'
	$(INSTALL_FILES) $(PUBLIC_HEADERS) '$(D)$(INCLUDEDIR)/dlx/'
	$(INSTALL_FILES) include/dlpack/dlpack.h '$(D)$(DLPACKDIR)/dlpack/dlpack.h'
	printf '%s\n' "$$PC_FILE" >'$(D)$(PKGCONFIGDIR)/libdlx.pc'
	for f in $(CMAKE_FILES); do $(fill_in_cmake) packaging/$$f.in >'$(D)$(CMAKEDIR)'/$$f; \
	    chmod 644 '$(D)$(CMAKEDIR)'/$$f; done
	cd $(BUILD)/man && for f in man*/*; do \
	    $(INSTALL) -D -m 644 "$$f" '$(D)$(MANDIR)'"/$$f"; done
	$(INSTALL_FILES) $(COMPLETED:%=$(COMPLETION)/bash/%) '$(D)$(BASHDIR)/'
	$(INSTALL_FILES) $(COMPLETED:%=$(COMPLETION)/zsh/_%) '$(D)$(ZSHDIR)/'
	$(INSTALL_FILES) $(COMPLETED:%=$(COMPLETION)/fish/%.fish) '$(D)$(FISHDIR)/'
	for u in $(UNITS); do \
	    $(fill_in) systemd/user/$$u >'$(D)$(UNITDIR)'/$$u; chmod 644 '$(D)$(UNITDIR)'/$$u; \
	    $(fill_in) systemd/system/$$u >'$(D)$(SYSTEMUNITDIR)'/$$u; \
	    chmod 644 '$(D)$(SYSTEMUNITDIR)'/$$u; done
	$(INSTALL_FILES) systemd/sysusers.d/dlpackd.conf '$(D)$(SYSUSERSDIR)/'
	$(INSTALL_FILES) systemd/tmpfiles.d/dlpackd.conf '$(D)$(TMPFILESDIR)/'
	if [ -e '$(D)$(CONFIG)' ]; then echo '$(CONFIG) is there: it stays as it is'; \
	    else $(fill_in) systemd/dlpackd.conf >'$(D)$(CONFIG)'; chmod 644 '$(D)$(CONFIG)'; fi
	$(if $(DESTDIR),,@tools/install-hints '$(BINDIR)' '$(LIBDIR)' '$(PKGCONFIGDIR)')

install-check: all ## install somewhere, use it from there with pkg-config and CMake, uninstall
	+@tools/install-check

INSTALLED = $(addprefix $(BINDIR)/,dlpackd dlpackd-keeper dlxctl) \
    $(addprefix $(LIBDIR)/,libdlx.so.$(VERSION) $(SONAME) libdlx.so libdlx.a) \
    $(PKGCONFIGDIR)/libdlx.pc $(CMAKE_FILES:%=$(CMAKEDIR)/%) $(DLPACKDIR)/dlpack/dlpack.h \
    $(patsubst include/%,$(INCLUDEDIR)/%,$(PUBLIC_HEADERS)) \
    $(UNITS:%=$(UNITDIR)/%) $(UNITS:%=$(SYSTEMUNITDIR)/%) \
    $(SYSUSERSDIR)/dlpackd.conf $(TMPFILESDIR)/dlpackd.conf \
    $(COMPLETED:%=$(BASHDIR)/%) $(COMPLETED:%=$(ZSHDIR)/_%) $(COMPLETED:%=$(FISHDIR)/%.fish)
uninstall: ## remove what `make install` put there; a configuration that was changed stays
	rm -f $(INSTALLED:%='$(D)%')
	for f in $$($(PYTHON) tools/man --list); do rm -f '$(D)$(MANDIR)'"/$$f"; done
	if $(fill_in) systemd/dlpackd.conf | cmp -s - '$(D)$(CONFIG)'; then rm '$(D)$(CONFIG)'; fi
	-rmdir --ignore-fail-on-non-empty '$(D)$(DLPACKDIR)/dlpack' '$(D)$(DLPACKDIR)' \
	    '$(D)$(INCLUDEDIR)/dlx' '$(D)$(CMAKEDIR)' "$$(dirname '$(D)$(CMAKEDIR)')" \
	    '$(D)$(dir $(CONFIG))conf.d' '$(D)$(dir $(CONFIG))' 2>/dev/null
