/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_DAEMON_HARNESS_SERVED_H
#define DLX_TESTS_DAEMON_HARNESS_SERVED_H

/*
 * A real daemon for each test, and a client of it, which is not to notice what other clients do. At
 * the end of the test the daemon still serves that client, has as many descriptors as at its start,
 * ends with status 0, and leaves no socket.
 */

#include "tests/harness/daemon.h"

/* The child becomes this user, without groups, in the folder of the daemon's socket: the user need
 * not be able to search the folders above. Ends with status 10 if that fails. */
void dlx_test_become(const struct dlx_test_daemon *daemon, uid_t uid);

extern struct dlx_test_daemon dlx_served;
/* The control socket of the client; it may have 1000 links. */
extern int dlx_served_client;

TCase *dlx_served_case(const char *name);
/* For a test that has ended the daemon itself: start another one, with "NAME=value" or NULL. */
void dlx_served_start(const char *env);
/* Call this in the child before the daemon of each test. NULL: nothing. */
extern void (*dlx_served_prepare)(void *userdata);

/* The client is served. The client's earlier packets were handled, with everything that follows
 * from them. */
void dlx_served_barrier(void);
/* The publisher's own requests. */
void dlx_served_publisher_close(const struct dlx_test_publisher *publisher);
void dlx_served_arena_drop(const struct dlx_test_publisher *publisher, uint32_t arena);
/* A publisher of the client on this topic, ready; and a subscription that may lose messages. */
struct dlx_test_publisher dlx_served_publisher(const char *topic);
struct dlx_test_subscription dlx_served_subscription(const char *topic);

#endif
