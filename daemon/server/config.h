/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_CONFIG_H
#define DLXD_CONFIG_H

/*
 * What the administrator has written: dlpackd.conf(5). A file, and those that end with ".conf" in the
 * folder conf.d beside it, in the order of their names; later ones add rules and replace settings.
 */

#include "daemon/users/quota.h"
#include "daemon/users/rules.h"
#include <stdint.h>

struct dlx_memory;

/* The largest memory limit: quotas are sums of a few of it. */
#define DLXD_MEMORY_LIMIT_MAX (UINT64_C(1) << 60)

/* The most descriptors that the service manager may keep. */
#define DLXD_FD_STORE_MAX 65536

/* A section [socket NAME]. */
struct dlxd_config_socket {
    char name[DLXD_SOCKET_NAME_SIZE];
    char *place; /* where it begins: "FILE:LINE" */
    char *path;  /* NULL: not said; of the main one, `socket` of the config has it */
    mode_t mode; /* 0: not said */
    bool has_group;
    gid_t gid;
    char *quota; /* a class; NULL: not said */
};

struct dlxd_config {
    char *socket;                    /* path of the main one; NULL: not said */
    const struct dlx_memory *memory; /* likewise */
    int32_t fd_store;                /* -1: likewise */
    uint64_t memory_bytes;           /* of the machine: machine.h; 25% is a part of it */
    /* Of these one user may have half by default, and all users three quarters: the machine's
     * memory, or twice the memory limit. */
    uint64_t shared_bytes;
    struct dlxd_rules rules;
    struct dlxd_quotas quotas; /* complete: what is not said in one is as by default */
    struct dlxd_config_socket *sockets;
    size_t n_sockets;
};

/* Nothing is said. */
void dlxd_config_init(struct dlxd_config *config);
/*
 * Read `path` and the files of conf.d. Returns 0; DLX_E_INVALID, with "FILE:LINE: what and why" for
 * the first error; DLX_E_NO_MEMORY; DLX_E_SYSTEM and others for files that cannot be read. On failure
 * `config` is as after dlxd_config_init().
 */
int dlxd_config_read(struct dlxd_config *config, const char *path);
void dlxd_config_deinit(struct dlxd_config *config);

/* NULL: there is no such section. */
struct dlxd_config_socket *dlxd_config_find_socket(const struct dlxd_config *config,
                                                   const char *name);

/* A user by name or number. Returns 0; DLX_E_INVALID: there is no such user, or it may have no
 * rights. */
int dlxd_config_parse_user(const char *text, uid_t *ret);
/* From 0 to DLXD_FD_STORE_MAX. Returns 0, DLX_E_INVALID. */
int dlxd_config_parse_count(const char *text, int32_t *ret);
/* How much shared memory one user may have: "8GiB", "50%". Returns 0, DLX_E_INVALID. */
int dlxd_config_parse_memory_limit(const char *text, uint64_t *ret);
/* Have one user get at most `bytes` where no class says otherwise, and all users 3/2 of it. */
void dlxd_config_limit_memory(struct dlxd_config *config, uint64_t bytes);
/* Returns NULL with the message set. */
const struct dlx_memory *dlxd_config_parse_memory(const char *name);

#endif
