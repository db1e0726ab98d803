/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_TRAP_H
#define DLX_TESTS_HARNESS_TRAP_H

/* A descriptor that holds up the process that closes it, sent to the daemon so that no other
 * process has it when the daemon looks. */

#include "tests/harness/stream.h"

enum dlx_test_trap_way {
    READ_BY_THE_DAEMON,
    LEFT_IN_THE_SOCKET,
    BEFORE_IT_ACCEPTS,
    ON_A_SUBSCRIPTION,
    ON_A_LINK_SOCKET, /* which the daemon never reads */
    N_TRAP_WAYS
};

struct dlx_test_trap {
    enum dlx_test_trap_way way;
    int fd; /* of the one who sends it */
    struct dlx_test_subscription s;
    struct dlx_test_publisher p;
};

/* Stop the daemon and send it; false: the kernel refuses that (Linux 6.16). The caller closes what
 * it has of it then. */
bool dlx_test_trap_send(struct dlx_test_trap *trap, enum dlx_test_trap_way way, int borrow_fd);
/* The daemon goes on. */
void dlx_test_trap_resume(struct dlx_test_trap *trap);
/* Another client is served within that time, before and after the sender has left. */
void dlx_test_trap_end(struct dlx_test_trap *trap, int64_t within_ns);

void dlx_test_trap_daemon_answers(int64_t within_ns, const char *when);
/* Skipped where it cannot be tried: `sent`, though it is to be refused, or the other way. */
void dlx_test_trap_skip(bool sent, bool is_refused);
/* Another daemon, as if the kernel were one that lets every descriptor pass. */
void dlx_test_trap_on_an_older_kernel(void);

#endif
