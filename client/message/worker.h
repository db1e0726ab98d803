/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_WORKER_H
#define DLX_CLIENT_WORKER_H

/*
 * A subscription as a worker of a group, and what each of its links has for that: the claims page,
 * and the group's bell. ring/claims.h has the protocol, client/subscribe/take.c takes.
 */

#include "client/base/clock.h"
#include "ring/claims.h"
#include <dlx/dlx.h>
#include <stdatomic.h>

/* A worker that waits looks again at least so often: the worker that was rung for a message may be
 * stopped. With a short lease, a worker looks twice in it. */
#define DLX_WORKER_LOOK_NS     UINT64_C(1000000000)
#define DLX_WORKER_LOOK_MIN_NS UINT64_C(1000000)

/* Shared by a subscription, its links, and so by messages that outlive both. */
struct dlx_worker {
    atomic_uint refs;
    uint32_t max_claims;       /* max_held of the subscription */
    uint64_t n_claimed;        /* messages that it had, or has */
    _Atomic uint64_t n_ended;  /* of these, those that are done, were given back or lost */
    _Atomic uint64_t n_undone; /* of these, those that are not done */
    uint64_t lease_ns;
    uint32_t max_attempts;
    char group[DLX_SHM_GROUP_NAME_MAX + 1];
    char *dead_letters;          /* a topic; NULL: none */
    struct dlx_publisher *grave; /* on that topic; NULL: not needed yet */
    /* client/subscribe/dead_letter.h; NULL: no topic */
    const char *(*copy_dead)(struct dlx_worker *worker, struct dlx_client *c,
                             struct dlx_message *m);
    uint64_t n_redelivered;
    uint64_t n_dead;
    int timer; /* in the epoll of the subscription: rings once a second, and when it is full */
    struct dlx_clock clock;
    uint64_t clock_at;       /* the take before which it looks at the clock next */
    uint64_t asked_ns;       /* what the clock said last */
    uint64_t looked_ns;      /* for bells, by that clock */
    atomic_bool sleeps_full; /* it waits, and may claim nothing before one of its claims ends */
    uint32_t n_stuck;        /* claims whose memory is not here yet: they keep it from no other */
    bool is_armed;           /* its publishers may ring it */
    bool was_rung;           /* it woke up, and has claimed nothing since */
};

/* What a link has of its group. */
struct dlx_worker_link {
    struct dlx_claims core;
    struct dlx_worker *worker;
    struct dlx_shm_claims *page;
    uint64_t page_size;
    int probe;        /* asks for the locks of other workers */
    int bell;         /* of the group: a timerfd, which no worker reads */
    bool looks;       /* the next take looks at what others have */
    uint32_t n_turns; /* how often it came first since the last look at all links */
    uint32_t n_stuck;
};

/* Returns 0; DLX_E_INVALID (a name that is none, numbers that cannot be), DLX_E_NO_MEMORY. */
int dlx__worker_new(const struct dlx_subscribe_args *args, struct dlx_worker **ret);
/* NULL is fine. */
struct dlx_worker *dlx__worker_unref(struct dlx_worker *worker);

/* Has its timer ring `first_ns` from now, and then as often as it looks. 0: that is soon enough.
 * Any thread. */
void dlx__worker_set_timer(const struct dlx_worker *worker, uint64_t first_ns);

/* May it claim nothing more? Then it wakes up when one of its claims ends. */
bool dlx__worker_sleeps_full(struct dlx_worker *worker);

/* Adds what it has counted to those of its subscription. */
void dlx__worker_stats(const struct dlx_worker *worker, struct dlx_subscription_stats *ret);

/* For a reader that was initialised: its link is of a worker. Takes the three descriptors of the
 * claims page and bell, also on failure. Returns 0; DLX_E_PROTOCOL; a lack
 * (dlx__error_is_lack()). */
int dlx__worker_link_new(struct dlx_worker *worker, struct dlx_reader *reader, uint32_t owner,
                         uint64_t page_size, int take_fds[3], struct dlx_worker_link **ret);
/* NULL is fine. */
struct dlx_worker_link *dlx__worker_link_free(struct dlx_worker_link *claims);

/* Rings all workers of the group. Any thread. */
void dlx__worker_link_ring(const struct dlx_worker_link *claims);

/* Gives back what dead workers had, and what leases end, if it is time to look. */
void dlx__worker_link_look(struct dlx_worker_link *claims);

/* As dlx__reader_take(), for up to `n` messages, and no more than the worker may have. */
int dlx__worker_link_take(struct dlx_worker_link *claims, struct dlx_taken *ret, uint32_t n);

/* So many of the link's claims cannot be read yet. */
void dlx__worker_link_set_stuck(struct dlx_worker_link *claims, uint32_t n);

/* Gives back a claim that was not handed out. */
void dlx__worker_link_drop(struct dlx_worker_link *claims, const struct dlx_taken *taken);

/* What a message has of its claim. Any thread may end it. */
struct dlx_worker_claim {
    uint64_t n;
    uint64_t cell;               /* as it was claimed */
    atomic_bool is_settled;      /* it is done or given back, or was lost */
    atomic_bool done_at_release; /* the last release says that it is done */
};

void dlx__worker_claim_begin(struct dlx_worker_claim *claim, const struct dlx_taken *taken);
/* Says that the message is done, or dead. Returns NULL, also if that was said before; or why it was
 * not this worker's any more. */
const char *dlx__worker_claim_done(struct dlx_worker_link *claims, struct dlx_worker_claim *claim,
                                   enum dlx_claim_end end);
/* Gives it back. Returns NULL; or why it was not this worker's. */
const char *dlx__worker_claim_return(struct dlx_worker_link *claims,
                                     struct dlx_worker_claim *claim);
/* Why is it not this worker's any more? */
const char *dlx__worker_claim_why(const struct dlx_worker_link *claims,
                                  const struct dlx_worker_claim *claim);
/* The last reference to its message goes: what is not done is given back. */
void dlx__worker_claim_let_go(struct dlx_worker_link *claims, struct dlx_worker_claim *claim);

#endif
