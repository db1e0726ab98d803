/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_GPU_SERVE_H
#define DLX_GPU_SERVE_H

/*
 * Memory of publishers of this process that the keeper has not: of frameworks, and arenas that a
 * lost keeper had. A thread, one for the process while there is such a publisher, sends its
 * descriptors to readers for which the daemon asks, whether or not the program makes a call.
 *
 *     daemon -- ASK [reader's socket] --> the publisher's socket
 *     reader's socket: PART, one after the other, or REFUSAL --> closed
 *
 * The kernel counts the descriptors that are on their way, for each user: so the next part follows
 * when the reader has received the last one. A reader that receives nothing for a while is given
 * up. The thread waits for nobody, and calls no driver: a part is sent while the export cannot be
 * dropped, and holds none.
 *
 * Calls are safe from any thread. In a forked child they do nothing.
 */

#include "gpu/exports.h"

struct dlx_gpu_words;

/* The most readers that are served at a time. The others wait in the sockets of publishers. */
#define DLX_GPU_READERS_MAX 64U
/* When a reader that receives nothing is given up. */
#define DLX_GPU_READER_NS UINT64_C(2000000000)

/* Serve what the publisher exports, and pages of `words` (NULL: it has none), to those for whom the
 * daemon asks on this socket. It takes the place of the publisher's former one. DLX_E_NO_MEMORY,
 * DLX_E_FD_LIMIT, DLX_E_LIMIT (no thread), DLX_E_FORKED: the socket is closed, and the former one,
 * too. */
int dlx__gpu_serve(const struct dlx_gpu_exports *exports, struct dlx_gpu_words *words,
                   int take_sock);
/* The publisher ends. It may never have begun. */
void dlx__gpu_serve_end(const struct dlx_gpu_exports *exports);

#endif
