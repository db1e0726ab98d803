/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_SIM_DAEMON_SIM_H
#define DLX_TESTS_SIM_DAEMON_SIM_H

/*
 * A simulation of the daemon: tests/daemon/sim_daemon/README.md tells what it does. Parts:
 *
 *     kernel.c   what the daemon asks the kernel for: counted, refused by the seed; the clock;
 *                processes' deaths
 *     edge.c     readiness of sockets and jobs in the seed's order, and the service manager: in the
 *                place of daemon/base/watch.c, worker.c, notify.c
 *     model.c    what there should be, and how each event changes it
 *     charges.c  what each user should be charged for it
 *     request.c  what each request should be answered with
 *     notifications.c  what may be sent on subscription and link sockets
 *     group.c    groups of workers, and what these write into claims pages
 *     former.c   what clients keep of earlier daemons
 *     check.c    after each step: does the daemon have what the model has?
 *     peer.c     the clients
 *     life.c     daemons that end and begin, and the end of a run
 *     step.c     the schedule
 */

#include "common/proto.h"
#include "daemon/objects/broker.h"
#include "tests/harness/run.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define BODY(name) DLX__WIRE__PACKET__BODY_##name

enum {
    PROCS = 6,
    PUBS = 20,
    SUBS = 14,
    LINKS = 600,
    SPARES_AT_ONCE = 16,
    SPARES_GROWN_MAX = 64,
    WAITERS = 400,
    DRAINS = 2000,
    REGIONS = 64,
    GROUPS = 120,
    CLAIMERS = 100,
    CELLS = 256,
    USERS = 3,
    FDS = 4096
};

/* The purpose of a descriptor of the daemon. */
enum fd_kind { FD_OTHER, FD_CLIENT, FD_SUB, FD_LINKS, FD_PIDFD, FD_SHUT_DOWN };
struct fd_info {
    enum fd_kind kind;
    void *of; /* the process, subscription or publisher */
    int peer; /* of a pair, when it was made */
};

/* A process that uses the daemon, and its connection. */
struct proc {
    bool alive;
    int user, pid;
    uint32_t connection; /* its number */
    int death;           /* eventfd that stands for its pidfd */
    bool connected, greeted, hung_up;
    bool must_go; /* the daemon has to end the connection */
    bool dismissed;
    bool refused;      /* it will hear so when it says Hello */
    int sock, dsock;   /* ours, the daemon's */
    uint32_t serial;   /* last that was sent */
    uint32_t answered; /* last answer that was read */
    uint32_t unread;   /* answers */
    uint32_t minor;
    uint32_t max_links, n_links; /* with those that drain */
    uint32_t waits;              /* for the service manager: serial of its request */
    struct {
        uint32_t serial; /* 0: none */
        Dlx__Wire__Packet__BodyCase body;
        uint64_t publisher;
        uint32_t arena;
    } proving;           /* its request, whose answer waits until a worker has looked at a region */
    uint64_t asked[128]; /* by serial: the publisher that ArenaNew was for */
    char name[8];
};

struct region {
    uint32_t id;
    uint64_t size, order; /* order: when it became ready; 0: it is not, or is the control block */
    ino_t ino;
    bool filled; /* its writer has allocated it */
    bool gone;
    uint64_t *map; /* of a control block: its first word is the newest message's number */
    int fd;        /* of the writer, until it is filled */
};

enum pub_state { PUB_NEW, PUB_OPEN, PUB_RETAINED, PUB_GONE };
struct pub {
    bool used;
    uint64_t id;
    struct proc *proc; /* NULL: it has left */
    int user, pid;
    char topic[40], name[8];
    uint32_t history, depth, n_entries, on_full, retain, max_held;
    bool latched, dying, hidden, not_kept, has_pidfd, awaited;
    /* A former daemon knew it, and newcomers join it; not any more, as it has announced itself. */
    bool shown, is_back;
    bool is_late; /* it is offered to those only that could not join it while it was shown */
    /* Dying, and the daemon could not watch its process: it takes what is there, and expires at
     * once. */
    bool unseen;
    uint64_t retain_for, resumes, after_seq, expires, max_held_bytes;
    uint64_t left; /* in this step */
    enum pub_state state;
    struct region r[REGIONS]; /* the first one is the control block */
    int n_r;
    uint32_t last_region;
    uint64_t last_order;
    uint64_t joins, leaves;
    uint32_t line_no;
    volatile uint64_t *line; /* of the membership page, as its client sees it: joins, leaves */
    void *page;
    int link_sock;       /* ours */
    int n_unread;        /* packets in it */
    uint64_t indices[4]; /* of its links */
    uint32_t n_groups;   /* that are declared, and kept */
    uint32_t last_group;
    bool may_retain;
    int workers; /* the user that a rule names; -1: none does */
    bool looks; /* a worker of what is retained has left, so the daemon looks whether all is done */
    bool closed;  /* its control block says so */
    bool is_bare; /* its groups were all that it had, and could not be restored */
    bool no_page; /* there was no room for the page of a group that is to be stored */
};

/* Of a worker; of a group, those of its first one. `group` is "": it is none. */
struct terms {
    char group[16];
    uint64_t lease;
    uint32_t max_attempts;
};

/* Parts of an error's text. */
struct says {
    char first[80], second[48];
};

struct cell {
    uint32_t state, attempt, owner;
};

struct group {
    bool used;
    struct pub *pub;
    uint32_t number;
    char name[16];
    bool is_declared, from_start;
    int user;
    struct terms terms;       /* while there are workers */
    ino_t page;               /* 0: there is none yet */
    uint64_t start;           /* as the page says */
    bool rung;                /* since the last check */
    bool unheard;             /* by a daemon that has ended, maybe */
    struct cell cells[CELLS]; /* of message after_seq + 1 and those after it, all in their laps */
};

/* A process that has mapped a claims page, until it dies or has let go of it. */
struct claimer {
    bool used;
    struct proc *proc;
    uint64_t link; /* may have ended */
    ino_t page;
    uint32_t owner;
    uint64_t size;
    void *map;
};

struct sub {
    bool used;
    uint64_t id;
    struct proc *proc;
    char topic[40];
    bool reliable;
    struct terms terms;
    uint32_t max_held, mode, n_spares;
    int sock, dsock;
    bool gone_sock; /* we have closed it, or told a lie on it */
    bool closing;
    int stalled;                 /* the socket took no more. 1: for another reason than room */
    uint64_t lack_until;         /* when it is 1: not before this time either */
    uint32_t sent;               /* with fds */
    uint32_t read, ack;          /* of these; acknowledged, as the daemon has seen */
    uint64_t all_sent, all_read; /* packets */
    uint64_t first;              /* number of the first link; then 0 */
};

enum link_state {
    LINK_NEW,
    LINK_OFFERED,
    LINK_PREPARED, /* the daemon lacks what a look at its page needs */
    LINK_PROVING,  /* the worker is to look at its page */
    LINK_READY,
    LINK_SPARE,
    LINK_ADDED,
    LINK_OPEN,
    LINK_FAILED
};
struct link {
    bool used;
    uint64_t id;
    struct sub *sub;
    struct pub *pub; /* NULL: it has failed, or is a spare */
    enum link_state state;
    bool from_start, gone_sent;
    bool spare, early;
    bool waits;  /* it is ADDED, and its publisher has yet to be told */
    bool locked; /* the control block was, for the packet that was not sent */
    uint32_t index;
    uint64_t reader, until;
    uint64_t added; /* in this step its publisher heard of it */
    int code;
    uint64_t origin, last_seq, missed;
    ino_t page;
    int bell;               /* the subscriber's end */
    uint64_t told, counted; /* regions, a bit each */
    /* Dropped regions that it knew: the first `n_landed` were read, as the daemon has seen; the
     * others before `first_drop` were told. */
    struct {
        int region;
        uint64_t told, packet; /* number of the packet, of all and of its subscription */
    } drops[REGIONS];
    int n_drops, first_drop, n_landed;
    int n_settled;       /* of `n_landed`, those that the model has come to */
    struct group *group; /* NULL: it is in none, or has left it */
    uint32_t group_number;
    uint32_t owner;   /* its number in the group; 0: it has none yet */
    bool has_claims;  /* the daemon has a descriptor of the claims page for it */
    bool is_cut;      /* its publisher was told so */
    bool has_left;    /* `leaves` counts it already */
    struct says says; /* FAILED: the text */
    /* The subscriber's side. */
    bool seen_offer, answered, filled, closed;
    int page_fd;
};

/* A LinkAdded that is to be sent when there is room. */
struct waiter {
    uint64_t link; /* 0: there is none */
    struct pub *pub;
    struct proc *proc;
    int user;
    bool closed; /* its page says that its subscriber has left */
    bool left;   /* and the link has ended: no client is to hear of it */
    bool ended;
    uint32_t group; /* number; 0: none */
    ino_t page;
};

/* A link that has ended, whose publisher has its page yet. */
struct drain {
    uint64_t link;
    struct pub *pub;
    int user;
    struct proc *reader; /* NULL: its connection has ended */
    uint32_t connection;
    struct proc *proc;
    int pid;
    bool closed;     /* its page says that its subscriber has left */
    bool let_go;     /* while the model was behind */
    bool is_cut;     /* its publisher has yet to be told */
    bool counts;     /* `leaves` has yet to count it */
    uint32_t weight; /* for how many links of its process it counts */
    uint32_t group;  /* number; 0: none */
    uint64_t size;
};

struct kept {
    char name[112];
    int fd; /* -1: the service manager must forget it */
    bool is_unsent;
};

struct world {
    uint64_t seed, random, now, steps;
    struct dlxd_broker broker;
    bool running; /* there is a daemon */
    bool inside;  /* the daemon's code runs */
    bool crashed; /* it is being cleared away: no client hears of it */
    uint32_t fault_one_in, refuse_one_in;
    uint64_t faults, fired; /* of this call; in all */
    bool small_sockets;
    int64_t open_fds, live;
    uint64_t n_sent; /* packets that the daemon has tried to send */
    int n_shut_down; /* sockets that the daemon has ended, and that were not read */
    struct fd_info fds[FDS];
    struct proc procs[PROCS];
    struct pub pubs[PUBS];
    struct sub subs[SUBS];
    struct link links[LINKS];
    struct waiter waiters[WAITERS];
    int n_waiters;
    struct drain drains[DRAINS];
    int n_drains;
    struct group groups[GROUPS];
    struct claimer claimers[CLAIMERS];
    bool with_groups;   /* clients speak version 2.8 */
    bool names_workers; /* a rule says whose processes they are */
    ino_t looked_at;    /* the page that the daemon has just seen */
    uint64_t max[DLXD_N_RESOURCES], max_all;
    /* The rules: this user may neither publish nor subscribe to this topic. NULL: all may. */
    int denied_user;
    const char *denied_topic;
    uint64_t last_link, highest_id; /* of the daemon; ever */
    /* The request that is being handled. */
    struct proc *asker; /* NULL: none */
    const Dlx__Wire__Packet *request;
    int code;               /* that it should be answered with */
    bool looks_at_page;     /* the worker */
    uint64_t link_ready;    /* or LinkReady of this link; 0: it is none */
    int region;             /* that it is about */
    uint32_t n;             /* that it drops */
    struct says says;       /* the text of its error */
    bool ready_due;         /* it is PublisherReady, and what follows is not in the model yet */
    bool is_behind;         /* the daemon offers a publisher, which is not in the model yet */
    bool fds_refused, calm; /* calm: nothing else is refused */
    /* The service manager. */
    bool store, busy;
    bool queued; /* something may wait in the daemon */
    bool unsaid; /* and it has ended */
    uint32_t max_fds;
    struct kept kept[PUBS * REGIONS];
    int n_kept;
    struct kept handed[PUBS * REGIONS]; /* by the daemon that is replaced, to the next one */
    int n_handed;                       /* 0: it is not replaced, but ended */
    int barriers[PROCS * 2];
    int n_barriers;
    uint64_t counts[24]; /* what happened, for the summary */
};

extern struct world w;

_Noreturn void sim_fail(const char *file, int line, const char *what, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* %ju is for a uint64_t: it is a uintmax_t on Linux. */
#define MUST(cond, ...)                                                                            \
    do {                                                                                           \
        if (!(cond))                                                                               \
            sim_fail(__FILE__, __LINE__, #cond, __VA_ARGS__);                                      \
    } while (0)

/* SIM_VERBOSE: what happens, on stderr. */
void sim_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* A number below `below`. */
uint32_t rnd(uint32_t below);
static inline bool one_in(uint32_t n)
{
    return rnd(n) == 0;
}

#define each_proc(it) for (struct proc *it = w.procs; (it) < w.procs + PROCS; (it)++)
/* Each one that is in use. */
#define each_used(type, it, array)                                                                 \
    for (struct type *it = (array); (it) < (array) + DLX_ARRAY_SIZE(array); (it)++)                \
        if (!(it)->used)                                                                           \
            continue;                                                                              \
        else
#define each_pub(it)     each_used(pub, it, w.pubs)
#define each_sub(it)     each_used(sub, it, w.subs)
#define each_link(it)    each_used(link, it, w.links)
#define each_group(it)   each_used(group, it, w.groups)
#define each_claimer(it) each_used(claimer, it, w.claimers)

static inline int number_of(const struct proc *c)
{
    return (int)(c - w.procs);
}

/* kernel.c */
bool sim_refuse(void); /* does this call of the daemon fail for lack of something? */
/* The daemon's socket took no more. Is there room in it? Then the daemon tries again when time has
 * passed, else when there is. */
void sim_note_stall(struct sub *s);
int sim_dup(int fd);
int sim_count_fds(void); /* as the kernel has them */
void sim_print_fds(void);
bool is_dead(const struct proc *c);
int sim_eventfd(void);
ino_t sim_inode(int fd);
bool sim_is_full(int fd); /* a link socket, where sockets are small */

/* edge.c */
bool edge_pump(void);       /* one readiness of the daemon's, or one job; false: there is none */
int edge_n_abandoned(void); /* looks that no request waits for; each has a descriptor */
void edge_abandon(const struct proc *c); /* no request of the process waits for the look any more */
void edge_manager_reads(void);
void edge_drop_barriers(void);
int edge_find(const char *name);
void edge_offer(struct pub *p); /* which is to be offered now */

/* model.c */
/* The daemon's publisher; NULL: it is not there. */
struct dlxd_publisher *their_publisher(uint64_t id);
struct pub *pub_by_id(uint64_t id);
struct sub *sub_by_id(uint64_t id);
struct link *link_by_id(uint64_t id);
/* Which is in the daemon at this address; NULL: none. */
struct link *link_at(const void *theirs);
bool pub_is_shown(const struct pub *p);
bool matches(const struct sub *s, const struct pub *p);
/* Do the rules deny the user this topic? */
bool is_denied(int user, const char *topic);
/* May this user drop what the publisher retains? */
bool may_drop(int user, const struct pub *p);
/* May it join a publisher that is shown? */
bool joins_shown(const struct sub *s);
/* Can subscribers be told of it? */
bool region_is_ready(const struct pub *p, int i);
uint64_t n_published(const struct pub *p);
uint32_t n_links_of(const struct pub *p);
struct pub *pub_add(void);
struct link *link_add(struct sub *s, struct pub *p, bool from_start);
uint32_t spares_add(struct sub *s, uint32_t most);
bool pub_is_awaited(const struct pub *p);
bool pub_is_settled(const struct pub *p);
/* The daemon keeps its messages, and nobody writes them. */
bool pub_is_retained(const struct pub *p);
bool pub_leaves_nothing(const struct pub *p); /* for the daemon to keep */
/* What it retains, or what its groups have not done, is not kept any more. */
void pub_forget_retained(struct pub *p);
void pub_forget_groups(struct pub *p);
/* May the subscription have a link to it, which it offers to others? */
bool pub_is_offered(const struct sub *s, const struct pub *p);
/* 0, or with what a link fails between the two, whose text has `says`. */
int sub_fits(const struct terms *terms, bool reliable, int user, const struct pub *p,
             struct says *says);
uint32_t
weight_of(const struct sub *s); /* for how many links of its process each of its links counts */
uint32_t credit_of(const struct sub *s);
/* Is its process disconnected with a reason that is told to publishers? */
bool is_cut(const struct proc *c);
void link_fail(struct link *l, int code);
void link_end(struct link *l);
/* Does the daemon end it, which waits for its publisher to be told? */
bool link_is_ending(uint64_t id);
void pub_vanish(struct pub *p);
void pub_end(struct pub *p, bool dead);
void pub_succeed(const struct pub *p);
/* Is its process dead? */
bool pub_has_died(const struct pub *p);
/* The publisher is announced, maybe again. */
void pub_resume(const struct pub *by);
void region_drop(struct pub *p, int i);
bool sub_may_end(const struct sub *s);
void sub_end(struct sub *s);
void client_gone(struct proc *c, bool dismissed);
void pub_offer(struct pub *p, bool from_start);
/* The next that a list shows: by topic, then by id. NULL: there is none. */
struct pub *pub_listed_after(const char *topic, uint64_t id);
/* Did a former daemon know it, and has it made no call since? */
bool pub_is_away(const struct pub *p);
/* Those, too, are in the list of groups. */
struct pub *pub_with_groups_after(const char *topic, uint64_t id);
/* Returns it if it is to be offered now. */
struct pub *on_death_seen(uint64_t pub_id);
void links_reconcile(void);
struct waiter *waiter_of(uint64_t link); /* NULL: it does not wait */
void waiter_remove(struct waiter *waiter);

/* charges.c */
bool drain_has_left(const struct drain *drain);
void drain_remove(int at);
void catch_up(void);
uint64_t used(int user, enum dlxd_resource resource);
uint64_t used_all(void);
uint64_t n_pages(int user);
uint64_t used_descriptors(int user);
bool regions_are_open(const struct pub *p);
bool is_last_of_its_process(int drain);
bool bytes_fit(int user, uint64_t size);
/* May it have so many more, after a look at what was read? */
bool bytes_fit_after_look(int user, uint64_t size);
/* Also as bytes that stay when the publisher has gone, if these do? */
bool retained_bytes_fit(int user, bool stays, uint64_t size);
bool clients_have_room(const struct sub *s, const struct pub *p);
bool user_has_room(int user, uint64_t size);

/* group.c */
struct group *group_numbered(const struct pub *p, uint32_t number);
uint32_t group_n_open(const struct group *g);
bool groups_are_undone(const struct pub *p);
bool group_is_kept(const struct pub *p, const char *name);
int group_fit(const struct pub *p, int user, const struct terms *terms, struct says *says);
void must_say(const struct says *says, const char *text);
void groups_declare(struct pub *p, char *const *names, size_t n);
void groups_forget(struct pub *p);
void groups_publisher_gone(const struct pub *p);
void groups_free(const struct pub *p);
void group_join(struct link *l);
void group_leave(struct link *l);
/* The daemon says so, maybe before it has ended the whole subscription. */
void on_leave(uint64_t link, uint64_t publisher, uint32_t number, bool is_retained);
/* A worker of the group with this number has left. */
void group_left(const struct pub *p, uint32_t number);
/* The daemon looks whether all is done. */
void on_groups_looked(uint64_t publisher);
/* The daemon looks at all queues whose publishers have gone. */
void queues_looked(void);
/* It has made the claims page, or was refused something. */
void on_page(const struct dlxd_group *theirs, int r, bool beyond);
/* The worker has a number, or not. */
void on_admit(uint64_t link, const struct dlxd_group *theirs, uint32_t owner, int r);
void must_be_claims(const struct link *l, const int *fds);
void claimer_add(const struct link *l, int fd);
void claimers_leave(const struct proc *proc); /* NULL: all */
void claimers_step(void);
void groups_restore(struct pub *p);
void groups_reconcile(struct pub *p);
int groups_n_stored(const struct pub *p);
void groups_check(void);
void check_claim_list(const Dlx__Wire__ListClaims *asked, const Dlx__Wire__ClaimList *body);
void check_group_list(const struct proc *c, const Dlx__Wire__ListGroups *asked,
                      const Dlx__Wire__GroupList *body);

/* former.c */
void former_step(struct proc *c);
/* The daemon has looked what this user's processes have let go; -1: all users'. */
void former_looked(int user);
void former_client_gone(const struct proc *c);
void former_forget(void);
void former_check(void);
/* The user's charge for former memory of its processes, and for the pages that list it. */
uint64_t former_bytes(int user);
uint64_t former_page_bytes(int user);
uint64_t former_descriptors(int user); /* -1: of all users */
int former_n_pages(void);

/* request.c */
void on_request(struct proc *c, const Dlx__Wire__Packet *packet);
void on_reply(struct proc *c, const Dlx__Wire__Packet *packet, const int *fds, size_t n_fds);
void request_over(void);
/* The daemon begins to look at the region of the request that is being handled. */
void request_proves(void);
/* The daemon has looked: the request goes on. */
void request_goes_on(struct proc *c);
/* The daemon tells the first of what PublisherReady has changed. */
void request_shows(void);

/* notifications.c */
void on_notifications(struct sub *s, const Dlx__Wire__Packet *packet);
void on_told(struct sub *s, const Dlx__Wire__Packet *packet, const int *fds, size_t n_fds);
void on_not_told(struct sub *s, const Dlx__Wire__Packet *packet, const int *fds);
void on_added(struct pub *p, const Dlx__Wire__Packet *packet, const int *fds, size_t n_fds);
/* A packet is to be sent when there is room; or it could not be sent, and does not wait. */
void on_waits(uint64_t link, const int *fds);
void on_not_added(uint64_t link, int code);
/* The waiting packet need not be sent any more. */
void on_withdrawn(void);
/* The daemon takes ArenaDropped as read. */
void on_drop_landed(uint64_t link, uint32_t arena);
/* A draining link is let go. */
void on_let_go(uint64_t link);
/* Links given to it, as the daemon says. */
uint64_t n_joins(const struct pub *p);
bool link_is_owed(const struct link *l, bool *ret_for_credit);

/* check.c */
void check_info(const Dlx__Wire__DaemonInfoReply *body);
void check_all(void);
/* The daemon has yet to end a part of what has ended in the model. */
bool something_ends(void);
int64_t check_fds_of_peers(void);
bool check_is_kept(const struct pub *p);
void check_nothing_is_owed(const struct pub *p); /* NULL: of any */

/* peer.c */
void peer_start(struct proc *c);
void peer_connect(struct proc *c);
void peer_hang_up(struct proc *c);
void peer_die(struct proc *c);
void peer_send(struct proc *c, Dlx__Wire__Packet__BodyCase body, void *message, uint32_t serial);
void peer_tell(struct sub *s, Dlx__Wire__Packet__BodyCase body, void *message);
void peer_read_replies(struct proc *c);
bool peer_read_notifications(struct sub *s);
void peer_answer(struct link *l);
void peer_ack(struct sub *s, uint32_t n);
void peer_read_links(struct pub *p);
void peer_forget_pub(struct pub *p);
void peer_fill(struct region *r);
/* It publishes nothing more, and has yet to tell a daemon. */
void peer_close_block(struct pub *p);
void peer_close_sub(struct sub *s);

/* life.c */
void life_begin(void);
void life_rest(void); /* the daemon has done what it was called for */
void life_end_daemon(bool crash);
/* Ends it, if it could hand over what it has. */
bool life_replace_daemon(void);
/* The descriptor that the next daemon gets under this name; -1: none. */
int life_inherited(const char *name);
void life_new_daemon(void);
void life_quiesce(void);
/* The daemon has new rules. `topic`: "a", "a/b", "a/c", or NULL. */
void life_reload(int user, const char *topic);
void life_end(void);

/* step.c */
void step(void);
/* Time passes: timers of the daemon run. */
void step_time(uint64_t now);

#endif
