/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_PRINCIPAL_H
#define DLXD_PRINCIPAL_H

/*
 * Who a client is, as the kernel said when it connected. Permissions look at all of it: policy.h. Charges are keyed by
 * uid and socket alone, so that neither a group nor a protocol version buys a new quota: user.h.
 *
 * A listening socket is known by its name, in the configuration, to the service manager, and in the
 * ledger that the next daemon reads. A uid by another socket is another user: containers whose
 * processes all run as uid 1000 are told apart by the sockets that were mounted into them.
 *
 * A publisher keeps its principal when its client has gone. The daemon's thread only.
 */

#include "common/util.h"
#include <sys/types.h>

/* With the terminating 0. Names have letters, digits, '-', '_' and '.'. */
#define DLXD_SOCKET_NAME_SIZE 32
/* The name of the main socket: that of --socket. */
#define DLXD_SOCKET_MAIN "dlpackd"

struct dlxd_principal {
    uint32_t n_refs;
    uid_t uid;
    gid_t gid;
    char socket[DLXD_SOCKET_NAME_SIZE]; /* the listening socket that it came in by */
    uint32_t minor; /* version of the protocol that it speaks, once it has said Hello */
    size_t n_groups;
    gid_t *groups; /* supplementary ones */
    char *label;   /* of the security module; NULL: none */
};

/* Of the process that connected, whose pid is `*ret_pid`. Returns 0; DLX_E_NO_MEMORY, DLX_E_SYSTEM. */
int dlxd_principal_new(struct dlxd_principal **ret, pid_t *ret_pid, int borrow_sock,
                       const char *socket);
/* Of a publisher that a former daemon knew: no more than these is known. Returns 0; DLX_E_NO_MEMORY. */
int dlxd_principal_new_former(struct dlxd_principal **ret, uid_t uid, const char *socket);
struct dlxd_principal *dlxd_principal_ref(struct dlxd_principal *principal);
/* Returns NULL; NULL is fine. */
struct dlxd_principal *dlxd_principal_unref(struct dlxd_principal *principal);

/* The same uid, by the same socket? */
bool dlxd_principal_is_same_user(const struct dlxd_principal *a, const struct dlxd_principal *b);

/* "uid 5", or "uid 5 by socket pods" of one that came in by another socket than the main one.
 * Returns `text`. */
#define DLXD_PRINCIPAL_TEXT_SIZE 64
const char *dlxd_principal_text(uid_t uid, const char *socket, char text[DLXD_PRINCIPAL_TEXT_SIZE]);

/* 0 of the main one; of each other one the same in all daemons. The configuration refuses two names with
 * the same number. */
uint32_t dlxd_socket_number(const char *socket);
/* The number of its socket and its uid, for the GPU keeper, which knows of no names. */
uint64_t dlxd_principal_number(const struct dlxd_principal *principal);

bool dlxd_socket_is_main(const char *socket);
/* May a socket, or a class of quotas, have this name? Returns 0; DLX_E_INVALID naming `what` it is. */
int dlxd_check_name(const char *what, const char *name);

/* As primary or supplementary group. */
bool dlxd_principal_has_group(const struct dlxd_principal *principal, gid_t gid);

#endif
