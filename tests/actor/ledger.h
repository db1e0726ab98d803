/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_ACTOR_LEDGER_H
#define DLX_ACTOR_LEDGER_H

/*
 * The record of an actor, in a file that outlives it: $ACTOR_LEDGER_FD is its descriptor. Numbers
 * of the host; one writer a word. ledger.py has the same layout.
 *
 *   0     struct actor_head
 *   4096  struct actor_object * ACTOR_OBJECTS
 *         struct actor_step * ACTOR_STEPS
 */

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define ACTOR_LEDGER_ENV      "ACTOR_LEDGER_FD"
#define ACTOR_MAGIC           UINT64_C(0x3130304b414f5321)
#define ACTOR_HEAD_SIZE       4096
#define ACTOR_OBJECTS         64
#define ACTOR_KEYS            256
#define ACTOR_ERRORS          64
#define ACTOR_STEPS           (1U << 20)
#define ACTOR_KEYS_OF_PROCESS 1000 /* the key of object i is pid * that + i */

enum actor_kind {
    ACTOR_PUBLISHER = 1,
    ACTOR_SUBSCRIPTION,
    ACTOR_GETTER,
    ACTOR_WORKER,
    ACTOR_CALLER,
    ACTOR_SERVER,
};

enum actor_state {
    ACTOR_UNUSED,
    ACTOR_BEGUN,   /* is being made */
    ACTOR_ALIVE,   /* or its process was killed while it was */
    ACTOR_CLOSED,  /* in the middle */
    ACTOR_DRAINED, /* a subscription that was closed after its last publisher was gone */
};

/* The stages of a story's process (tests/fail/faults). */
enum actor_scene {
    ACTOR_STARTING,
    ACTOR_STREAMING, /* messages flow */
    ACTOR_FINISHED,  /* a publisher: everything is published; others: about to exit */
    ACTOR_WAITING,   /* a publisher: for a subscriber to join */
};

/* Any process has one, also dlpackd and dlxctl: libfaultalloc.so writes to it. */
struct actor_head {
    /* Set by the driver: allocations number fail_from to fail_from + fail_count - 1 fail. */
    uint64_t fail_from, fail_count;
    /* Set by the driver, for a publisher: subscribers to wait for. */
    _Atomic uint64_t wanted;
    /* Of libfaultalloc.so. */
    _Atomic uint64_t allocations;
    _Atomic int64_t live; /* blocks that were not freed */
    _Atomic uint64_t failed;
    /* Of the actor. */
    uint64_t magic, seed;
    uint32_t pid;
    _Atomic uint32_t n_objects;
    _Atomic uint32_t scene;
    _Atomic uint32_t n_errors;
    int32_t fds, maps;        /* that it has more at its end than at its beginning */
    _Atomic uint32_t n_steps; /* that were begun */
    uint32_t reserved;
};

/* The messages that a subscription got from one publisher. */
struct actor_key {
    uint64_t key;       /* 0: unused */
    uint64_t start;     /* the number before the first that was taken or reported */
    uint64_t last;      /* the last that was taken */
    uint64_t taken;     /* messages */
    uint64_t gaps;      /* sum of dlx_message_gap() */
    uint64_t prev_ns;   /* when message `start` began to be published; 0: not known */
    uint64_t first_ns;  /* when the first was taken */
    uint64_t first_gap; /* of gaps: before the first that was taken */
    uint64_t lost_told; /* events DLX_EVENT_LOST of its process */
};

struct actor_object {
    uint32_t kind, state; /* enum actor_kind, enum actor_state */
    char topic[64];
    uint64_t key; /* of a publisher or a caller: unique in the run */
    uint64_t begun_ns, ready_ns, ended_ns;
    /* Messages of a publisher that began to be published, and that are; calls that began. */
    uint64_t begun, done;
    uint64_t bytes; /* published or taken: payload */
    uint64_t taken, skipped, lost, held_max;
    uint32_t flags, n_keys;
    uint32_t depth, n_arenas[2];   /* arenas: in the middle, and at the end */
    uint32_t errors[ACTOR_ERRORS]; /* by -code */
    struct actor_key keys[ACTOR_KEYS];
};

#define ACTOR_RELIABLE 1U
#define ACTOR_LATEST   2U
#define ACTOR_DECLARES 4U /* a publisher: groups a and b */

/* What a worker did with a message; what became of a call. */
enum actor_what {
    ACTOR_TOOK = 1,
    ACTOR_SAYS_DONE, /* is about to */
    ACTOR_DID,
    ACTOR_WAS_LATE, /* it was not this worker's any more */
    /* Of a caller. */
    ACTOR_ASKS,      /* is about to; `group`: 1 if it is idempotent */
    ACTOR_WAS_ASKED, /* the request was sent */
    ACTOR_NOT_ASKED,
    ACTOR_GOT, /* the result; `attempt`: 0, or an error code without its sign */
    ACTOR_CANCELLED,
    /* Of a server. */
    ACTOR_SERVES,  /* took a request */
    ACTOR_ANSWERS, /* is about to; `group`: enum actor_answer */
};

struct actor_step {
    uint64_t ns;
    uint64_t key; /* of the publisher, or the caller */
    uint32_t seq;
    uint8_t group; /* 0: a, and so on; of a call: see above */
    uint8_t attempt;
    _Atomic uint8_t what; /* written last; 0: the process was killed before */
    uint8_t reserved;
};

struct actor_ledger {
    struct actor_head head;
    uint8_t reserved[ACTOR_HEAD_SIZE - sizeof(struct actor_head)];
    struct actor_object objects[ACTOR_OBJECTS];
    struct actor_step steps[ACTOR_STEPS];
};

static_assert(sizeof(struct actor_head) == 96, "ledger.py");
static_assert(sizeof(struct actor_key) == 72, "ledger.py");
static_assert(sizeof(struct actor_step) == 24, "ledger.py");
static_assert(offsetof(struct actor_object, flags) == 160, "ledger.py");
static_assert(offsetof(struct actor_object, keys) == 440, "ledger.py");

#endif
