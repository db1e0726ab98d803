/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXPY_CALL_H
#define DLXPY_CALL_H

/*
 * What a dlx.Connection asks the daemon: jobs that have the client, which stays until they have ended, and a copy of their arguments. What is
 * made of the answer is moved out of it; what is still in it at the end is dropped.
 */

#include "job.h"

/* The client of a connection: of.any of its handle. */
struct dlxpy_client {
    atomic_uint refs;
    struct dlx_client *c;
};

/* Takes `c` over, also when it fails. NULL with an exception. */
struct dlxpy_client *dlxpy_client_new(struct dlx_client *c);
void dlxpy_client_unref(void *client);

/* A list that grows. */
struct dlxpy_entries {
    char *data;
    size_t item; /* bytes of one */
    size_t n;
    size_t room;
};

struct dlxpy_call {
    struct dlxpy_job job;
    int (*make)(struct dlxpy_call *call); /* calls libdlx */
    struct dlxpy_client *client;
    char *topic; /* NULL: none */
    uint64_t id;
    int64_t timeout_ns;
    struct dlx_publisher_args pub;
    struct dlx_subscribe_args sub;
    struct dlx_publisher *publisher;
    struct dlx_subscription *subscription;
    struct dlx_message *message;
    struct dlx_daemon_info daemon;
    struct dlxpy_entries entries;
};

/* Of a connection that is open, and stays in use until the end. NULL with an exception; `topic` may be NULL. */
struct dlxpy_call *dlxpy_call_new(struct dlxpy_handle *connection, const char *topic,
                                  int (*make)(struct dlxpy_call *call));

/* Make it: dlxpy_job_do(). */
int dlxpy_call_do(struct dlxpy_call *call, const struct dlxpy_handle *connection);

/* NULL is fine. */
void dlxpy_call_end(struct dlxpy_call *call, struct dlxpy_handle *connection);

#endif
