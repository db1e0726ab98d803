/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/users/quota.h"
#include "common/error.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const keys[DLXD_N_RESOURCES] = {
    [DLXD_BYTES] = "bytes",
    [DLXD_RETAINED_BYTES] = "retained-bytes",
    [DLXD_STORE_ENTRIES] = "store-entries",
    [DLXD_CONNECTIONS] = "connections",
    [DLXD_REQUESTS] = "requests-per-second",
    [DLXD_OBJECTS] = "objects",
    [DLXD_LINKS] = "links",
    [DLXD_PATTERNS] = "patterns",
    [DLXD_PENDING_JOINS] = "pending-links",
    [DLXD_FAILED] = "failed-links",
    [DLXD_GPU_BYTES] = "gpu-bytes",
    [DLXD_GPU_CALLS] = "gpu-calls",
    [DLXD_IN_FLIGHT] = "descriptors-in-flight",
    [DLXD_DESCRIPTORS] = "descriptors",
};

const char *dlxd_quota_key(enum dlxd_resource resource)
{
    return keys[resource];
}

const char *dlxd_quota_amount(enum dlxd_resource resource, uint64_t amount,
                              char text[DLXD_AMOUNT_SIZE])
{
    if (dlxd_quota_is_memory(resource))
        return dlx__amount_text(amount, text);
    (void)snprintf(text, DLXD_AMOUNT_SIZE, "%" PRIu64, amount);
    return text;
}

void dlxd_quota_defaults(uint64_t max[DLXD_N_RESOURCES], uint64_t memory_bytes)
{
    max[DLXD_BYTES] = memory_bytes / 2;
    max[DLXD_RETAINED_BYTES] = DLXD_UNLIMITED;
    max[DLXD_STORE_ENTRIES] = DLXD_UNLIMITED;
    max[DLXD_CONNECTIONS] = 4096;
    max[DLXD_REQUESTS] = DLXD_UNLIMITED;
    max[DLXD_OBJECTS] = 65536;
    max[DLXD_LINKS] = 65536;
    max[DLXD_PATTERNS] = 1024;
    max[DLXD_PENDING_JOINS] = 2048;
    max[DLXD_FAILED] = 16384;
    max[DLXD_GPU_BYTES] = DLXD_UNLIMITED;
    max[DLXD_GPU_CALLS] = 1024;
    max[DLXD_IN_FLIGHT] = DLXD_UNLIMITED;
    max[DLXD_DESCRIPTORS] = DLXD_UNLIMITED;
}

struct dlxd_quota *dlxd_quotas_add(struct dlxd_quotas *quotas, const char *name)
{
    struct dlxd_quota *more = reallocarray(quotas->items, quotas->n + 1, sizeof *more);
    if (!more)
        return NULL;
    quotas->items = more;
    struct dlxd_quota *quota = &more[quotas->n];
    *quota = (struct dlxd_quota){.name = strdup(name)};
    if (!quota->name)
        return NULL;
    quotas->n++;
    return quota;
}

int dlxd_quota_add_socket(struct dlxd_quota *quota, const char *socket)
{
    char **more = reallocarray(quota->sockets, quota->n_sockets + 1, sizeof *more);
    if (more)
        quota->sockets = more;
    if (!more || !(more[quota->n_sockets] = strdup(socket)))
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for quota \"%s\"", quota->name);
    quota->n_sockets++;
    return 0;
}

struct dlxd_quota *dlxd_quotas_find(const struct dlxd_quotas *quotas, const char *name)
{
    for (size_t i = 0; i < quotas->n; i++)
        if (strcmp(quotas->items[i].name, name) == 0)
            return &quotas->items[i];
    return NULL;
}

const struct dlxd_quota *dlxd_quotas_of_socket(const struct dlxd_quotas *quotas, const char *socket)
{
    for (size_t i = 0; quotas && i < quotas->n; i++) {
        const struct dlxd_quota *quota = &quotas->items[i];
        for (size_t s = 0; s < quota->n_sockets; s++)
            if (strcmp(quota->sockets[s], socket) == 0)
                return quota;
    }
    return NULL;
}

static void complete(struct dlxd_quota *quota, const uint64_t defaults[DLXD_N_RESOURCES])
{
    for (int i = 0; i < DLXD_N_RESOURCES; i++)
        if (!(quota->is_set & UINT32_C(1) << i))
            quota->max[i] = defaults[i];
}

void dlxd_quotas_complete(struct dlxd_quotas *quotas, const uint64_t defaults[DLXD_N_RESOURCES])
{
    struct dlxd_quota *first = dlxd_quotas_find(quotas, DLXD_QUOTA_DEFAULT);
    if (first)
        complete(first, defaults);
    for (size_t i = 0; i < quotas->n; i++)
        complete(&quotas->items[i], first ? first->max : defaults);
}

void dlxd_quotas_deinit(struct dlxd_quotas *quotas)
{
    for (size_t i = 0; i < quotas->n; i++) {
        struct dlxd_quota *quota = &quotas->items[i];
        for (size_t s = 0; s < quota->n_sockets; s++)
            free(quota->sockets[s]);
        free(quota->sockets);
        free(quota->place);
        free(quota->name);
    }
    free(quotas->items);
    *quotas = (struct dlxd_quotas){.n = 0};
}
