/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_KEEPER_H
#define DLX_TESTS_HARNESS_KEEPER_H

/* The GPU keeper's processes, spoken to directly: memfds stand for GPU memory. A failure ends the
 * test. Everything waits for an event, ten seconds at most. */

#include "gpu/handle.h"
#include "keeper/router.h"
#include "keeper/wire.h"
#include "tests/harness/run.h"

/* A cuda_vmm allocation of this many chunks, all of one file of its own. */
void dlx_test_keeper_handle(struct dlx_gpu_handle *ret, uint64_t id, uint32_t n_chunks);
/* Are these of the same memory? The descriptors differ. */
bool dlx_test_keeper_same(const struct dlx_gpu_handle *a, const struct dlx_gpu_handle *b);

/* Send all parts, and wait for the answer: its code. The words are in `ret_text`. */
int dlx_test_keeper_put(int sock, uint32_t serial, const struct dlx_gpu_handle *handle,
                        char ret_text[DLX_ERROR_TEXT_SIZE]);
void dlx_test_keeper_drop(int sock, uint64_t id);
/* The next ANSWER or OWNED. */
int dlx_test_keeper_answer(int sock, enum dlx_keeper_kind kind, uint32_t serial,
                           char ret_text[DLX_ERROR_TEXT_SIZE]);

/* A socket for a reader, which cannot send on it: `ret_theirs` is for the keeper. */
int dlx_test_keeper_reply_socket(int *ret_theirs);
/* The answer on the socket, until its end: 0 and a handle, or the code. Drops the former content of
 * `ret`. */
int dlx_test_keeper_receive(int sock, struct dlx_gpu_handle *ret,
                            char ret_text[DLX_ERROR_TEXT_SIZE]);
/* The same, with a pause before each packet. */
int dlx_test_keeper_receive_slowly(int sock, int pause_ms, struct dlx_gpu_handle *ret,
                                   char ret_text[DLX_ERROR_TEXT_SIZE]);

/* The router as a process of this program. */
struct dlx_test_keeper {
    pid_t pid;
    char path[108]; /* ends with DLX_KEEPER_SUFFIX */
    int daemon;     /* a connection, as the daemon has it */
    uint32_t serial;
};

void dlx_test_keeper_start(struct dlx_test_keeper *keeper,
                           const struct dlxk_router_options *options);
/* Connect as a daemon, which takes the place of the last one. */
void dlx_test_keeper_connect(struct dlx_test_keeper *keeper);
/* SIGKILL. */
void dlx_test_keeper_kill(struct dlx_test_keeper *keeper);
/* Wait until the router has ended by itself; its exit status. */
int dlx_test_keeper_wait(struct dlx_test_keeper *keeper);

/* As the daemon: the publisher's end of a new holder; or the code. */
int dlx_test_keeper_own(struct dlx_test_keeper *keeper, uint64_t origin, uint64_t user,
                        int *ret_owner, char ret_text[DLX_ERROR_TEXT_SIZE]);
/* The reader's end. */
int dlx_test_keeper_ask(const struct dlx_test_keeper *keeper, uint64_t origin, uint64_t user,
                        uint32_t reader, uint64_t allocation);
void dlx_test_keeper_tell(const struct dlx_test_keeper *keeper, enum dlx_keeper_kind kind,
                          uint64_t origin, uint64_t user);
void dlx_test_keeper_claim(const struct dlx_test_keeper *keeper, uint64_t origin, uint64_t user,
                           int32_t n_fds);

/* Processes whose parent is this one; `ret_pids` has room for `n`. */
size_t dlx_test_keeper_children(pid_t parent, pid_t *ret_pids, size_t n);
/* Wait until there are this many. */
void dlx_test_keeper_wait_children(pid_t parent, size_t n);

/* The keeper that serves the daemon at this path, or 0. */
pid_t dlx_test_keeper_find(const char *daemon_path);
/* Wait until there is none. */
void dlx_test_keeper_wait_gone(const char *daemon_path);

#endif
