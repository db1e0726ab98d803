/* SPDX-License-Identifier: Apache-2.0 */
#include "call.h"
#include <stdlib.h>
#include <string.h>

struct dlxpy_client *dlxpy_client_new(struct dlx_client *c)
{
    struct dlxpy_client *client = malloc(sizeof *client);
    if (!client) {
        dlx_client_unref(c);
        return (struct dlxpy_client *)PyErr_NoMemory();
    }
    atomic_init(&client->refs, 1);
    client->c = c;
    return client;
}

void dlxpy_client_unref(void *data)
{
    struct dlxpy_client *client = data;
    if (atomic_fetch_sub(&client->refs, 1) != 1)
        return;
    dlx_client_unref(client->c);
    free(client);
}

static void call_free(struct dlxpy_job *job)
{
    struct dlxpy_call *call = (struct dlxpy_call *)job;
    dlx_publisher_unref(call->publisher);
    dlx_subscription_unref(call->subscription);
    dlx_message_unref(call->message);
    dlxpy_client_unref(call->client);
    free(call->entries.data);
    free(call->topic);
    free(call);
}

static void run(struct dlxpy_job *job)
{
    struct dlxpy_call *call = (struct dlxpy_call *)job;
    job->r = call->make(call);
}

struct dlxpy_call *dlxpy_call_new(struct dlxpy_handle *connection, const char *topic,
                                  int (*make)(struct dlxpy_call *call))
{
    if (dlxpy_handle_enter(connection) < 0)
        return NULL;
    struct dlxpy_call *call = calloc(1, sizeof *call);
    char *copy = call && topic ? strdup(topic) : NULL;
    if (!call || (topic && !copy)) {
        free(call);
        dlxpy_handle_leave(connection);
        return (struct dlxpy_call *)PyErr_NoMemory();
    }
    dlxpy_job_init(&call->job, run, call_free);
    call->make = make;
    call->topic = copy;
    call->client = connection->of.client;
    atomic_fetch_add(&call->client->refs, 1);
    call->daemon.size = sizeof call->daemon;
    return call;
}

int dlxpy_call_do(struct dlxpy_call *call, const struct dlxpy_handle *connection)
{
    return dlxpy_job_do(&call->job, connection);
}

void dlxpy_call_end(struct dlxpy_call *call, struct dlxpy_handle *connection)
{
    if (!call)
        return;
    Py_BEGIN_ALLOW_THREADS
    dlxpy_job_leave(&call->job);
    Py_END_ALLOW_THREADS
    dlxpy_handle_leave(connection);
}
