/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_MANAGER_H
#define DLX_TESTS_HARNESS_MANAGER_H

/*
 * A stand-in for the service manager, which keeps descriptors and passes them to the next daemon:
 * what sd_notify(3) says of FDSTORE, FDSTOREREMOVE, FDNAME, FDPOLL and BARRIER. The stand-in cannot
 * prove that systemd does the same: when systemd drops descriptors by itself (a stopped unit), or
 * how long it takes.
 */

#include "tests/harness/daemon.h"
#include <stdatomic.h>

#define DLX_TEST_KEPT_MAX 256U

struct dlx_test_kept {
    char name[128];
    int fd;
};

struct dlx_test_manager {
    char path[256];
    int sock;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    struct dlx_test_kept kept[DLX_TEST_KEPT_MAX];
    size_t n;
    const char *fault; /* the first message that was wrong */
    atomic_bool stop;
    atomic_bool stalled; /* the manager does not read */
    char max[16];        /* $FDSTORE */
};

/* For dlx_test_daemon_start_prepared(): pass these sockets to the daemon, with their names
 * ("a:b"). */
void dlx_test_pass_sockets(const int *fds, int n, const char *names);

/* In the folder of the daemon. */
void dlx_test_manager_start(struct dlx_test_manager *manager, const struct dlx_test_daemon *daemon);
/* Closes everything. */
void dlx_test_manager_stop(struct dlx_test_manager *manager);
/* Start the daemon under the manager, which must keep this many descriptors, with the kept ones. */
void dlx_test_manager_run(struct dlx_test_manager *manager, struct dlx_test_daemon *daemon,
                          unsigned max_fds);
/* How many descriptors have a name that begins like this? */
size_t dlx_test_manager_n_kept(struct dlx_test_manager *manager, const char *prefix);
/* Wait for that number. */
void dlx_test_manager_wait_n_kept(struct dlx_test_manager *manager, const char *prefix, size_t n);
/* Keep a descriptor, as if a daemon had sent it. */
void dlx_test_manager_keep(struct dlx_test_manager *manager, const char *name, int take_fd);

#endif
