/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_CONTAINER_H
#define DLX_TESTS_HARNESS_CONTAINER_H

/*
 * Processes in containers: pid, ipc, mount, network, uts and user namespaces of their own, and a
 * root folder that has the daemon's folder (read-only), a /proc and a /dev/shm of its own, the file
 * of the stand-in GPU driver if there is one, and nothing else. With another driver than the
 * stand-in (DLX_TEST_GPU_DRIVER) also what a container with a GPU has: the programs and libraries
 * of this machine, read-only, and the device files of its GPUs.
 */

#include "tests/harness/daemon.h"

/* The uid outside of such a container that root has in it. */
#define DLX_TEST_ALICE 64001
#define DLX_TEST_BOB   64002

/* May this process make namespaces? If not, says why the test is skipped. Also outside of tests. */
bool dlx_test_container_may(void);

struct dlx_test_container {
    pid_t pid; /* as the test sees it */
    int sock;  /* packets each way */
};

/*
 * A copy of this process, as of fork(), that is pid 1 in a container, where its root is `uid`. Runs
 * `role` with its end of the socket, and ends with status 0 when that returns. The daemon's path is
 * that in the container then. Before this process has threads.
 */
typedef void dlx_test_container_role(int sock);
struct dlx_test_container dlx_test_container_start(struct dlx_test_daemon *daemon, uid_t uid,
                                                   dlx_test_container_role *role);
/* The same, and the role is run by pid 2, a child of pid 1. */
struct dlx_test_container dlx_test_container_start_second(struct dlx_test_daemon *daemon, uid_t uid,
                                                          dlx_test_container_role *role);
/* Waits for the end of the container, whose role must have passed. */
void dlx_test_container_join(struct dlx_test_container *container);
/* SIGKILL to pid 1: the kernel ends the others. */
void dlx_test_container_kill(struct dlx_test_container *container);

void dlx_test_container_say(int sock, uint64_t word);
uint64_t dlx_test_container_hear(int sock);

/*
 * For dlx_test_daemon_start_prepared(): the daemon is to run as pid 1 in such namespaces of its
 * own, where uid 0 alone has a name. The test's pid of the daemon is that of a process that passes
 * SIGTERM on.
 */
void dlx_test_container_enter(void *userdata);
/* dlx_test_daemon_kill() for such a daemon, which alone would return before the daemon is dead. */
void dlx_test_container_kill_daemon(struct dlx_test_daemon *daemon);

#endif
