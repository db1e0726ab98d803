/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_LIES_H
#define DLX_TESTS_HARNESS_LIES_H

/*
 * Peers that lie in the pages that they may write, against the real daemon and the real other side.
 * The liar is a publisher or subscription of this process, whose pages are written behind the
 * library's back.
 */

#include "client/publish/make.h"
#include "client/subscribe/subscription.h"
#include "tests/harness/stream.h"

/* Each lie is told to each kind of subscriber; those of other processes also to the last two. */
enum dlx_test_way {
    ONE,
    BATCHES,
    RELIABLE,
    LATEST,
    N_WAYS,
    SPINNING = N_WAYS,
    POLLING,
    N_ALL_WAYS
};

struct dlx_test_scene {
    enum dlx_test_way way;
    struct dlx_client *c;
    struct dlx_publisher *honest, *liar; /* NULL: it is another process's */
    pid_t pid;                           /* of the liar: that is who errors name */
    struct dlx_subscription *s;
    int64_t published; /* by the honest one */
    bool told;         /* that the liar lies */
    struct dlx_message *batch[8];
    uint32_t first, n_batch; /* taken, and not looked at yet */
};

/* Without the liar; and with one of this process. */
struct dlx_test_scene dlx_test_scene_begin(enum dlx_test_way way);
struct dlx_test_scene dlx_test_scene_make_for(enum dlx_test_way way);
/* Where the liar publishes: in mode LATEST a lie is not even looked at if its topic has something
 * newer. */
const char *dlx_test_scene_liar_topic(enum dlx_test_way way);
void dlx_test_scene_end(struct dlx_test_scene *x);
/* A scene declared so ends with its block. */
#define auto_scene DLX_TEST_AUTO(dlx_test_scene_end) struct dlx_test_scene
/* As the subscriber of this kind does it: it comes back in time, and names the liar. */
int dlx_test_scene_take(struct dlx_test_scene *x, int64_t timeout_ns, struct dlx_message **ret);
/* Read the ends of it: they must be inside a mapping, whatever the liar said. */
void dlx_test_scene_touch(struct dlx_message *m);
/* The honest publisher's next message must arrive, whole and in order. Messages of the liar and a
 * BAD_PEER may come before. Returns whether a BAD_PEER came. The second function does so `n` times,
 * and returns whether one came. */
bool dlx_test_scene_honest_goes_on(struct dlx_test_scene *x);
bool dlx_test_scene_honest_goes_on_for(struct dlx_test_scene *x, int n);
/* Where this publisher has its numbers. */
struct dlx_shm_control *dlx_test_control_of(struct dlx_publisher *p);
dlx_atomic_u64 *dlx_test_gen_of(struct dlx_publisher *p, uint64_t n);
/* A message of the liar that it may still change: 16 x 16 bytes, whose words are in `words`. */
struct dlx_block *dlx_test_scene_begin_lie(struct dlx_publisher *p,
                                           uint64_t words[DLX_SHM_ENTRY_WORDS]);

/* A thread that stores any value into any of these words until it is told to stop. */
struct dlx_test_scribbler {
    atomic_bool stop;
    atomic_uint rounds;
    uint64_t seed;
    uint64_t *words;
    size_t n_words;
};

void *dlx_test_scribble(void *userdata);
/* Runs such a thread, or another one with such a start, while the honest publisher goes on `n`
 * times. */
void dlx_test_scene_while(struct dlx_test_scene *x, void *(*thread)(void *),
                          struct dlx_test_scribbler *scribbler, int n);

#endif
