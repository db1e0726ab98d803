/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_FORMER_H
#define DLX_CLIENT_FORMER_H

/* Tells a daemon what the client maps of memory that was made on earlier connections
 * (client/base/mapped.h): messages that are held, and what a publisher keeps of the last daemon. A
 * daemon that is not told charges no user for it. */

#include "client/control/client.h"

/* A connection was made; the caller has the lock. What fails is told by dlx__former_tell_more(). */
void dlx__former_tell(struct dlx_client *c);
/* An object has come to the new daemon: its memory of the last one changes no more, or it has read
 * the last of the old daemon's notifications. Tells again if something was not told. */
void dlx__former_tell_more(struct dlx_client *c);

#endif
