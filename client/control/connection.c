/* SPDX-License-Identifier: Apache-2.0 */
#include "client/control/connection.h"
#include "client/base/misuse.h"
#include "client/control/call.h"
#include "client/control/call_wire.h"
#include "client/control/former.h"
#include <string.h>

static void client_free(struct dlx_client *c)
{
    dlx__close(c->sock);
    dlx__call_free(c->call);
    dlx__peers_deinit(&c->peers);
    dlx__mapped_unref(c->mapped);
    dlx__release_handle(c, &c->generation);
}

enum dlx_daemon_place dlx_client_daemon_place(const struct dlx_client *c)
{
    return (enum dlx_daemon_place)c->path_kind;
}

const char *dlx_client_refused_by(const struct dlx_client *c)
{
    return c->refused_by;
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

static int connect_again(struct dlx_client *c, enum dlx_hurry hurry)
{
    c->next_try_ns = dlx__now_ns() + DLX_RECONNECT_NS;
    int r =
        dlx__call_open_within(c, hurry == DLX_HURRY_AT_ONCE ? c->timeout_ns : DLX_CALL_HURRY_NS);
    if (r == 0) {
        r = dlx__call_greet_within(
            c, c->name, hurry == DLX_HURRY_AT_ONCE ? c->timeout_ns : DLX_RECONNECT_PATIENCE_NS);
        if (r < 0)
            c->sock = dlx__close(c->sock);
    }
    if (r == 0) {
        c->next_try_ns = 0; /* if this daemon ends soon, too, the next one is found at once */
        atomic_fetch_add_explicit(&c->epoch, 1, memory_order_release);
        dlx__former_tell(c);
    }
    if (r == DLX_E_ACCESS) /* it is there, and its rules change rarely */
        c->next_try_ns = dlx__now_ns() + DLX_LOOK_NS;
    return r;
}

int dlx__client_reconnect(struct dlx_client *c, uint64_t epoch, enum dlx_hurry hurry)
{
    int r = dlx__call_lock_within(c, hurry == DLX_HURRY_NOW_AND_THEN ? 0 : DLX_CALL_HURRY_NS);
    if (r < 0)
        return r;
    if (hurry == DLX_HURRY_NOW_AND_THEN && dlx__now_ns() < c->next_try_ns) {
        r = DLX_E_TIMEOUT;
    } else if (!dlx__socket_is_lost(c->sock)) {
        /* Somebody else has made it, or it is not lost. */
        r = atomic_load_explicit(&c->epoch, memory_order_relaxed) != epoch ? 0 : DLX_E_IN_USE;
    } else {
        dlx__call_hear_goodbye(c);
        c->sock = dlx__close(c->sock);
        r = connect_again(c, hurry);
    }
    dlx__lock_release(&c->lock);
    return r;
}

int dlx__client_goodbye(struct dlx_client *c, char text[static DLX_ERROR_TEXT_SIZE])
{
    text[0] = '\0';
    if (dlx__call_lock_within(c, 0) < 0)
        return 0;
    dlx__call_hear_goodbye(c);
    int code = c->goodbye;
    if (code < 0)
        memcpy(text, c->goodbye_text, sizeof c->goodbye_text);
    dlx__lock_release(&c->lock);
    return code;
}

int dlx__client_ensure(struct dlx_client *c)
{
    int r = dlx__client_reconnect(c, atomic_load_explicit(&c->epoch, memory_order_acquire),
                                  DLX_HURRY_AT_ONCE);
    if (r == DLX_E_INTERRUPTED)
        return r;
    dlx__error_clear(); /* the call itself will say what is wrong */
    return 0;
}
