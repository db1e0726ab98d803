/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_CONFIG_H
#define DLXD_CONFIG_H

/* The administrator's configuration: dlpackd.conf(5). Reads a file, and the files that end with
 * ".conf" in the folder conf.d beside it, in the order of their names; later files add rules and
 * replace settings. */

#include "daemon/server/config_value.h"
#include "daemon/users/quota.h"
#include "daemon/users/rules.h"
#include <stdint.h>

/* Limits of all files together. Each check of a right looks at the rules one by one, in 10 to 50 ns
 * for each word. */
#define DLXD_CONFIG_BYTES_MAX (UINT64_C(1) << 20)
#define DLXD_CONFIG_FILES_MAX 1024U
#define DLXD_CONFIG_WORDS_MAX 16384U /* users, groups, sockets and topics of rules */
#define DLXD_CONFIG_PARTS_MAX 256U   /* sockets, and classes of quotas */

/* A section [socket NAME]. */
struct dlxd_config_socket {
    char name[DLXD_SOCKET_NAME_SIZE];
    char *place; /* where the section starts: "FILE:LINE" */
    char *path;  /* NULL: not set; the main socket's path is in dlxd_config.socket */
    mode_t mode; /* 0: not set */
    bool has_group;
    gid_t gid;
    char *quota; /* a class; NULL: not set */
};

struct dlxd_config {
    char *socket;                    /* path of the main socket; NULL: not set */
    const struct dlx_memory *memory; /* NULL: not set */
    int32_t fd_store;                /* -1: not set */
    uint64_t memory_bytes;           /* of the machine: machine.h; 25% is a part of it */
    /* By default, one user may have half of this, and all users three quarters: the machine's
     * memory, or twice the memory limit. */
    uint64_t shared_bytes;
    struct dlxd_rules rules;
    struct dlxd_quotas quotas; /* complete: unset limits have their defaults */
    struct dlxd_config_socket *sockets;
    size_t n_sockets;
};

/* Sets nothing. */
void dlxd_config_init(struct dlxd_config *config);
/* Reads `path` and the files of conf.d, which are regular files. Any thread, one at a time; may
 * wait for a file system and for the name services of users and groups. Returns 0;
 * DLX_E_INVALID, with "FILE:LINE: what and why" for the first error; DLX_E_NO_MEMORY; DLX_E_SYSTEM
 * and others for unreadable files. On failure, `config` is as after dlxd_config_init(). */
int dlxd_config_read(struct dlxd_config *config, const char *path);
void dlxd_config_deinit(struct dlxd_config *config);

/* Returns NULL if there is no such section. */
struct dlxd_config_socket *dlxd_config_find_socket(const struct dlxd_config *config,
                                                   const char *name);

/* Limits each user without another class to `bytes`, and all users to 3/2 of it. */
void dlxd_config_limit_memory(struct dlxd_config *config, uint64_t bytes);
#endif
