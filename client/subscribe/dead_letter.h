/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_DEAD_LETTER_H
#define DLX_CLIENT_DEAD_LETTER_H

/* Dead letters: messages of a group that were given back too often. */

#include <dlx/dlx.h>

struct dlx_worker;

/* Publishes a copy on the worker's topic for dead letters. Returns what became of it, in words that
 * are valid until the thread's next call. */
const char *dlx__dead_letter_copy(struct dlx_worker *worker, struct dlx_client *c,
                                  struct dlx_message *m);

#endif
