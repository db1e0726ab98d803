/* SPDX-License-Identifier: Apache-2.0 */
#include "measure_dlx.h"

#include <stdio.h>

void bm_check(int r, const char *what)
{
    if (r)
        bm_fail("%s: %s (%s)", what, dlx_strerror(r), dlx_errmsg());
}

struct dlx_client *bm_connect(void)
{
    struct dlx_client *c;

    bm_check(dlx_connect(NULL, &c), "dlx_connect");
    return c;
}

const char *bm_topic(const char *name, pid_t pid, char buffer[static 64])
{
    snprintf(buffer, 64, "bench/%ld/%s", (long)pid, name);
    return buffer;
}

struct dlx_tensor_spec bm_bytes(int64_t shape[static 1], size_t size)
{
    shape[0] = (int64_t)size;
    return (struct dlx_tensor_spec){
        .size = sizeof(struct dlx_tensor_spec),
        .dtype = {.code = kDLUInt, .bits = 8, .lanes = 1},
        .ndim = 1,
        .shape = shape,
    };
}

struct dlx_message *bm_take(struct dlx_subscription *s)
{
    struct dlx_message *m;

    bm_check(dlx_take(s, INT64_C(30000000000), &m), "dlx_take");
    return m;
}

struct dlx_subscription_stats bm_subscription_stats(struct dlx_subscription *s)
{
    struct dlx_subscription_stats stats = {.size = sizeof stats};

    bm_check(dlx_subscription_get_stats(s, &stats), "dlx_subscription_get_stats");
    return stats;
}

struct dlx_publisher_stats bm_publisher_stats(struct dlx_publisher *p)
{
    struct dlx_publisher_stats stats = {.size = sizeof stats};

    bm_check(dlx_publisher_get_stats(p, &stats), "dlx_publisher_get_stats");
    return stats;
}
