/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_DAEMON_HARNESS_WORKER_H
#define DLX_TESTS_DAEMON_HARNESS_WORKER_H

/* Workers of groups that speak the protocol themselves, with the daemon of harness_served.h. All of
 * them are on the topic "t". */

#include "ring/layout.h"
#include "tests/daemon/harness_served.h"

/* Of the control blocks of their publishers. */
#define DLX_WORKER_ENTRIES 256U

struct dlx_worker {
    struct dlx_test_subscription sub;
    uint64_t link;
    uint32_t owner;
    int claims; /* with the lock of its number */
    int probe;
    int bell;
};

/* A variable that is one of these, and set up, is released at the end of its block. */
#define auto_worker DLX_TEST_AUTO(dlx_worker_deinit) struct dlx_worker

/* The request of a worker; the fields that are named come last. */
#define WORKER_AS(group_name, n_attempts, ...)                                                     \
    WIRE(subscribe, .topic = WIRE_TEXT("t"), .max_held = 1, .group = WIRE_TEXT(group_name),        \
         .max_attempts = (n_attempts), __VA_ARGS__)
/* The one of a worker of a group like others. */
#define WORKER(group_name) WORKER_AS(group_name, 5, .mode = 0)

/* Sends the request. */
void dlx_worker_begin(struct dlx_worker *worker, int control, Dlx__Wire__Subscribe *request);
/* Receives LinkOpen, which stays the current packet. */
const Dlx__Wire__LinkOpen *dlx_worker_open(struct dlx_worker *worker);
/* All of it, with the offer, for a publisher that is there. */
void dlx_worker_join(struct dlx_worker *worker, int control, Dlx__Wire__Subscribe *request);
void dlx_worker_deinit(struct dlx_worker *worker);

/* A publisher of the served client, ready, which declares this group; NULL: none. */
struct dlx_test_publisher dlx_worker_publisher(uint32_t on_full, const char *group);
/* Publishes, as far as the daemon can see: so many messages, the first of which were retired. */
void dlx_worker_publish(const struct dlx_test_publisher *publisher, uint64_t head, uint64_t oldest);

/* Has somebody the lock of this number? */
bool dlx_worker_is_locked(int borrow_probe, uint32_t owner);
/* Write the claims page: the cell of message `n`; the word at `at`. */
void dlx_worker_set_cell(const struct dlx_worker *worker, uint64_t n, enum dlx_shm_cell_state state,
                         uint32_t owner, uint32_t attempt);
void dlx_worker_set_word(const struct dlx_worker *worker, size_t at, uint64_t value);

/* The only group of the topic, as the daemon lists it. */
const Dlx__Wire__GroupEntry *dlx_worker_listed(void);
#define LIST_GROUPS(...) DLX_TEST_BODY(LIST_GROUPS, list_groups, __VA_ARGS__)

#endif
