/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_FAULTS_ACTOR_H
#define DLX_TESTS_FAULTS_ACTOR_H

/* What the publisher and the subscribers of tests/fail/faults have in common. */

#include "tests/fail/faults/page.h"
#include <dlx/dlx.h>

#define SECOND   INT64_C(1000000000)
#define STUCK_NS (15 * SECOND) /* then it does not go on any more */

/* The story, see publisher.c; numbers of messages of the stream faults/main. */
#define LAST_BIG                                                                                   \
    40 /* until here there are large ones, too: arenas are made. Then comes faults/side */
#define LEAVE_AT  200 /* B leaves and comes back */
#define HOLD_FROM 220 /* B holds many: the publisher needs more memory */
#define HOLD_MANY 48
#define LAST      400
#define ENCORES   100 /* more last messages, for who could not take part because its daemon ended */
#define LAST_SIDE 160 /* of faults/side */
#define HELD_MAX  64

extern struct fault_page *page;
extern const char *actor_name;

/* Between these two marks (a system call that nobody else makes) the library is at work. */
void actor_mark(void);

/* A call has failed with a code: print it. Ends the process when it was too often. */
void actor_error(const char *what, int code);
/* What may not be. Ends the process. */
_Noreturn void actor_wrong(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void actor_print(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
unsigned actor_n_errors(void);

/* Publishers of faults/ that are there, retained ones not. */
uint32_t actor_n_publishers(struct dlx_client *c, struct dlx_publisher_info *ret_main);

int64_t actor_now(void);
struct dlx_client *actor_connect(const char *socket);

/* Open files and mappings of shared memory of this process. */
struct actor_usage {
    int fds;
    int maps;
};
struct actor_usage actor_usage(void);

/* The shape and the content of tensor k of message i of a stream. */
int64_t actor_words(int64_t i, uint32_t k);
uint32_t actor_n_tensors(int64_t i);
void actor_fill(uint64_t *data, uint64_t stream, int64_t i, uint32_t k);
/* Returns the number of the message, having checked every word. */
int64_t actor_check(const DLTensor *t, uint32_t k, uint64_t *ret_stream);

int actor_publish(const char *socket);
int actor_subscribe(const char *socket, bool reliable);

#endif
