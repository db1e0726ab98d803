/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_DAEMON_HARNESS_SCENE_H
#define DLX_TESTS_DAEMON_HARNESS_SCENE_H

/*
 * The common part of the tests of the daemon's objects: a broker in the test's own process, its
 * clients, and the packets between them. All of it ends with the test, in a teardown that fails
 * unless nothing is charged to any user and the process has as many descriptors as before the test.
 * One thread; a failure ends the test.
 */

#include "daemon/objects/publisher.h"
#include "tests/daemon/harness_users.h"
#include "tests/harness/broker.h"
#include "tests/harness/run.h"

/* The broker of the running test. */
extern struct dlx_test_broker dlx_scene;

/* A test case whose tests have a scene each. `prepare` makes what they begin with, or is NULL. */
TCase *dlx_scene_case(const char *name, void (*prepare)(void));

/* The test closes this descriptor when it ends; or now. Returns it. */
int dlx_scene_keep(int take_fd);
void dlx_scene_close(int fd);

/* A client of the user that comes by this listening socket (0: the main one). The client has sent
 * Hello unless max_links is 0. */
struct dlxd_client *dlx_scene_client(uint32_t socket, uint32_t max_links);
/* The test's end of its control socket. */
int dlx_scene_fd(const struct dlxd_client *client);
/* A user of the broker without a client; it stays until the test ends. */
struct dlxd_user *dlx_scene_user(uid_t uid, const char *socket);

/* Send a message to the broker, which does nothing with it yet. */
void dlx_scene_send(int fd, void *message, uint32_t serial);
/* The next packet, which is there already; valid until the next call. NULL: there is none. */
const Dlx__Wire__Packet *dlx_scene_receive(int fd);
/* The same; it has this body. */
const Dlx__Wire__Packet *dlx_scene_expect(int fd, Dlx__Wire__Packet__BodyCase body);
/* A descriptor of the last packet; those that are not taken are closed by the next one, or now. */
int dlx_scene_take_fd(size_t i);
void dlx_scene_close_received(void);
/* The daemon has closed its end, and nothing is left to receive. */
void dlx_scene_expect_end(int fd);
/* Receive all that is there. Returns how many packets that was. */
size_t dlx_scene_receive_all(int fd);

/* The client's request without a socket, and the reply to it. */
const Dlx__Wire__Packet *dlx_scene_call(struct dlxd_client *client, void *message);
/* The same; the reply has this body. */
const Dlx__Wire__Packet *dlx_scene_call_gets(struct dlxd_client *client, void *message,
                                             Dlx__Wire__Packet__BodyCase reply);
/* The same; the reply is an Error with this code, and with these words in its text. */
void dlx_scene_call_fails(struct dlxd_client *client, void *message, int code, const char *words);
/* A request for a publisher like dlx_scene_plain. */
Dlx__Wire__PublisherNew dlx_scene_publisher_new(const char *topic);

/* Of a publisher that does not block and retains nothing: the rest of its fields are 0. */
extern const struct dlxd_publisher_config dlx_scene_plain;
/* Other arguments, written where they are used: PUBLISHER_CONFIG(.history = 4, .retain = 2). */
#define PUBLISHER_CONFIG(...)                                                                      \
    (&(const struct dlxd_publisher_config){.depth = 16, .n_entries = 256, __VA_ARGS__})
#define SUBSCRIPTION_CONFIG(...) (&(const struct dlxd_subscription_config){__VA_ARGS__})

/* A ready publisher that is offered to all subscriptions. */
struct dlxd_publisher *dlx_scene_publisher(struct dlxd_client *client, const char *topic);
/* The same; the test has its end of the link socket, which stays open until the test ends. */
struct dlxd_publisher *dlx_scene_publisher_linked(struct dlxd_client *client, const char *topic,
                                                  int *ret_link_sock);
void dlx_scene_offer(struct dlxd_publisher *publisher);
/* A subscription of which the test has the other end, until it ends. Without a `config` it may hold
 * one message. */
struct dlxd_subscription *dlx_scene_subscription(struct dlxd_client *client, const char *pattern,
                                                 const struct dlxd_subscription_config *config,
                                                 int *ret_sock);
/* As its Subscribe does: it is offered what there is. Returns how many links that are. */
uint32_t dlx_scene_subscribed(struct dlxd_subscription *subscription);
/* Accept the offer of a link that was just received: allocate its page, and send LinkReady and Ack,
 * which are on their way then. The page is mapped until the test ends. */
struct dlx_shm_link *dlx_scene_accept(int sock, const Dlx__Wire__Packet *offer);
/* Allocate a region through its writer's descriptor. */
void dlx_scene_allocate(int take_fd, uint64_t size);
/* An arena that is ready. */
struct dlxd_arena *dlx_scene_arena(struct dlxd_publisher *publisher, uint64_t size);
/* The oldest link of a subscription that has one. */
struct dlxd_link *dlx_scene_link(const struct dlxd_subscription *subscription);
/* The daemon looks now what users have received of what it sent them. */
void dlx_scene_look(void);

#endif
