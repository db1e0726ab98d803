/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_BROKER_H
#define DLX_TESTS_HARNESS_BROKER_H

/* A broker inside the test's own process, with clients on socket pairs. */

#include "tests/harness/message.h"
#include "daemon/objects/broker.h"
#include "daemon/objects/client.h"
#include "daemon/objects/subscription.h"
#include "tests/harness/run.h"
#include <uv.h>

struct dlx_test_broker {
    uv_loop_t loop;
    struct dlxd_broker broker;
};

void dlx_test_broker_init(struct dlx_test_broker *test, uint64_t ram_bytes);
/* Frees the clients, and checks that nothing is left. */
void dlx_test_broker_deinit(struct dlx_test_broker *test);
/* Handle what is readable and writable now, and wait for what workers do. */
void dlx_test_broker_run(struct dlx_test_broker *test);

/* How many fds this process has open, after closing everything that is to be closed. */
size_t dlx_test_broker_n_fds(struct dlx_test_broker *test);

/* A client, which has sent Hello if it is to have links; `ret_fd` is its own end. */
struct dlxd_client *dlx_test_broker_client(struct dlx_test_broker *test, uint32_t max_links,
                                           int *ret_fd);
/* The same, of a user of its own, by this listening socket. */
struct dlxd_client *dlx_test_broker_client_by(struct dlx_test_broker *test, uint32_t socket,
                                              uint32_t max_links, int *ret_fd);
/* Does what a Subscribe of the client does. */
int dlx_test_broker_offer_all(struct dlxd_subscription *subscription, uint32_t *ret_n);
/* A publisher of the client that is ready and has published this many messages. */
struct dlxd_publisher *dlx_test_broker_publisher(struct dlxd_client *client, const char *topic,
                                                 const struct dlxd_publisher_config *config,
                                                 uint64_t n_published);
/* Hand the broker a packet, without a socket, and do all that the answer takes. */
void dlx_test_broker_request(struct dlxd_client *client, Dlx__Wire__Packet__BodyCase body,
                             void *message, uint32_t serial);

/* Makes the control block, or an arena, ready, as its writer's request does, without an answer. */
void dlx_test_broker_ready(struct dlx_test_broker *test, struct dlxd_publisher *publisher);
void dlx_test_broker_arena_ready(struct dlx_test_broker *test, struct dlxd_publisher *publisher,
                                 uint32_t id);

#endif
