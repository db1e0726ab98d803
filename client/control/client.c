/* SPDX-License-Identifier: Apache-2.0 */
#include "client/control/client.h"
#include "client/base/misuse.h"
#include "client/control/call.h"

static void client_free(struct dlx_client *c)
{
    dlx__close(c->sock);
    dlx__call_free(c->call);
    dlx__peers_deinit(&c->peers);
    dlx__mapped_unref(c->mapped);
    dlx__release_handle(c, &c->generation);
}

enum dlx_daemon_place dlx_client_place(const struct dlx_client *c)
{
    return (enum dlx_daemon_place)c->path_kind;
}

const char *dlx_client_passed_over(const struct dlx_client *c)
{
    return c->passed_over;
}

struct dlx_client *dlx__client_ref(struct dlx_client *c)
{
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    return c;
}

void dlx__client_unref(struct dlx_client *c)
{
    if (c && !dlx__forked(c->generation) &&
        atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) == 1)
        client_free(c);
}

/* The caller has one reference; the others are those of publishers, subscriptions and messages. */
struct dlx_client *dlx_client_unref(struct dlx_client *c)
{
    static const char call[] = "dlx_client_unref()";
    if (!c)
        return NULL;
    if (dlx__forked(c->generation))
        dlx__check_released(c->generation, call);
    else if (!atomic_exchange_explicit(&c->is_released, true, memory_order_acq_rel))
        dlx__client_unref(c);
    else
        dlx__check_released(DLX_RELEASED, call);
    return NULL;
}
