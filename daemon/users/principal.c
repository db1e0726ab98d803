/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/users/principal.h"
#include "common/error.h"
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* Reads a socket option of unknown size and terminates it with 0. NULL with `*size` 0: there is
 * none. */
static int get_option(int sock, int option, const char *name, char **ret, socklen_t *size)
{
    char *value = NULL;
    *size = 64;
    for (;;) {
        socklen_t room = *size;
        char *more = realloc(value, room + 1);
        if (!more) {
            free(value);
            return dlx__fail(DLX_E_NO_MEMORY, "out of memory for %s of a client", name);
        }
        value = more;
        if (getsockopt(sock, SOL_SOCKET, option, value, size) == 0) {
            value[*size] = '\0';
            *ret = value;
            return 0;
        }
        if (errno != ERANGE || *size <= room)
            break;
    }
    free(value);
    *ret = NULL;
    *size = 0;
    /* The kernel has no such option, or has no security module, or knows nothing about this
     * peer. */
    if (errno == ENOPROTOOPT || errno == ENODATA || errno == EOPNOTSUPP)
        return 0;
    return dlx__fail_errno("%s", name);
}

int dlxd_principal_new(struct dlxd_principal **ret, pid_t *ret_pid, int sock, const char *socket)
{
    struct ucred cred;
    socklen_t size = sizeof cred;
    char *groups;
    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &size) < 0)
        return dlx__fail_errno("SO_PEERCRED");
    struct dlxd_principal *principal = NULL;
    int r = dlxd_principal_new_former(&principal, cred.uid, socket);
    if (r < 0)
        return r;
    principal->gid = cred.gid;
    r = get_option(sock, SO_PEERGROUPS, "SO_PEERGROUPS", &groups, &size);
    if (r == 0) {
        principal->groups = (gid_t *)(void *)groups;
        principal->n_groups = size / sizeof(gid_t);
        r = get_option(sock, SO_PEERSEC, "SO_PEERSEC", &principal->label, &size);
    }
    if (r < 0) {
        dlxd_principal_unref(principal);
        return r;
    }
    *ret_pid = principal->pid = cred.pid;
    *ret = principal;
    return 0;
}

int dlxd_principal_new_former(struct dlxd_principal **ret, uid_t uid, const char *socket)
{
    struct dlxd_principal *principal = calloc(1, sizeof *principal);
    if (!principal)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for uid %u", (unsigned)uid);
    principal->n_refs = 1;
    principal->uid = uid;
    principal->gid = (gid_t)-1; /* a gid that nobody has */
    (void)snprintf(principal->socket, sizeof principal->socket, "%s", socket);
    *ret = principal;
    return 0;
}

struct dlxd_principal *dlxd_principal_ref(struct dlxd_principal *principal)
{
    principal->n_refs++;
    return principal;
}

struct dlxd_principal *dlxd_principal_unref(struct dlxd_principal *principal)
{
    if (principal && --principal->n_refs == 0) {
        free(principal->groups);
        free(principal->label);
        free(principal);
    }
    return NULL;
}

bool dlxd_principal_is_same_user(const struct dlxd_principal *a, const struct dlxd_principal *b)
{
    return a->uid == b->uid && strcmp(a->socket, b->socket) == 0;
}

bool dlxd_principal_has_group(const struct dlxd_principal *principal, gid_t gid)
{
    bool has = gid == principal->gid;
    for (size_t i = 0; i < principal->n_groups && !has; i++)
        has = principal->groups[i] == gid;
    return has;
}

const char *dlxd_principal_text(uid_t uid, const char *socket, char text[DLXD_PRINCIPAL_TEXT_SIZE])
{
    bool is_main = dlxd_socket_is_main(socket);
    (void)snprintf(text, DLXD_PRINCIPAL_TEXT_SIZE, "uid %u%s%s", (unsigned)uid,
                   is_main ? "" : " by socket ", is_main ? "" : socket);
    return text;
}

bool dlxd_socket_is_main(const char *socket)
{
    return strcmp(socket, DLXD_SOCKET_MAIN) == 0;
}

int dlxd_check_name(const char *what, const char *name)
{
    size_t size = strlen(name);
    bool is_valid = size > 0 && size < DLXD_SOCKET_NAME_SIZE;
    for (size_t i = 0; i < size && is_valid; i++)
        is_valid = isalnum((unsigned char)name[i]) || strchr("-_.", name[i]);
    return is_valid ? 0
                    : dlx__fail(DLX_E_INVALID,
                                "'%.80s' is no name of a %s: 1 to %d letters, digits, '-', '_' "
                                "and '.'",
                                name, what, DLXD_SOCKET_NAME_SIZE - 1);
}

/* The FNV-1a hash. */
uint32_t dlxd_socket_number(const char *socket)
{
    uint32_t hash = UINT32_C(2166136261);
    if (dlxd_socket_is_main(socket))
        return 0;
    for (; *socket; socket++)
        hash = (hash ^ (uint8_t)*socket) * UINT32_C(16777619);
    return DLX_MAX(hash, 1U);
}

uint64_t dlxd_principal_number(const struct dlxd_principal *principal)
{
    return (uint64_t)dlxd_socket_number(principal->socket) << 32 | principal->uid;
}
