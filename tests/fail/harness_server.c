/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fail/harness_server.h"
#include "common/memory.h"
#include "daemon/server/listener.h"
#include "daemon/server/server.h"
#include <check.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static struct dlxd_server *server;
static pthread_t thread;

static void *run(void *fail)
{
    dlx_test_fail(fail);
    dlxd_server_run(server);
    dlx_test_fail(NULL);
    return NULL;
}

void dlx_test_server_start(const char *path, struct dlx_test_fail *fail)
{
    const char *name = getenv("DLX_MEMORY");
    ck_assert_int_eq(dlxd_server_new(&server, &(struct dlxd_listen){.path = path, .take_fd = -1},
                                     dlx__memory_by_name(name ? name : "memfd")),
                     0);
    ck_assert_int_eq(pthread_create(&thread, NULL, run, fail), 0);
}

void dlx_test_server_stop(void)
{
    ck_assert_int_eq(kill(getpid(), SIGTERM), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    server = dlxd_server_free(server);
}
