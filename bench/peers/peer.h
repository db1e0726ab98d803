/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_BENCH_PEER_H
#define DLX_BENCH_PEER_H

/*
 * What a peer (libdlx is one of them) implements, in C or in another language, and nothing else.
 * pattern.c measures through these functions alone, so that every peer is measured by the same
 * code. Each program has one pattern.c and one peer. A peer uses its library as the library's own
 * documentation recommends.
 *
 * Two processes are forked; each calls prepare once before the fork, then open_out, open_in and
 * connected, with a meeting of the two after each. Channel 0 leads from the first to the second
 * process, channel 1 back. A peer ends the program (bm_fail) when something fails.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PEER_NONE (-1)

struct peer_setup {
    const char *name; /* of this run, unique */
    size_t size;      /* bytes of each message */
    int32_t out, in;  /* channels of this process, or PEER_NONE */
    bool is_blocking; /* peer_receive() sleeps until there is something; else it never sleeps */
    bool is_lossless; /* peer_send() waits where it would drop; else the peer's own default */
    bool is_call;     /* channel 1 has the replies to what channel 0 brings: by calls of the peer's,
                         if it has any. What was received is answered after peer_release() */
};

/** In the parent, before the fork and before any pinning. */
void peer_prepare(const struct peer_setup *s);
void peer_open_out(const struct peer_setup *s);
void peer_open_in(const struct peer_setup *s);

/** Returns when what is sent from now on arrives at the other side. */
void peer_connected(const struct peer_setup *s);

/** A place for a message, aligned to 8 bytes: shared memory where the peer has it. One at a
 * time. */
void *peer_loan(void);

/** Send what was loaned last. */
void peer_send(void);

/** Wait for a message; it stays valid until peer_release(). One at a time. */
const void *peer_receive(void);
void peer_release(void);

void peer_close(void);

/** The library and its version, in words. */
const char *peer_version(void);

#ifdef __cplusplus
}
#endif

#endif
