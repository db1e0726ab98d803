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
DOCDIR ?= $(PREFIX)/share/doc
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
SYSTEM_UNITS := $(UNITS) dlpackd-metrics.service

# A run path is written only where the loader would not look by itself.
STD_LIBDIRS := /lib /lib64 /usr/lib /usr/lib64 /usr/local/lib /usr/local/lib64 /usr/lib/% /lib/%
INSTALL_RPATH := $(if $(filter $(STD_LIBDIRS),$(LIBDIR)),,-Wl$(,)-rpath$(,)$(LIBDIR))
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

# For static programs: the others have libdlx.so load the library. libdlx.a has a weak reference to
# the symbol after -u, and the linker takes nothing out of an archive for that.
define GPU_PC_FILE
prefix=$(PREFIX)
libdir=$(LIBDIR)

Name: dlx-gpu
Description: tensors on GPUs for programs that link libdlx statically
Version: $(VERSION)
Requires: libdlx = $(VERSION)
Libs.private: -Wl,-u,dlx__gpu_find -L$${libdir} -ldlx-gpu -ldl -pthread
endef

# What is made for an installation alone: templates filled in, and dlxctl with its run path.
STAGE := $(BUILD)/stage

# Files of a folder, as FROM:TO.
from_to = $(foreach f,$(3),$(1)/$(f):$(2)/$(f))

# All that is installed; `install` makes what is in $(STAGE). The configuration is not here: what an
# administrator has changed stays.
INSTALLED = $(call from_to,$(BUILD),$(BINDIR),$(notdir $(DAEMON_BIN))) \
    $(STAGE)/dlxctl:$(BINDIR)/dlxctl \
    $(call from_to,$(BUILD),$(LIBDIR),$(notdir $(SOREAL) $(GPU_SOREAL)) libdlx.a libdlx-gpu.a) \
    $(call from_to,include,$(INCLUDEDIR),$(PUBLIC_HEADERS:include/%=%)) \
    $(call from_to,include,$(DLPACKDIR),dlpack/dlpack.h) \
    $(call from_to,$(STAGE),$(PKGCONFIGDIR),libdlx.pc dlx-gpu.pc) \
    $(call from_to,$(STAGE),$(CMAKEDIR),$(CMAKE_FILES)) \
    $(call from_to,$(BUILD)/man,$(MANDIR),$(shell $(PYTHON) tools/man --list)) \
    $(call from_to,$(COMPLETION)/bash,$(BASHDIR),$(COMPLETED)) \
    $(call from_to,$(COMPLETION)/zsh,$(ZSHDIR),$(COMPLETED:%=_%)) \
    $(call from_to,$(COMPLETION)/fish,$(FISHDIR),$(COMPLETED:%=%.fish)) \
    $(call from_to,$(STAGE)/user,$(UNITDIR),$(UNITS)) \
    $(call from_to,$(STAGE)/system,$(SYSTEMUNITDIR),$(SYSTEM_UNITS)) \
    $(call from_to,systemd/sysusers.d,$(SYSUSERSDIR),dlpackd.conf) \
    $(call from_to,systemd/tmpfiles.d,$(TMPFILESDIR),dlpackd.conf)
# Links, likewise.
INSTALLED_LINKS = $(notdir $(SOREAL)):$(LIBDIR)/$(SONAME) $(SONAME):$(LIBDIR)/libdlx.so \
    $(notdir $(GPU_SOREAL)):$(LIBDIR)/$(GPU_SONAME)
install_files = for p in $(1); do if [ -x "$${p%%:*}" ]; then mode=755; else mode=644; fi; \
    $(INSTALL) -D -m $$mode "$${p%%:*}" '$(D)'"$${p\#*:}"; done
installed_at = $(foreach p,$(1),'$(D)$(lastword $(subst :, ,$(p)))')

.PHONY: install install-check uninstall
install: export PC_FILE := $(PC_FILE)
install: export GPU_PC_FILE := $(GPU_PC_FILE)
install: all man $(COMPLETION)/.made ## install under PREFIX (/usr/local), below DESTDIR if given
	mkdir -p $(STAGE)/user $(STAGE)/system
	$(LINK) $(INSTALL_RPATH) -o $(STAGE)/dlxctl $(OBJ)/cli/main.o $(call lib,cli) \
	    -L$(BUILD) -ldlx $(CLI_LIBS)
	printf '%s\n' "$$PC_FILE" >$(STAGE)/libdlx.pc
	printf '%s\n' "$$GPU_PC_FILE" >$(STAGE)/dlx-gpu.pc
	for f in $(CMAKE_FILES); do $(fill_in_cmake) packaging/$$f.in >$(STAGE)/$$f; done
	for u in $(UNITS:%=user/%) $(SYSTEM_UNITS:%=system/%); do \
	    $(fill_in) systemd/$$u >$(STAGE)/$$u; done
	$(fill_in) systemd/dlpackd.conf >$(STAGE)/dlpackd.conf
	$(call install_files,$(INSTALLED))
	for p in $(INSTALLED_LINKS); do ln -sf "$${p%%:*}" '$(D)'"$${p#*:}"; done
	$(INSTALL) -d '$(D)$(dir $(CONFIG))conf.d'
	if [ -e '$(D)$(CONFIG)' ]; then echo '$(CONFIG) is there: it stays as it is'; \
	    else $(INSTALL) -m 644 $(STAGE)/dlpackd.conf '$(D)$(CONFIG)'; fi
	$(if $(DESTDIR),,@tools/install-hints '$(BINDIR)' '$(LIBDIR)' '$(PKGCONFIGDIR)')

install-check: all ## install somewhere, use it from there with pkg-config and CMake, uninstall
	+@tools/install-check

uninstall: ## remove what was installed there; a configuration that was changed stays
	rm -f $(call installed_at,$(INSTALLED) $(INSTALLED_LINKS) $(RUST_INSTALLED))
	if $(fill_in) systemd/dlpackd.conf | cmp -s - '$(D)$(CONFIG)'; then rm '$(D)$(CONFIG)'; fi
	-rmdir --ignore-fail-on-non-empty '$(D)$(DLPACKDIR)/dlpack' '$(D)$(DLPACKDIR)' \
	    '$(D)$(INCLUDEDIR)/dlx' '$(D)$(CMAKEDIR)' "$$(dirname '$(D)$(CMAKEDIR)')" \
	    '$(D)$(dir $(CONFIG))conf.d' '$(D)$(dir $(CONFIG))' \
	    $(wildcard $(RUST_PACKAGES:%=$(D)$(DOCDIR)/%)) 2>/dev/null
