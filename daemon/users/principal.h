/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_PRINCIPAL_H
#define DLXD_PRINCIPAL_H

/*
 * Who a client is, as the kernel said when it connected. Permissions consider all of it (policy.h).
 * Charges depend only on uid and socket, so that neither a group nor a protocol version gives a
 * client a new quota (user.h).
 *
 * A listening socket is identified by its name, in the configuration, in the service manager, and
 * in the ledger that the next daemon reads. The same uid on another socket is another user:
 * containers whose processes all run as uid 1000 are told apart by the sockets that are mounted
 * into them.
 *
 * A publisher keeps its principal after its client has gone. Only the loop's thread uses
 * principals.
 */

#include "common/util.h"
#include <sys/types.h>

/* Includes the terminating 0. Names consist of letters, digits, '-', '_' and '.'. */
#define DLXD_SOCKET_NAME_SIZE 32
/* The name of the main socket: the one of --socket. */
#define DLXD_SOCKET_MAIN "dlpackd"

struct dlxd_principal {
    uint32_t n_refs;
    uid_t uid;
    gid_t gid;
    pid_t pid;                          /* of the process that connected; 0: unknown */
    char socket[DLXD_SOCKET_NAME_SIZE]; /* the listening socket on which it connected */
    uint32_t minor;                     /* of its protocol version, once it has said Hello */
    char name[64]; /* that it has given itself in Hello; "": none, or not yet */
    size_t n_groups;
    gid_t *groups; /* supplementary groups */
    char *label;   /* of the security module; NULL: none */
};

/* The principal of a connected process, whose pid is `*ret_pid`. Returns 0; DLX_E_NO_MEMORY,
 * DLX_E_SYSTEM. */
int dlxd_principal_new(struct dlxd_principal **ret, pid_t *ret_pid, int borrow_sock,
                       const char *socket);
/* The principal of a publisher that a former daemon knew: only uid and socket are known. Returns 0;
 * DLX_E_NO_MEMORY. */
int dlxd_principal_new_former(struct dlxd_principal **ret, uid_t uid, const char *socket);
struct dlxd_principal *dlxd_principal_ref(struct dlxd_principal *principal);
/* Returns NULL; accepts NULL. */
struct dlxd_principal *dlxd_principal_unref(struct dlxd_principal *principal);

/* Have they the same uid and socket? */
bool dlxd_principal_is_same_user(const struct dlxd_principal *a, const struct dlxd_principal *b);

/* "uid 5", or "uid 5 by socket pods" for one that connected on another socket than the main one.
 * Returns `text`. */
#define DLXD_PRINCIPAL_TEXT_SIZE 64
const char *dlxd_principal_text(uid_t uid, const char *socket, char text[DLXD_PRINCIPAL_TEXT_SIZE]);

/* 0 for the main socket; any other name has the same number in all daemons. The configuration
 * rejects two names with the same number. */
uint32_t dlxd_socket_number(const char *socket);
/* The numbers of its socket and its uid together, for the GPU keeper, which knows no names. */
uint64_t dlxd_principal_number(const struct dlxd_principal *principal);

bool dlxd_socket_is_main(const char *socket);
/* Is it a valid name of a socket or a quota class? Returns 0, or DLX_E_INVALID naming `what` it is
 * for. */
int dlxd_check_name(const char *what, const char *name);

/* True for the primary group and supplementary groups. */
bool dlxd_principal_has_group(const struct dlxd_principal *principal, gid_t gid);

#endif
