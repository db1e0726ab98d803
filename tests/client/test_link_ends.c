/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The end of a link, as its publisher hears of it: from the subscriber's page, its bell, its pidfd,
 * and the daemon, in any order, with any calls in between. A seed decides. Here the test is the
 * daemon, as far as links are concerned, and all subscribers.
 */

#include "client/publish/publisher.h"
#include "common/memory.h"
#include "tests/harness/random.h"
#include "tests/harness/stream.h"
#include <sys/eventfd.h>

enum { LINKS = 4, SEEDS = 1000, DEPTH = 2, MAX_HELD = 2 };

/* The events that a publisher may notice, one after the other. */
enum notice {
    ADDED,  /* LinkAdded is in the link socket, and `joins` is raised */
    CLOSED, /* the page says so */
    LEAVES, /* the daemon has counted the end */
    HUNG_UP,
    DEAD,
    N_NOTICES,
};

/* How links end. */
static const struct fate {
    uint32_t notices; /* after ADDED, in any order */
    uint32_t late;    /* after the end of all links */
    bool says_closed; /* before everything else */
    enum dlx_event_kind kind;
} fates[] = {
    {.notices = 1U << LEAVES | 1U << HUNG_UP, .says_closed = true, .kind = DLX_EVENT_LEFT},
    /* closed, and killed before the publisher has looked */
    {.notices = 1U << LEAVES | 1U << HUNG_UP | 1U << DEAD,
     .says_closed = true,
     .kind = DLX_EVENT_LEFT},
    {.notices = 1U << LEAVES | 1U << HUNG_UP | 1U << DEAD, .kind = DLX_EVENT_LOST},
    /* its bell is inherited by a child */
    {.notices = 1U << LEAVES | 1U << DEAD, .kind = DLX_EVENT_LOST},
    /* executes another program */
    {.notices = 1U << LEAVES | 1U << HUNG_UP, .late = 1U << DEAD, .kind = DLX_EVENT_LOST},
};

/* Of all links, if the daemon stands still. */
static const struct fate unseen = {
    .notices = 1U << HUNG_UP | 1U << DEAD, .late = 1U << LEAVES, .kind = DLX_EVENT_LOST};

struct link {
    const struct fate *fate;
    uint64_t id;
    uint32_t given; /* of enum notice */
    int n_told;     /* LEFT or LOST */
    bool joined;    /* was told */
    struct dlx_shm_link *page;
    int page_fd, bell, peer_bell, death;
};

struct world {
    uint64_t seed;
    struct dlx_publisher *p;
    struct dlx_shm_membership *line;
    int link_sock; /* the daemon's end */
    bool stands_still;
    uint64_t page_size, next_id;
    struct link links[LINKS];
    uint32_t n_links;
};

static uint32_t choose(struct world *w, uint32_t n)
{
    return (uint32_t)dlx_test_random_in(&w->seed, 0, (int64_t)n - 1);
}

/* ---- what the publisher may notice ----------------------------------------------------------- */

static void send_added(struct world *w, struct link *link)
{
    Dlx__Wire__LinkAdded *added =
        WIRE(link_added, .link = link->id, .client = link->id, .pid = 1, .reader = link->id,
             .page_size = w->page_size, .max_held = MAX_HELD, .reliable = choose(w, 2) == 1);
    Dlx__Wire__Packet packet = DLX__WIRE__PACKET__INIT;
    uint8_t bytes[256];
    packet.body_case = BODY(LINK_ADDED);
    packet.link_added = added;
    ck_assert_uint_le(dlx__wire__packet__get_packed_size(&packet), sizeof bytes);
    ok(dlx__packet_send(w->link_sock, bytes, dlx__wire__packet__pack(&packet, bytes),
                        (const int[]){link->page_fd, link->peer_bell, link->death}, 3));
    dlx_store64_sc(&w->line->joins, dlx_load64_relaxed(&w->line->joins) + 1);
}

static void give(struct world *w, struct link *link, enum notice notice)
{
    link->given |= 1U << notice;
    switch (notice) {
    case ADDED:
        send_added(w, link);
        break;
    case CLOSED:
        dlx_store64_sc(&link->page->cursor, DLX_SHM_CURSOR_CLOSED);
        break;
    case LEAVES:
        dlx_store64_sc(&w->line->leaves, dlx_load64_relaxed(&w->line->leaves) + 1);
        break;
    case HUNG_UP:
        link->bell = dlx__close(link->bell);
        break;
    case DEAD:
        ck_assert_int_eq(eventfd_write(link->death, 1), 0);
        break;
    case N_NOTICES:
        break;
    }
}

/* The events that may come next. */
static uint32_t next_notices(const struct link *link, bool late)
{
    if (!(link->given & 1U << ADDED))
        return 1U << ADDED;
    if (link->fate->says_closed && !(link->given & 1U << CLOSED))
        return 1U << CLOSED;
    return (late ? link->fate->late : link->fate->notices) & ~link->given;
}

/* False: everything was given. */
static bool give_next(struct world *w, bool late)
{
    uint32_t first = choose(w, w->n_links);
    for (uint32_t i = 0; i < w->n_links; i++) {
        struct link *link = &w->links[(first + i) % w->n_links];
        uint32_t next = next_notices(link, late), notice;
        if (next == 0)
            continue;
        do
            notice = choose(w, N_NOTICES);
        while (!(next & 1U << notice));
        give(w, link, (enum notice)notice);
        return true;
    }
    return false;
}

/* ---- what it says ---------------------------------------------------------------------------- */

static void on_event(struct world *w, const struct dlx_event *event)
{
    struct link *link = w->links;
    while (link < &w->links[w->n_links] && link->id != event->link)
        link++;
    ck_assert_msg(link < &w->links[w->n_links], "event of link %ju", event->link);
    ck_assert_uint_eq(event->missed, 0);
    if (event->kind == DLX_EVENT_JOINED) {
        ck_assert(!link->joined);
        link->joined = true;
        return;
    }
    ck_assert_uint_eq(event->kind, link->fate->kind);
    ck_assert(link->joined && (link->given & ~(1U << ADDED)));
    link->n_told++;
    ck_assert_int_eq(link->n_told, 1);
}

static void read_events(struct world *w)
{
    struct dlx_event event = {.size = sizeof event};
    int r;
    while ((r = dlx_publisher_next_event(w->p, &event)) == 0)
        on_event(w, &event);
    ck_assert_int_eq(r, DLX_E_EMPTY);
}

static int publish(struct world *w)
{
    DLManagedTensorVersioned *tensor = dlx_test_stream_alloc(w->p, 10, 1);
    int r = dlx_publish(w->p, tensor, NULL, NULL);
    if (r < 0) {
        ck_assert_int_eq(r, DLX_E_FULL);
        dlx_test_stream_end_tensor(&tensor);
    }
    return r;
}

static void call(struct world *w)
{
    switch (choose(w, 6)) {
    case 0:
        read_events(w);
        break;
    case 1:
        (void)dlx_test_stream_stats(w->p);
        break;
    case 2:
        fails(dlx_publisher_wait(w->p, LINKS + 1, 0), DLX_E_TIMEOUT, "");
        break;
    case 3:
        (void)publish(w);
        break;
    case 4:
        w->p->watch.next_look_ns = 0; /* a second has passed */
        break;
    default: /* nothing: several notices come between two calls */
        break;
    }
}

/* ---- a run ----------------------------------------------------------------------------------- */

static void link_init(struct world *w, struct link *link)
{
    int fd, pair[2];
    void *page;
    const struct fate *fate = &fates[choose(w, DLX_ARRAY_SIZE(fates))];
    *link = (struct link){.fate = w->stands_still ? &unseen : fate, .id = ++w->next_id};
    ok(dlx__region_new(w->p->daemon.memory, "link", w->page_size, &link->page_fd, &fd));
    ok(dlx__region_populate(w->p->daemon.memory, fd, w->page_size, &page));
    link->page = page;
    dlx_store64_relaxed(&link->page->cursor, dlx__writer_head(&w->p->core));
    dlx_store32_relaxed(&link->page->started, 1);
    dlx_store64_relaxed(&link->page->n_used, 1);
    dlx_store64_relaxed(&link->page->hold[0], choose(w, 2) * dlx__writer_head(&w->p->core));
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair),
                     0);
    link->bell = pair[0];
    link->peer_bell = pair[1];
    link->death = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    ck_assert_int_ge(link->death, 0);
}

static void link_deinit(struct world *w, struct link *link)
{
    dlx__region_unmap(link->page, w->page_size);
    dlx__close(link->page_fd);
    dlx__close(link->peer_bell);
    dlx__close(link->bell);
    dlx__close(link->death);
}

/* Without a daemon it takes a look, of which there is one a second. */
static void check_told(struct world *w)
{
    if (w->stands_still)
        w->p->watch.next_look_ns = 0;
    read_events(w);
    for (uint32_t i = 0; i < w->n_links; i++)
        ck_assert_msg(w->links[i].n_told == 1, "link %u of %u: notices %x, told %d times", i,
                      w->n_links, w->links[i].given, w->links[i].n_told);
    ck_assert_uint_eq(dlx_test_stream_stats(w->p).n_subscribers, 0);
    ok(publish(w)); /* the publisher waits for no reader */
}

static void check_freed(struct world *w)
{
    for (uint32_t i = 0; i < w->n_links; i++)
        dlx_store64_sc(&w->links[i].page->hold[0], 0);
    w->p->watch.next_look_ns = 0;
    read_events(w);
    ok(publish(w));
    while (dlx__writer_reclaim(&w->p->core, false) > 0)
        ;
    ck_assert_uint_eq(dlx__writer_n_links(&w->p->core), 0);
    ck_assert_uint_eq(w->p->joins.n_ended, dlx_load64_relaxed(&w->line->leaves));
    read_events(w);
}

static void run(struct world *w)
{
    w->n_links = 1 + choose(w, LINKS);
    w->stands_still = choose(w, 4) == 0;
    for (uint32_t i = 0; i < w->n_links; i++)
        link_init(w, &w->links[i]);
    do
        call(w);
    while (give_next(w, false));
    check_told(w);
    do
        call(w);
    while (give_next(w, true));
    check_freed(w);
    for (uint32_t i = 0; i < w->n_links; i++)
        link_deinit(w, &w->links[i]);
}

TEST(the_end_of_each_link_is_told_once_whatever_is_noticed_first)
{
    auto_client *c = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", PUBLISHER_BLOCKING(.depth = DEPTH));
    int pair[2], link_sock = p->daemon.link_sock;
    struct world w = {.p = p, .page_size = dlx_shm_link_size(MAX_HELD)};
    void *page = mmap(NULL, DLX_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(page != MAP_FAILED);
    w.line = page;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair),
                     0);
    w.link_sock = pair[0];
    p->daemon.link_sock = pair[1];
    dlx_store32_relaxed(&w.line->daemon_tid, 1);
    const struct dlx_shm_membership *line = p->core.membership;
    dlx__writer_set_membership(&p->core, w.line);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        w.seed = seed;
        run(&w);
    }
    dlx__writer_set_membership(&p->core, line);
    close(w.link_sock);
    close(p->daemon.link_sock);
    p->daemon.link_sock = link_sock;
    munmap(page, DLX_PAGE);
}
