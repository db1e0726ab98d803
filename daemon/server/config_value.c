/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/config_value.h"
#include "common/error.h"
#include "common/memory.h"
#include "daemon/server/memory_available.h"
#include "daemon/users/policy.h"
#include "daemon/users/quota.h"
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>

static bool parse_number(const char *text, unsigned long end, unsigned long *ret)
{
    char *rest;
    *ret = strtoul(text, &rest, 10);
    return *text >= '0' && *text <= '9' && !*rest && *ret < end;
}

/* A name takes precedence over a number, as in chown(1). */
int dlxd_config_parse_user(const char *text, uid_t *ret)
{
    const struct passwd *user = getpwnam(text);
    unsigned long uid = user ? user->pw_uid : 0;
    if (!user && !parse_number(text, (uid_t)-1, &uid))
        return dlx__fail(DLX_E_INVALID, "there is no user '%.80s'", text);
    if (uid == DLXD_OVERFLOW_UID)
        return dlx__fail(DLX_E_INVALID,
                         "uid %lu stands for users without a number, and has no rights", uid);
    *ret = (uid_t)uid;
    return 0;
}

int dlxd_config_parse_group(const char *text, gid_t *ret)
{
    const struct group *group = getgrnam(text);
    unsigned long gid = group ? group->gr_gid : 0;
    if (!group && !parse_number(text, (gid_t)-1, &gid))
        return dlx__fail(DLX_E_INVALID,
                         "there is no group '%.80s': make it with groupadd(8), or name "
                         "one that exists",
                         text);
    *ret = (gid_t)gid;
    return 0;
}

int dlxd_config_parse_count(const char *text, int32_t *ret)
{
    unsigned long n;
    if (!parse_number(text, DLXD_FD_STORE_MAX + 1, &n))
        return dlx__fail(DLX_E_INVALID, "'%.80s' is not a number from 0 to %d", text,
                         DLXD_FD_STORE_MAX);
    *ret = (int32_t)n;
    return 0;
}

int dlxd_config_parse_mode(const char *text, mode_t *ret)
{
    char *rest;
    unsigned long mode = strtoul(text, &rest, 8);
    if (*text < '0' || *text > '7' || *rest || mode == 0 || mode > 0777)
        return dlx__fail(DLX_E_INVALID, "'%.80s' is no mode of a file: 1 to 0777, in octal", text);
    *ret = (mode_t)mode;
    return 0;
}

int dlxd_config_parse_memory(const char *name, const struct dlx_memory **ret)
{
    *ret = dlx__memory_by_name(name);
    return *ret ? 0
                : dlx__fail(DLX_E_INVALID, "there is no memory of the kind '%.80s': memfd, posix",
                            name);
}

int dlxd_config_parse_path(const char *text, char **path)
{
    if (text[0] != '/')
        return dlx__fail(DLX_E_INVALID, "socket '%.80s' is no path that begins with /", text);
    free(*path);
    *path = strdup(text);
    return *path ? 0 : dlx__fail(DLX_E_NO_MEMORY, "out of memory for a path");
}

#define WORDS "a number, perhaps with K, M, G, T, Ki, Mi, Gi or Ti after it, or infinity"

/* Parses "Gi"; for memory also "GiB". */
static bool find_unit(const char *text, bool is_memory, uint64_t *ret)
{
    static const struct {
        const char *text;
        uint64_t factor;
    } units[] = {{"", 1},
                 {"K", 1000},
                 {"M", 1000000},
                 {"G", 1000000000},
                 {"T", 1000000000000},
                 {"Ki", UINT64_C(1) << 10},
                 {"Mi", UINT64_C(1) << 20},
                 {"Gi", UINT64_C(1) << 30},
                 {"Ti", UINT64_C(1) << 40}};
    size_t size = strlen(text);
    if (is_memory && size > 0 && text[size - 1] == 'B')
        size--;
    for (size_t i = 0; i < DLX_ARRAY_SIZE(units); i++)
        if (strlen(units[i].text) == size && strncmp(units[i].text, text, size) == 0) {
            *ret = units[i].factor;
            return true;
        }
    return false;
}

int dlxd_config_parse_amount(const char *text, bool is_memory, uint64_t whole, uint64_t *ret)
{
    char *rest;
    uint64_t factor = 0;
    if (strcmp(text, "infinity") == 0) {
        *ret = DLXD_UNLIMITED;
        return 0;
    }
    errno = 0;
    unsigned long long n = strtoull(text, &rest, 10);
    bool is_number = *text >= '0' && *text <= '9' && errno == 0;
    if (is_number && whole > 0 && strcmp(rest, "%") == 0) {
        if (n == 0 || n > 100)
            return dlx__fail(DLX_E_INVALID, "'%.80s' is no part of the memory: 1%% to 100%%", text);
        *ret = whole / 100 * n;
        return 0;
    }
    if (!is_number || !find_unit(rest, is_memory, &factor))
        return dlx__fail(DLX_E_INVALID, "'%.80s' is not " WORDS "%s", text,
                         whole > 0 ? ", or 1% to 100% of the memory" : "");
    if (__builtin_mul_overflow(n, factor, ret) || *ret == DLXD_UNLIMITED)
        return dlx__fail(DLX_E_INVALID, "'%.80s' is more than can be counted", text);
    return 0;
}

int dlxd_config_parse_memory_limit(const char *text, uint64_t *ret)
{
    uint64_t bytes = 0;
    if (dlxd_config_parse_amount(text, true, dlxd_memory_available(""), &bytes) < 0 || bytes == 0 ||
        bytes > DLXD_MEMORY_LIMIT_MAX)
        return dlx__fail(DLX_E_INVALID,
                         "'%.80s' is not an amount of memory, like 8GiB, 512MiB or 70%%", text);
    *ret = bytes;
    return 0;
}
