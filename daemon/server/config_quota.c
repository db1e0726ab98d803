/* SPDX-License-Identifier: Apache-2.0 */
#include "common/amount.h"
#include "common/error.h"
#include "daemon/server/config_parts.h"
#include "daemon/server/memory_available.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

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

/* `memory_bytes` 0: not an amount of memory. */
static int parse_amount(const char *text, uint64_t memory_bytes, uint64_t *ret)
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
    if (is_number && memory_bytes > 0 && strcmp(rest, "%") == 0) {
        if (n == 0 || n > 100)
            return dlx__fail(DLX_E_INVALID, "'%.80s' is no part of the memory: 1%% to 100%%", text);
        *ret = memory_bytes / 100 * n;
        return 0;
    }
    if (!is_number || !find_unit(rest, memory_bytes > 0, &factor))
        return dlx__fail(DLX_E_INVALID, "'%.80s' is not " WORDS "%s", text,
                         memory_bytes > 0 ? ", or 1% to 100% of the memory" : "");
    if (__builtin_mul_overflow(n, factor, ret) || *ret == DLXD_UNLIMITED)
        return dlx__fail(DLX_E_INVALID, "'%.80s' is more than can be counted", text);
    return 0;
}

int dlxd_config_parse_memory_limit(const char *text, uint64_t *ret)
{
    uint64_t bytes = 0;
    if (parse_amount(text, dlxd_memory_available(""), &bytes) < 0 || bytes == 0 ||
        bytes > DLXD_MEMORY_LIMIT_MAX)
        return dlx__fail(DLX_E_INVALID,
                         "'%.80s' is not an amount of memory, like 8GiB, 512MiB or 70%%", text);
    *ret = bytes;
    return 0;
}

void dlxd_config_limit_memory(struct dlxd_config *config, uint64_t bytes)
{
    uint64_t defaults[DLXD_N_RESOURCES];
    config->shared_bytes = 2 * bytes;
    dlxd_quota_defaults(defaults, config->shared_bytes);
    dlxd_quotas_complete(&config->quotas, defaults);
}

int dlxd_config_add_quota(struct dlxd_config *config, const char *name, const char *place)
{
    int r = dlxd_check_name("quota", name);
    if (r < 0 || dlxd_quotas_find(&config->quotas, name)) /* a later file adds to it */
        return r;
    struct dlxd_quota *quota = dlxd_quotas_add(&config->quotas, name);
    if (quota)
        quota->place = strdup(place);
    return quota && quota->place ? 0
                                 : dlx__fail(DLX_E_NO_MEMORY, "out of memory for quota %s", name);
}

static int fail_key(const char *key)
{
    char keys[256] = "";
    for (int i = 0; i < DLXD_N_RESOURCES; i++) {
        size_t n = strlen(keys);
        (void)snprintf(keys + n, sizeof keys - n, "%s%s", i > 0 ? ", " : "",
                       dlxd_quota_key((enum dlxd_resource)i));
    }
    return dlx__fail(DLX_E_INVALID, "a quota has no '%.80s': %s", key, keys);
}

int dlxd_config_set_in_quota(struct dlxd_config *config, const char *name, const char *key,
                             const char *value)
{
    struct dlxd_quota *quota = dlxd_quotas_find(&config->quotas, name);
    int resource = 0;
    if (!quota)
        return dlx__fail(DLX_E_INVALID, "'[quota %.80s]' has to begin its line", name);
    while (resource < DLXD_N_RESOURCES &&
           strcmp(key, dlxd_quota_key((enum dlxd_resource)resource)) != 0)
        resource++;
    if (resource == DLXD_N_RESOURCES)
        return fail_key(key);
    bool is_memory = dlxd_quota_is_memory((enum dlxd_resource)resource);
    int r = parse_amount(value, is_memory ? config->memory_bytes : 0, &quota->max[resource]);
    if (r == 0 && resource == DLXD_REQUESTS && quota->max[resource] == 0)
        r = dlx__fail(DLX_E_INVALID, "%s is 0, and a request would wait for ever: 1 is the least",
                      key);
    if (r == 0)
        quota->is_set |= UINT32_C(1) << resource;
    return r;
}

int dlxd_config_finish_quotas(struct dlxd_config *config)
{
    uint64_t defaults[DLXD_N_RESOURCES];
    dlxd_quota_defaults(defaults, config->shared_bytes);
    dlxd_quotas_complete(&config->quotas, defaults);
    for (size_t i = 0; i < config->n_sockets; i++) {
        const struct dlxd_config_socket *socket = &config->sockets[i];
        if (!socket->quota || strcmp(socket->quota, DLXD_QUOTA_DEFAULT) == 0)
            continue;
        struct dlxd_quota *quota = dlxd_quotas_find(&config->quotas, socket->quota);
        if (!quota)
            return dlx__fail(DLX_E_INVALID, "%s: socket %s has quota '%s': there is no [quota %s]",
                             socket->place, socket->name, socket->quota, socket->quota);
        int r = dlxd_quota_add_socket(quota, socket->name);
        if (r < 0)
            return r;
    }
    return 0;
}
