/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_HANDLER_H
#define DLXD_HANDLER_H

/* What each request does. The packet is validated and the client has said Hello. A handler that
 * returns 0 has replied or will reply, and nothing is read from the client before the reply. A
 * handler that fails has changed nothing, and dispatch.c sends the Error. */

#include "common/proto.h"

struct dlxd_client;
struct dlxd_subscription;

/* handler_client.c */
int dlxd_handle_hello(struct dlxd_client *client, const Dlx__Wire__Packet *packet);
int dlxd_handle_daemon_info(struct dlxd_client *client, const Dlx__Wire__Packet *packet);
/* Replies with Ok. Always returns 0. */
int dlxd_reply_ok(struct dlxd_client *client, const Dlx__Wire__Packet *request);
/* Disconnects a client whose version has no such field, and returns true. */
bool dlxd_field_is_newer(struct dlxd_client *client, const char *what, uint32_t since);

/* handler_publisher.c */
int dlxd_handle_publisher_new(struct dlxd_client *client, const Dlx__Wire__Packet *packet);
int dlxd_handle_publisher_ready(struct dlxd_client *client, const Dlx__Wire__Packet *packet);
int dlxd_handle_publisher_close(struct dlxd_client *client, const Dlx__Wire__Packet *packet);
int dlxd_handle_publisher_retains(struct dlxd_client *client, const Dlx__Wire__Packet *packet);
int dlxd_handle_retained_drop(struct dlxd_client *client, const Dlx__Wire__Packet *packet);
int dlxd_handle_groups_drop(struct dlxd_client *client, const Dlx__Wire__Packet *packet);
int dlxd_handle_arena_new(struct dlxd_client *client, const Dlx__Wire__Packet *packet);
int dlxd_handle_arena_ready(struct dlxd_client *client, const Dlx__Wire__Packet *packet);
int dlxd_handle_arena_drop(struct dlxd_client *client, const Dlx__Wire__Packet *packet);

/* handler_subscription.c; the last three are for the subscription socket */
int dlxd_handle_subscribe(struct dlxd_client *client, const Dlx__Wire__Packet *packet);
int dlxd_handle_subscription_close(struct dlxd_client *client, const Dlx__Wire__Packet *packet);
int dlxd_handle_link_ready(struct dlxd_subscription *subscription, const Dlx__Wire__Packet *packet);
int dlxd_handle_ack(struct dlxd_subscription *subscription, const Dlx__Wire__Packet *packet);
int dlxd_handle_link_close(struct dlxd_subscription *subscription, const Dlx__Wire__Packet *packet);

/* handler_gpu.c */
int dlxd_handle_gpu_keep(struct dlxd_client *client, const Dlx__Wire__Packet *packet);
int dlxd_handle_gpu_allocate(struct dlxd_client *client, const Dlx__Wire__Packet *packet);
int dlxd_handle_gpu_free(struct dlxd_client *client, const Dlx__Wire__Packet *packet);
int dlxd_handle_gpu_serve(struct dlxd_client *client, const Dlx__Wire__Packet *packet);
int dlxd_handle_gpu_get(struct dlxd_client *client, const Dlx__Wire__Packet *packet);

/* handler_former.c */
int dlxd_handle_former_new(struct dlxd_client *client, const Dlx__Wire__Packet *packet);
int dlxd_handle_former_ready(struct dlxd_client *client, const Dlx__Wire__Packet *packet);

/* handler_list.c */
int dlxd_handle_list_publishers(struct dlxd_client *client, const Dlx__Wire__Packet *packet);
int dlxd_handle_list_links(struct dlxd_client *client, const Dlx__Wire__Packet *packet);

/* handler_subscription_list.c */
int dlxd_handle_list_subscriptions(struct dlxd_client *client, const Dlx__Wire__Packet *packet);
int dlxd_handle_list_refusals(struct dlxd_client *client, const Dlx__Wire__Packet *packet);

/* handler_client_list.c */
int dlxd_handle_list_clients(struct dlxd_client *client, const Dlx__Wire__Packet *packet);
int dlxd_handle_kick(struct dlxd_client *client, const Dlx__Wire__Packet *packet);

/* handler_observer.c */
int dlxd_handle_observe(struct dlxd_client *client, const Dlx__Wire__Packet *packet);

/* handler_group.c */
int dlxd_handle_list_groups(struct dlxd_client *client, const Dlx__Wire__Packet *packet);
int dlxd_handle_list_claims(struct dlxd_client *client, const Dlx__Wire__Packet *packet);

/* handler_quota.c */
int dlxd_handle_list_quotas(struct dlxd_client *client, const Dlx__Wire__Packet *packet);

#endif
