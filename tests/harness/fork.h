/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_FORK_H
#define DLX_TESTS_HARNESS_FORK_H

#include "tests/harness/run.h"

/*
 * fork(), for a child that runs parts of a test. Check's assertions write each step to a file that
 * parent and child share: a child killed inside write() would leave half a line there, on which
 * Check ends ("Bad message type"). So the child's assertions write nowhere; one that fails ends the
 * child with status 1. No other thread may be in an assertion of Check, not even in one that holds:
 * each takes a lock, for which the child's first assertion would wait for ever.
 */
pid_t dlx_test_fork(void);

/* A child that says when it is ready, and waits to be killed: dlx_test_fork_ready() does both, and
 * dlx_test_fork_wait_ready() returns the child's id when it is ready. */
struct dlx_test_child {
    pid_t pid;
    int ready[2];
};
struct dlx_test_child dlx_test_fork_child(void);
_Noreturn void dlx_test_fork_ready(const struct dlx_test_child *child);
pid_t dlx_test_fork_wait_ready(const struct dlx_test_child *child);

/* A child with one end of a socket, on which parent and child write a byte when the other is to go
 * on. The child runs `part`, and ends with status 0 when that returns; or with the test. */
struct dlx_test_part {
    pid_t pid;
    int sock;
};
struct dlx_test_part dlx_test_part_begin(void (*part)(int sock, const void *userdata),
                                         const void *userdata);
/* The same, forked by this function, which gives the child this number. */
struct dlx_test_part dlx_test_part_begin_as(pid_t number, pid_t (*forks)(pid_t number),
                                            void (*part)(int sock, const void *userdata),
                                            const void *userdata);
void dlx_test_say(int sock);
void dlx_test_hear(int sock);
/* join: the child must end with status 0. kill: it must not have failed before. Both close the
 * socket. */
void dlx_test_part_join(const struct dlx_test_part *part);
void dlx_test_part_kill(const struct dlx_test_part *part);

/* Wait for the child's end. Returns its exit status, or 256 + the signal that ended it. */
int dlx_test_fork_status(pid_t pid);
/* The same of a child that runs `part`, which may call exec; `said` is all of its stderr. */
int dlx_test_fork_said(void (*part)(const void *userdata), const void *userdata, char *said,
                       size_t size);

/* A child and its parent, each with an end of a socket, by which one tells the other a byte. In the
 * child `pid` is 0. */
struct dlx_test_peer {
    pid_t pid;
    int sock;
};
struct dlx_test_peer dlx_test_fork_peer(void);
void dlx_test_peer_say(const struct dlx_test_peer *peer);
void dlx_test_peer_hear(const struct dlx_test_peer *peer);
/* In the parent: runs `part` in a child, and returns when the child has said so. */
struct dlx_test_peer dlx_test_peer_begin(void (*part)(struct dlx_test_peer *parent));
/* In the parent: dlx_test_fork_join() or dlx_test_fork_kill(). */
void dlx_test_peer_join(struct dlx_test_peer *peer);
void dlx_test_peer_kill(struct dlx_test_peer *peer);

/* The child ends with status 0. */
void dlx_test_fork_join(pid_t pid);
/* The child is killed and reaped. */
void dlx_test_fork_kill(pid_t pid);

/* Let the assertions of a child that was made otherwise write nowhere. */
void dlx_test_fork_silence(void);

#endif
