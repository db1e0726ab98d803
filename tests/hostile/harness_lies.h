/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_LIES_H
#define DLX_TESTS_HARNESS_LIES_H

/*
 * Peers that lie in the pages that they may write, against the real daemon and the real other side.
 * The liar is a publisher or subscription of this process, whose pages are written behind the
 * library's back.
 */

#include "client/publish/publish.h"
#include "client/subscribe/subscription.h"
#include "tests/harness/stream.h"
#include <pthread.h>

/* Each lie is told to each kind of subscriber. */
enum dlx_test_way { ONE, BATCHES, RELIABLE, LATEST, N_WAYS };

struct dlx_test_scene {
    enum dlx_test_way way;
    struct dlx_client *c;
    struct dlx_publisher *honest, *liar;
    struct dlx_subscription *s;
    int64_t published; /* by the honest one */
    struct dlx_message *batch[8];
    uint32_t first, n_batch; /* taken, and not looked at yet */
};

struct dlx_test_scene dlx_test_scene_make_for(enum dlx_test_way way);
struct dlx_test_scene dlx_test_scene_make(void);
void dlx_test_scene_end(struct dlx_test_scene *x);
/* As the subscriber of this kind does it. */
int dlx_test_scene_take(struct dlx_test_scene *x, int64_t timeout_ns, struct dlx_message **ret);
/* Read all of it: it must be inside a mapping, whatever the liar said. */
void dlx_test_scene_touch(struct dlx_message *m);
/* What the honest publisher sends arrives, whole and next in order. Messages of the liar and one
 * BAD_PEER may come before. Returns whether that came. */
bool dlx_test_scene_honest_goes_on(struct dlx_test_scene *x);
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

#endif
