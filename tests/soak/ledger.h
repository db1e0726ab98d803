/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_SOAK_LEDGER_H
#define DLX_SOAK_LEDGER_H

/*
 * What an actor has done, in a file that outlives it: tests/soak/judge.py adds the files of all
 * actors up. One writer a word, the object's thread; numbers of the host. judge.py has the same
 * layout.
 *
 *   0    struct soak_ledger without objects
 *   64   struct soak_object * SOAK_OBJECTS
 */

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define SOAK_MAGIC   UINT64_C(0x3130304b414f5321)
#define SOAK_OBJECTS 64
#define SOAK_KEYS    256
#define SOAK_ERRORS  32

enum soak_kind { SOAK_PUBLISHER = 1, SOAK_SUBSCRIPTION = 2, SOAK_GETTER = 3 };

enum soak_state {
    SOAK_UNUSED,
    SOAK_BEGUN,   /* is being made */
    SOAK_ALIVE,   /* or killed while it was */
    SOAK_CLOSED,  /* in the middle */
    SOAK_DRAINED, /* a subscription that was closed after its last publisher was gone */
};

/* What a subscription got from one publisher. */
struct soak_key {
    uint64_t key;       /* 0: unused */
    uint64_t start;     /* the number before the first that was taken or reported */
    uint64_t last;      /* the last that was taken */
    uint64_t taken;     /* messages */
    uint64_t gaps;      /* sum of dlx_message_gap() */
    uint64_t prev_ns;   /* when message `start` began to be published; 0: not known */
    uint64_t first_ns;  /* when the first was taken */
    uint64_t first_gap; /* of gaps: before the first that was taken */
};

struct soak_object {
    uint32_t kind, state; /* enum soak_kind, enum soak_state */
    char topic[64];
    uint64_t key; /* of a publisher: unique in the run */
    uint64_t begun_ns, ready_ns, ended_ns;
    uint64_t begun,
        done; /* numbers of the messages of a publisher that began to be published, and that are */
    uint64_t bytes; /* published or taken: payload */
    uint64_t taken, skipped, lost, held_max;
    uint32_t flags, n_keys;
    uint32_t errors[SOAK_ERRORS]; /* by -code */
    struct soak_key keys[SOAK_KEYS];
};

#define SOAK_RELIABLE 1U
#define SOAK_LATEST   2U

struct soak_ledger {
    uint64_t magic;
    uint32_t pid, n_objects;
    uint64_t seed;
    uint64_t reserved[5];
    struct soak_object objects[SOAK_OBJECTS];
};

static_assert(offsetof(struct soak_ledger, objects) == 64, "judge.py");
static_assert(sizeof(struct soak_key) == 64, "judge.py");
static_assert(offsetof(struct soak_object, key) == 72, "judge.py");
static_assert(offsetof(struct soak_object, flags) == 160, "judge.py");
static_assert(offsetof(struct soak_object, keys) == 296, "judge.py");

#endif
