/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_SUBSCRIPTION_RECONNECT_H
#define DLX_CLIENT_SUBSCRIPTION_RECONNECT_H

#include "client/subscribe/subscription.h"

/* The subscription's daemon is gone: try to subscribe with another one. */
void dlx__subscription_reconnect(struct dlx_subscription *s);

#endif
