/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The edges of the daemon, in the place of daemon/base/watch.c, daemon/base/worker.c and
 * daemon/persist/notify.c: readiness comes in the seed's order, one socket or job at a time, and
 * the service manager is an array of descriptors.
 */

#include "daemon/persist/notify.h"
#include "daemon/objects/offer.h"
#include "daemon/base/watch.h"
#include "daemon/base/worker.h"
#include "tests/daemon/sim_daemon/sim.h"

struct dlxd_watch {
    int fd, events;
    dlxd_watch_fn *fn;
    void *data;
};

enum { WATCHES = 2 * PROCS + SUBS + 2 * PUBS + 2 * PROCS };
static struct dlxd_watch watches[WATCHES];

int dlxd_watches_new(struct dlxd_watches **ret, struct uv_loop_s *loop)
{
    (void)loop;
    *ret = NULL;
    return 0;
}

struct dlxd_watches *dlxd_watches_free(struct dlxd_watches *all)
{
    (void)all;
    for (int i = 0; i < WATCHES; i++)
        MUST(!watches[i].fn, "descriptor %d is still watched", watches[i].fd);
    return NULL;
}

int dlxd_watch_new(struct dlxd_watch **ret, struct dlxd_watches *all, int fd, int events,
                   dlxd_watch_fn *fn, void *data)
{
    int i = 0;
    (void)all;
    if (sim_refuse())
        return dlx__fail(DLX_E_NO_MEMORY, "watching a file descriptor");
    while (i < WATCHES && watches[i].fn)
        i++;
    MUST(i < WATCHES, "more is watched than there can be");
    watches[i] = (struct dlxd_watch){.fd = fd, .events = events, .fn = fn, .data = data};
    *ret = &watches[i];
    return 0;
}

void dlxd_watch_set(struct dlxd_watch *watch, int events)
{
    watch->events = events;
}

struct dlxd_watch *dlxd_watch_free(struct dlxd_watch *watch)
{
    if (watch)
        *watch = (struct dlxd_watch){.fd = -1};
    return NULL;
}

/* A client has two watches, of its socket and of its process; what a dead one left, that of the
 * process only. */
static struct pub *look_for_death(const struct dlxd_watch *watch)
{
    bool is_client = false;
    for (int i = 0; i < WATCHES; i++)
        is_client |= &watches[i] != watch && watches[i].fn && watches[i].data == watch->data;
    return w.fds[watch->fd].kind == FD_PIDFD && !is_client
               ? on_death_seen(dlxd_publisher_id(watch->data))
               : NULL;
}

/* At once, before anybody is told: so it is known what was refused. */
void edge_offer(struct pub *p)
{
    struct dlxd_publisher *theirs = their_publisher(p->id);
    w.is_behind = true;
    while (dlxd_offering_step(theirs))
        ;
    w.inside = false;
    pub_offer(p, false);
    catch_up();
    w.inside = true;
}

static void dispatch(const struct dlxd_watch *watch, int events)
{
    if (w.fds[watch->fd].kind == FD_SUB && (events & DLXD_WRITABLE))
        ((struct sub *)w.fds[watch->fd].of)->stalled = 0;
    struct pub *revealed = look_for_death(watch);
    w.inside = true;
    w.faults = 0;
    watch->fn(watch->data, events);
    if (revealed)
        edge_offer(revealed);
    life_rest();
}

struct job {
    dlxd_job_fn *run, *done;
    void *data;
    struct proc *proc; /* whose request waits for it; NULL: none */
    uint64_t link;     /* whose page it is about; 0: none */
};

enum { JOBS = LINKS + PROCS };
static struct job jobs[JOBS];
static int n_jobs;

int dlxd_workers_new(struct dlxd_workers **ret, struct uv_loop_s *loop)
{
    (void)loop;
    *ret = NULL;
    return 0;
}

int dlxd_workers_run(struct dlxd_workers *workers, const struct dlxd_user *whose, dlxd_job_fn *run,
                     dlxd_job_fn *done, void *data)
{
    (void)workers;
    (void)whose;
    if (sim_refuse())
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for a job");
    MUST(n_jobs < JOBS, "more jobs than there can be");
    jobs[n_jobs++] = (struct job){run, done, data, w.asker, w.link_ready};
    if (w.asker)
        request_proves();
    else
        MUST(w.link_ready > 0, "a job for nobody");
    return 0;
}

/* As if the worker had done it. */
static void run_job(int i)
{
    struct job job = jobs[i];
    jobs[i] = jobs[--n_jobs];
    struct link *l = job.link ? link_by_id(job.link) : NULL;
    w.faults = 0;
    if (job.proc)
        request_goes_on(job.proc);
    if (l && l->state == LINK_PROVING)
        l->state = LINK_READY;
    w.inside = true;
    w.looks_at_page = job.link > 0;
    job.run(job.data);
    w.looks_at_page = false;
    job.done(job.data);
    life_rest();
}

struct dlxd_workers *dlxd_workers_free(struct dlxd_workers *workers)
{
    (void)workers;
    while (n_jobs > 0) {
        struct job job = jobs[--n_jobs];
        job.run(job.data);
        job.done(job.data);
    }
    return NULL;
}

int dlxd_workers_close(struct dlxd_workers *workers, const struct dlxd_user *whose, int fd)
{
    (void)workers;
    (void)whose;
    return dlx__close(fd);
}

int dlxd_workers_close_socket(struct dlxd_workers *workers, const struct dlxd_user *whose, int fd)
{
    return dlxd_workers_close(workers, whose, fd);
}

void edge_abandon(const struct proc *c)
{
    for (int i = 0; i < n_jobs; i++)
        if (jobs[i].proc == c)
            jobs[i].proc = NULL;
}

int edge_n_abandoned(void)
{
    int n = 0;
    for (int i = 0; i < n_jobs; i++) {
        const struct link *l = jobs[i].link ? link_by_id(jobs[i].link) : NULL;
        n += !jobs[i].proc && !(l && l->state == LINK_PROVING);
    }
    return n;
}

bool edge_pump(void)
{
    struct pollfd polls[WATCHES];
    int at[WATCHES], n = 0, n_ready = 0;
    for (int i = 0; i < WATCHES; i++) {
        if (!watches[i].fn || watches[i].events == 0)
            continue;
        polls[n] = (struct pollfd){.fd = watches[i].fd};
        if (watches[i].events & DLXD_READABLE)
            polls[n].events |= POLLIN | POLLRDHUP;
        if ((watches[i].events & DLXD_WRITABLE) && !sim_is_full(watches[i].fd))
            polls[n].events |= POLLOUT;
        at[n++] = i;
    }
    if (poll(polls, (nfds_t)n, 0) <= 0 && n_jobs == 0)
        return false;
    for (int i = 0; i < n; i++) {
        if (polls[i].revents) {
            polls[n_ready] = polls[i];
            at[n_ready++] = at[i];
        }
    }
    int chosen = (int)rnd((uint32_t)(n_ready + n_jobs)), seen = 0;
    if (chosen >= n_ready) {
        run_job(chosen - n_ready);
        return true;
    }
    if (polls[chosen].revents & (POLLIN | POLLRDHUP | POLLHUP | POLLERR))
        seen |= DLXD_READABLE;
    if (polls[chosen].revents & POLLOUT)
        seen |= DLXD_WRITABLE;
    MUST(!(polls[chosen].revents & POLLNVAL), "a descriptor was closed while it is watched");
    dispatch(&watches[at[chosen]], seen);
    return true;
}

bool dlxd_notify_is_possible(void)
{
    return w.store;
}

int edge_find(const char *name)
{
    for (int i = 0; i < w.n_kept; i++)
        if (strcmp(w.kept[i].name, name) == 0)
            return i;
    return -1;
}

int dlxd_notify(const char *state, int fd)
{
    static const char store[] = "FDSTORE=1\nFDPOLL=0\nFDNAME=", drop[] = "FDSTOREREMOVE=1\nFDNAME=";
    w.queued |= w.busy;
    if (w.busy)
        return DLX_E_FULL;
    if (strncmp(state, store, sizeof store - 1) == 0) {
        MUST(fd >= 0 && w.n_kept < (int)DLX_ARRAY_SIZE(w.kept), "%s", state);
        MUST(edge_find(state + sizeof store - 1) < 0, "kept twice: %s", state);
        struct kept *kept = &w.kept[w.n_kept++];
        (void)snprintf(kept->name, sizeof kept->name, "%s", state + sizeof store - 1);
        kept->fd = sim_dup(fd);
        MUST((uint32_t)w.n_kept <= w.max_fds || w.fired > 0, "%d descriptors, at most %u", w.n_kept,
             w.max_fds);
    } else if (strncmp(state, drop, sizeof drop - 1) == 0) {
        int i = edge_find(state + sizeof drop - 1);
        MUST(i >= 0, "not kept: %s", state);
        close(w.kept[i].fd);
        w.kept[i] = w.kept[--w.n_kept];
    } else {
        MUST(strcmp(state, "BARRIER=1") == 0 && fd >= 0, "%s", state);
        MUST(w.n_barriers < (int)DLX_ARRAY_SIZE(w.barriers), "more barriers than clients");
        w.barriers[w.n_barriers++] = sim_dup(fd);
    }
    return 0;
}

void edge_manager_reads(void)
{
    w.busy = false;
    edge_drop_barriers();
}

void edge_drop_barriers(void)
{
    while (w.n_barriers > 0)
        close(w.barriers[--w.n_barriers]);
}
