/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_ACTOR_H
#define DLX_ACTOR_H

/*
 * A process that publishes and subscribes, and that others kill, stop, starve or hurry: what it did
 * is in its ledger (ledger.h). The stories that it can play are files of their own; the words that
 * they are told in are here: begin a publisher or a subscription, publish a draft, take, hold,
 * release.
 */

#include "tests/actor/ledger.h"
#include <dlx/dlx.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

#define ACTOR_MS        INT64_C(1000000)
#define ACTOR_SECOND    INT64_C(1000000000)
#define ACTOR_TENSORS   8
#define ACTOR_HELD_MAX  64
#define ACTOR_BATCH_MAX 8

/* How far the end has come; set by signals. */
enum actor_phase {
    ACTOR_RUN,
    ACTOR_PUBLISHERS_END, /* SIGUSR1: publishers close, and nothing new begins */
    ACTOR_DRAIN,          /* SIGUSR2: subscriptions take until no publisher is there any more */
    ACTOR_END,            /* SIGTERM: everything closes as it is */
};

extern struct actor {
    const char *name, *socket;
    struct actor_ledger *ledger;
    bool injected;     /* a tool lets calls fail: any error is possible, and has words */
    bool strict;       /* no error is possible */
    _Atomic int phase; /* enum actor_phase */
} actor;

/* The objects of one thread. */
struct actor_part {
    struct dlx_client *client;
    struct actor_object *object;
    uint64_t random;
    uint64_t until_ns; /* its life */
};

/* ---- telling, time and chance (actor.c) ------------------------------------------------------ */

/* The program's end: what may not be. */
void actor_fault(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* Count an error of a call. A fault if nothing that is done to the actor can cause it. `object`:
 * NULL before there is one. */
void actor_error(struct actor_object *object, int code, const char *what);

uint64_t actor_now_ns(void);
void actor_sleep_ns(uint64_t ns);
bool actor_goes_on(const struct actor_part *part);

/* 0 to n - 1; about as often each power of two up to `most`; true once in n. */
uint64_t actor_random(struct actor_part *part, uint64_t n);
uint64_t actor_random_log(struct actor_part *part, uint64_t most);
bool actor_once_in(struct actor_part *part, uint64_t n);

/* For as long as it takes; NULL: the end came first. */
struct dlx_client *actor_connect(void);
/* A ledger of this process alone. */
struct actor_ledger *actor_ledger_new(void);
/* The next one of the ledger; NULL: it is full. */
struct actor_object *actor_object_new(enum actor_kind kind);
/* The times and states of a part's object: it begins, tries again after `code` of the call `what`,
 * has begun, ends. False: the actor's end came first. */
void actor_begins(struct actor_part *part);
bool actor_begins_again(struct actor_part *part, int code, const char *what);
void actor_has_begun(struct actor_part *part);
void actor_ends(struct actor_part *part);

/* ---- what messages are made of (payload.c) --------------------------------------------------- */

/*
 * Every byte of a payload follows from a seed, so that its subscriber can tell whether it is whole.
 * Who published it, and which message it is:
 *
 *   one tensor      a header at its beginning, the pattern behind it
 *   one, empty      the shape: 0, key, seq
 *   a set           a header in the metadata, the pattern in all tensors
 */
struct actor_header {
    uint64_t magic;
    uint64_t key, seq;
    uint64_t prev_ns; /* when the message before it began to be published; 0: not known */
    uint64_t sent_ns; /* when it was handed to the library */
    uint64_t n_tensors, n_bytes;
    uint64_t is_last; /* of the story */
    uint64_t seed[ACTOR_TENSORS];
};

void actor_fill(void *data, uint64_t size, uint64_t seed);
/* Reads which publisher sent the message, and faults unless all of it is right. */
struct actor_header actor_header_of(const struct dlx_message *m);
void actor_check(const struct dlx_message *m, const char *when);
/* The same of a reply, which has the number of its call. */
struct actor_header actor_check_as(const struct dlx_message *m, uint64_t seq, const char *when);
uint64_t actor_bytes(const struct dlx_message *m);

/* ---- publishing (publish.c) ------------------------------------------------------------------ */

struct actor_publisher {
    struct actor_part *part;
    struct dlx_publisher *p;
    uint64_t prev_ns; /* when the message before began */
};

/* A message that is to be published. */
struct actor_draft {
    struct actor_header header;
    struct dlx_item items[ACTOR_TENSORS];
    bool is_set;
    bool share; /* the tensors stay with the caller, and are filled */
};

/* Announce the topic of the part's object; false: the end came first. */
bool actor_announce(struct actor_publisher *p, const struct dlx_publisher_args *args);
void actor_withdraw(struct actor_publisher *p);

/* Begin a message, after `n` that are not published yet. */
struct actor_draft actor_draft_begin(struct actor_publisher *p, uint64_t n);
/* Tensors of the publisher, and of private memory, which is copied; NULL: there is no memory. */
DLManagedTensorVersioned *actor_alloc(struct actor_publisher *p, const int64_t *shape,
                                      int32_t ndim);
DLManagedTensorVersioned *actor_alloc_private(uint64_t size);
void actor_drop(DLManagedTensorVersioned *t);
/* Add a tensor of this many bytes, behind a header if it is alone; false: there is no memory. */
bool actor_draft_add(struct actor_publisher *p, struct actor_draft *draft, uint64_t size,
                     bool private, const char *name);
/* Drop tensors that are not published. */
void actor_draft_drop(struct actor_draft *draft);
/* Publish it, or drop it when the publisher is to end before it is out. Tries again until then. */
bool actor_publish(struct actor_publisher *p, struct actor_draft *draft, int64_t timeout_ns);
/* Publish up to ACTOR_BATCH_MAX of one tensor each, by one call if possible. */
void actor_publish_batch(struct actor_publisher *p, struct actor_draft *drafts, uint32_t n,
                         int64_t timeout_ns);

/* ---- subscribing (subscribe.c) --------------------------------------------------------------- */

/* A message, or a tensor of it, that is kept for a while and looked at once more. */
struct actor_held {
    struct dlx_message *m;
    DLManagedTensorVersioned *t; /* or NULL */
    uint64_t bytes, until_ns;
};

struct actor_subscriber {
    struct actor_part *part;
    struct dlx_subscription *s;
    struct actor_held held[ACTOR_HELD_MAX]; /* the oldest first */
    uint32_t n_held;
    uint64_t held_bytes;
};

/* Subscribe to the topic of the part's object; false: the end came first. */
bool actor_join(struct actor_subscriber *s, const struct dlx_subscribe_args *args);
/* Close it, and keep what is held. */
void actor_leave(struct actor_subscriber *s);
/* Check a message that came, and account for it. */
void actor_take_in(struct actor_subscriber *s, const struct dlx_message *m);
/* `take_m`; with one of its tensors too, if asked for. */
void actor_hold(struct actor_subscriber *s, struct dlx_message *take_m, uint64_t until_ns,
                bool tensor);
/* Check it again, and let it go. */
void actor_release(struct actor_subscriber *s, uint32_t i);
void actor_release_all(struct actor_subscriber *s);
/* Notes what a worker does with a message of a group. False: there is no room for more. */
bool actor_note(const struct dlx_message *m, uint32_t group, enum actor_what what);
/* The same in numbers, also of a call. */
bool actor_note_step(const struct actor_step *step);
struct dlx_subscription_stats actor_stats(struct actor_subscriber *s);
/* Notes in the ledger which publishers the library says are lost. */
void actor_read_events(struct actor_subscriber *s);

/* ---- calls (call.c) -------------------------------------------------------------------------- */

#define ACTOR_FLIGHTS_MAX 32U

struct actor_flight {
    uint64_t call; /* as the library returned it */
    uint64_t seq;  /* the number that its payload has */
    uint64_t until_ns;
    bool idempotent;
};

struct actor_caller {
    struct actor_part *part;
    struct dlx_caller *k;
    struct actor_flight flights[ACTOR_FLIGHTS_MAX];
    uint32_t n_flights, max_in_flight;
    bool has_room; /* in the ledger */
};

/* Begin a caller of the topic of the part's object; false: the end came first. */
bool actor_caller_begin(struct actor_caller *k, uint32_t max_in_flight);
/* Cancels what is in flight. */
void actor_caller_end(struct actor_caller *k);
/* Begins a call with a payload of this many bytes behind the header. False: it was not sent. */
bool actor_ask(struct actor_caller *k, uint64_t size, int64_t timeout_ns, bool idempotent);
/* Makes a call, and waits for its end. Others are in flight meanwhile. */
void actor_call(struct actor_caller *k, uint64_t size, int64_t timeout_ns, bool idempotent);
/* Takes a result, and checks it. False: none came, or none is in flight. */
bool actor_take_result(struct actor_caller *k, int64_t timeout_ns);
void actor_cancel(struct actor_caller *k, uint32_t i);

/* What a server does with a request. */
enum actor_answer { ACTOR_REPLY, ACTOR_ERROR, ACTOR_LET_GO };

struct actor_server {
    struct actor_part *part;
    struct dlx_service *s;
    bool has_room;   /* in the ledger */
    bool has_failed; /* the last take: a caller may have no link any more */
};

bool actor_server_begin(struct actor_server *s, uint32_t max_held);
void actor_server_end(struct actor_server *s);
/* Takes a request, and checks it; NULL: none came. */
struct dlx_request *actor_take_request(struct actor_server *s, int64_t timeout_ns);
/* Answers it, with a payload of this many bytes, and releases it. */
void actor_answer(struct actor_server *s, struct dlx_request *take_request,
                  enum actor_answer answer, uint64_t size);

/* ---- stories --------------------------------------------------------------------------------- */

int actor_play_random(uint64_t seed); /* story_random.c */
int actor_play_sweeper(void);         /* story_random.c */
/* story_work.c: a worker's life, in a group by chance; in this one, if it is below ACTOR_GROUPS. */
#define ACTOR_GROUPS 3U
void actor_work(struct actor_part *part, uint32_t group);
/* story_call.c: the life of a caller, and of a worker that serves. */
void actor_make_calls(struct actor_part *part);
void actor_serve(struct actor_part *part);
/* A publisher's groups, or none. */
void actor_choose_groups(struct actor_part *part, struct dlx_publisher_args *args);
int actor_play_honest(unsigned n_pairs, uid_t uid); /* story_honest.c */
int actor_play_publisher(void);                     /* story_faults.c */
int actor_play_subscriber(bool reliable);           /* story_faults.c */
int actor_play_asker(void);                         /* story_faults_work.c */
int actor_play_helper(void);                        /* story_faults_work.c */

/* For the stories of faults: between these two the library is at work, and what the process has in
 * between is counted. */
#define ACTOR_STUCK_NS (15 * ACTOR_SECOND) /* then a story does not go on any more */
void actor_faults_begin(void);
int actor_faults_end(void);
void actor_set_scene(enum actor_scene scene);
struct actor_part actor_part_of(struct dlx_client *c, enum actor_kind kind, const char *topic);
bool actor_input_has_ended(int timeout_ms);

#endif
