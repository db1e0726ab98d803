/* SPDX-License-Identifier: Apache-2.0 */

/* A worker of a group: its claims, and how they end. */

#include "client/message/worker.h"
#include "client/base/misuse.h"
#include "common/error.h"
#include "common/memory.h"
#include "common/topic.h"
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* ---- the worker ---------------------------------------------------------------------------- */

static int check_worker(const struct dlx_subscribe_args *args)
{
    int r = dlx__group_check(args->group);
    if (r == 0 && args->dead_letters)
        r = dlx__topic_check(args->dead_letters);
    if (r < 0)
        return r;
    if (args->mode != DLX_MODE_ALL)
        return dlx__fail(DLX_E_INVALID,
                         "mode LATEST passes messages over, so it cannot be in a group (%s)",
                         args->group);
    if (args->history != 0 && args->history != DLX_HISTORY_NONE)
        return dlx__fail(DLX_E_INVALID,
                         "group %s begins with its first worker, so there is no history (%u)",
                         args->group, args->history);
    if (args->lease_ns < 0)
        return dlx__fail(DLX_E_INVALID, "lease_ns %" PRId64, args->lease_ns);
    if (args->max_attempts > DLX_SHM_ATTEMPTS_MAX)
        return dlx__fail(DLX_E_INVALID, "max_attempts %u must be at most %u", args->max_attempts,
                         DLX_SHM_ATTEMPTS_MAX);
    return 0;
}

int dlx__worker_new(const struct dlx_subscribe_args *args, struct dlx_worker **ret)
{
    int r = check_worker(args);
    if (r < 0)
        return r;
    struct dlx_worker *worker = calloc(1, sizeof *worker);
    if (worker && args->dead_letters)
        worker->dead_letters = strdup(args->dead_letters);
    if (!worker || (args->dead_letters && !worker->dead_letters)) {
        free(worker);
        return dlx__fail(DLX_E_NO_MEMORY, "state of a worker");
    }
    atomic_init(&worker->refs, 1);
    worker->max_claims = args->max_held ? args->max_held : 1;
    worker->lease_ns = (uint64_t)args->lease_ns;
    worker->max_attempts = args->max_attempts ? args->max_attempts : DLX_SHM_ATTEMPTS_DEFAULT;
    worker->timer = -1;
    memcpy(worker->group, args->group, strlen(args->group) + 1);
    *ret = worker;
    return 0;
}

struct dlx_worker *dlx__worker_unref(struct dlx_worker *worker)
{
    if (worker && atomic_fetch_sub_explicit(&worker->refs, 1, memory_order_acq_rel) == 1) {
        dlx__close(worker->timer);
        free(worker->dead_letters);
        free(worker);
    }
    return NULL;
}

/* For the thread that takes. */
static uint32_t n_claims(const struct dlx_worker *worker)
{
    return (uint32_t)(worker->n_claimed - atomic_load(&worker->n_ended));
}

void dlx__worker_stats(const struct dlx_worker *worker, struct dlx_subscription_stats *ret)
{
    uint64_t n_ended = atomic_load(&worker->n_ended);
    ret->n_claimed = (uint32_t)(worker->n_claimed - n_ended);
    ret->done = n_ended - atomic_load(&worker->n_undone);
    ret->redelivered = worker->n_redelivered;
    ret->dead = worker->n_dead;
}

/* ---- what a link has of its group ---------------------------------------------------------- */

void dlx__worker_link_ring(const struct dlx_worker_link *claims)
{
    const struct itimerspec once = {.it_value = {.tv_nsec = 1}};
    (void)timerfd_settime(claims->bell, 0, &once, NULL);
}

static void ring_group(void *userdata)
{
    dlx__worker_link_ring(userdata);
}

/* A worker has a lock on its byte for as long as it maps the page: its process lives, or nothing of
 * it can write there any more. */
static bool is_alive(void *userdata, uint32_t owner)
{
    const struct dlx_worker_link *claims = userdata;
    return dlx__region_is_owned(claims->probe, owner);
}

static const struct dlx_claims_env claims_env = {.ring_group = ring_group, .is_alive = is_alive};

struct dlx_worker_link *dlx__worker_link_free(struct dlx_worker_link *claims)
{
    if (!claims)
        return NULL;
    dlx__claims_deinit(&claims->core);
    dlx__region_unmap(claims->page, claims->page_size);
    if (claims->bell >= 0) /* now that the lock is gone: what is undone is to be taken again */
        dlx__worker_link_ring(claims);
    dlx__close(claims->probe);
    dlx__close(claims->bell);
    dlx__worker_unref(claims->worker);
    free(claims);
    return NULL;
}

int dlx__worker_link_new(struct dlx_worker *worker, struct dlx_reader *reader, uint32_t owner,
                         uint64_t page_size, int take_fds[3], struct dlx_worker_link **ret)
{
    uint32_t n_entries = dlx__reader_n_entries(reader);
    dlx_cleanup(dlx__closep) int fd = dlx__steal_fd(&take_fds[0]);
    dlx_cleanup(dlx__closep) int probe = dlx__steal_fd(&take_fds[1]);
    dlx_cleanup(dlx__closep) int bell = dlx__steal_fd(&take_fds[2]);
    if (!worker || owner == 0 || owner > DLX_SHM_OWNERS_MAX ||
        page_size != dlx_shm_claims_size(n_entries))
        return dlx__fail(DLX_E_PROTOCOL,
                         "LinkOpen of worker %u with a claims page of %" PRIu64
                         " bytes for %u entries",
                         owner, page_size, n_entries);
    struct dlx_worker_link *claims = calloc(1, sizeof *claims);
    if (!claims)
        return dlx__fail(DLX_E_NO_MEMORY, "state of a worker");
    claims->probe = claims->bell = -1;
    claims->page_size = page_size;
    claims->worker = worker;
    atomic_fetch_add_explicit(&worker->refs, 1, memory_order_relaxed);
    int r = dlx__region_share(dlx__steal_fd(&fd), page_size, (void **)&claims->page);
    if (r == 0)
        r = dlx__claims_init(&claims->core, reader, claims->page, owner, worker->lease_ns,
                             worker->max_attempts, &claims_env, claims);
    if (r < 0) {
        dlx__worker_link_free(claims);
        return r;
    }
    claims->probe = dlx__steal_fd(&probe);
    claims->bell = dlx__steal_fd(&bell);
    claims->looks = true; /* for what the dead had before this worker came */
    *ret = claims;
    return 0;
}

static struct timespec timespec_of(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000),
                             .tv_nsec = (long)(ns % 1000000000)};
}

void dlx__worker_set_timer(const struct dlx_worker *worker, uint64_t first_ns)
{
    uint64_t every = DLX_WORKER_LOOK_NS;
    if (worker->lease_ns > 0)
        every = DLX_MIN(every, DLX_MAX(worker->lease_ns / 2, DLX_WORKER_LOOK_MIN_NS));
    const struct itimerspec often = {.it_interval = timespec_of(every),
                                     .it_value = timespec_of(first_ns ? first_ns : every)};
    (void)timerfd_settime(worker->timer, 0, &often, NULL);
}

static void count_end(struct dlx_worker *worker, bool done)
{
    if (dlx_unlikely(!done))
        atomic_fetch_add(&worker->n_undone, 1);
    /* Sequentially consistent: `n_ended`, then `sleeps_full`. */
    atomic_fetch_add(&worker->n_ended, 1);
    if (dlx_unlikely(atomic_load(&worker->sleeps_full)))
        dlx__worker_set_timer(worker, 1);
}

void dlx__worker_link_set_stuck(struct dlx_worker_link *claims, uint32_t n)
{
    claims->worker->n_stuck += n - claims->n_stuck;
    claims->n_stuck = n;
}

/* How many more may be claimed? What is stuck may come to be one too many. */
static uint32_t room_of(const struct dlx_worker *worker)
{
    uint32_t has = n_claims(worker), most = worker->max_claims + worker->n_stuck;
    return most > has ? most - has : 0;
}

bool dlx__worker_sleeps_full(struct dlx_worker *worker)
{
    atomic_store(&worker->sleeps_full, true);
    bool is_full = room_of(worker) == 0;
    if (!is_full)
        atomic_store(&worker->sleeps_full, false);
    return is_full;
}

void dlx__worker_link_look(struct dlx_worker_link *claims)
{
    if (!claims->looks)
        return;
    claims->looks = false;
    (void)dlx__claims_look(&claims->core, dlx__now_ns());
}

int dlx__worker_link_take(struct dlx_worker_link *claims, struct dlx_taken *ret, uint32_t n)
{
    struct dlx_worker *worker = claims->worker;
    uint32_t room = room_of(worker);
    dlx__worker_link_look(claims);
    int got = dlx__claims_take(&claims->core, ret, DLX_MIN(n, room));
    worker->n_claimed += got > 0 ? (uint64_t)got : 0;
    if (got == DLX_E_TOO_MANY_HELD && room == 0)
        return dlx__fail(got,
                         "%u messages of group %s are neither done nor given back, the limit of "
                         "this subscription (max_held): dlx_message_done(), or subscribe with a "
                         "larger max_held",
                         n_claims(worker), worker->group);
    return got;
}

void dlx__worker_link_drop(struct dlx_worker_link *claims, const struct dlx_taken *taken)
{
    (void)dlx__claims_settle(&claims->core, taken->n, taken->claim, DLX_CLAIM_RETURNED);
    count_end(claims->worker, false);
}

/* ---- a claim ------------------------------------------------------------------------------- */

void dlx__worker_claim_begin(struct dlx_worker_claim *claim, const struct dlx_taken *taken)
{
    claim->n = taken->n;
    claim->cell = taken->claim;
    atomic_store_explicit(&claim->is_settled, false, memory_order_relaxed);
    atomic_store_explicit(&claim->done_at_release, false, memory_order_relaxed);
}

static bool is_claim_done(const struct dlx_worker_link *claims,
                          const struct dlx_worker_claim *claim)
{
    return dlx__claims_state(&claims->core, claim->n, claim->cell) == DLX_SHM_CELL_DONE;
}

const char *dlx__worker_claim_why(const struct dlx_worker_link *claims,
                                  const struct dlx_worker_claim *claim)
{
    bool was_settled = atomic_load_explicit(&claim->is_settled, memory_order_acquire);
    if (is_claim_done(claims, claim))
        return "it was said to be done";
    return was_settled ? "it was given back" : "its lease ended, or its publisher dropped it";
}

/* The thread whose store in the cell ends the claim counts that. If others have ended it, the first
 * thread that notices does. */

const char *dlx__worker_claim_return(struct dlx_worker_link *claims, struct dlx_worker_claim *claim)
{
    const char *why = dlx__worker_claim_why(claims, claim); /* before it is given back here */
    if (atomic_exchange_explicit(&claim->is_settled, true, memory_order_acq_rel))
        return why;
    bool was_ours = dlx__claims_settle(&claims->core, claim->n, claim->cell, DLX_CLAIM_RETURNED);
    if (was_ours || !is_claim_done(claims, claim))
        count_end(claims->worker, false);
    return was_ours ? NULL : why;
}

const char *dlx__worker_claim_done(struct dlx_worker_link *claims, struct dlx_worker_claim *claim,
                                   enum dlx_claim_end end)
{
    if (dlx_likely(dlx__claims_settle(&claims->core, claim->n, claim->cell, end))) {
        atomic_store_explicit(&claim->is_settled, true, memory_order_release);
        count_end(claims->worker, end == DLX_CLAIM_DONE);
        return NULL;
    }
    if (is_claim_done(claims, claim))
        return NULL;
    const char *why = dlx__worker_claim_why(claims, claim);
    if (!atomic_exchange_explicit(&claim->is_settled, true, memory_order_acq_rel))
        count_end(claims->worker, false);
    return why;
}

void dlx__worker_claim_let_go(struct dlx_worker_link *claims, struct dlx_worker_claim *claim)
{
    if (atomic_load_explicit(&claim->is_settled, memory_order_acquire))
        return;
    if (atomic_load_explicit(&claim->done_at_release, memory_order_relaxed))
        (void)dlx__worker_claim_done(claims, claim, DLX_CLAIM_DONE);
    else
        (void)dlx__worker_claim_return(claims, claim);
}
