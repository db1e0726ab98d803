/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_SERVER_H
#define DLX_TESTS_HARNESS_SERVER_H

#include "daemon/persist/manager_fds.h"
#include "tests/fail/harness_fail.h"

#include <check.h>
#include <dlx/dlx.h>

/* The daemon as a thread of this program, with the memory that $DLX_MEMORY names. `fail`: calls of
 * that thread that fail, or NULL. `take_fds`: the descriptors that a service manager has kept, or
 * NULL without one. Only one server at a time. */
void dlx_test_server_start(struct dlx_test_fail *fail, struct dlxd_manager_fds *take_fds);
/* By SIGTERM, which libuv hands on. */
void dlx_test_server_stop(void);
/* Connect to it; returns what dlx_connect() does. */
int dlx_test_server_connect(struct dlx_client **ret);

/* A case of tests/harness/stream.h in whose folder it has its socket. */
TCase *dlx_test_server_case(const char *name);

/* ---- those who use it: no ck_ in these, as calls may fail ------------------------------------ */

enum { DLX_TEST_CAST_TENSORS = 40 };

struct dlx_test_cast {
    const struct dlx_test_fail *fail; /* of whomever; NULL: nothing fails */
    struct dlx_client *c[2];
    struct dlx_publisher *p;
    struct dlx_subscription *s, *pattern;
    struct dlx_observer *o;
    struct dlx_caller *caller;
    struct dlx_service *service;
    struct dlx_request *request;
    struct dlx_message *m;
    DLManagedTensorVersioned *t[DLX_TEST_CAST_TENSORS];
    DLManagedTensor *legacy;
};

/* Give back messages and tensors; or everything, and the clients leave. */
void dlx_test_cast_give_back(struct dlx_test_cast *x);
void dlx_test_cast_leave(struct dlx_test_cast *x);

/* A specification of int64; a message of `n` that count up from `value`, and that `x->m` is one. */
struct dlx_tensor_spec dlx_test_cast_spec(int32_t ndim, const int64_t *shape);
int dlx_test_cast_publish(struct dlx_test_cast *x, int64_t n, int64_t value);
void dlx_test_cast_check(struct dlx_test_cast *x, int64_t n, int64_t value);

/*
 * A story of clients, which ends well or with the code of what failed, and adds how often its
 * clients lost the daemon. It is told with calls of the daemon, or of the library, that fail; then
 * nothing is left at the daemon, and the story goes well. dlx_test_fail_each() tells it.
 */
typedef int (*dlx_test_cast_play)(struct dlx_test_cast *x, uint64_t *ret_n_lost);
enum dlx_test_server_who { DLX_TEST_DAEMON_FAILS, DLX_TEST_LIBRARY_FAILS };
int dlx_test_server_tell(dlx_test_cast_play play, enum dlx_test_server_who who,
                         struct dlx_test_fail *fail);

#endif
