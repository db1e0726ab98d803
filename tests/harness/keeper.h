/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_TESTS_HARNESS_KEEPER_H
#define DLX_TESTS_HARNESS_KEEPER_H

/* The GPU keeper, spoken to directly as the daemon does. A failure ends the test. Everything waits
 * for an event, as long as PATIENCE at most. */

#include "gpu/handle.h"
#include "keeper/keeper.h"
#include "keeper/wire.h"
#include "tests/harness/run.h"

/* A cuda_vmm allocation of this many chunks, all of one memfd of its own. */
void dlx_test_keeper_handle(struct dlx_gpu_handle *ret, uint64_t id, uint32_t n_chunks);
/* Are these of the same memory? The descriptors differ. */
bool dlx_test_keeper_same(const struct dlx_gpu_handle *a, const struct dlx_gpu_handle *b);

/* The keeper as a process of this program, without capabilities. */
struct dlx_test_keeper {
    pid_t pid;
    char path[108]; /* ends with DLX_KEEPER_SUFFIX */
    int daemon;     /* a connection, as the daemon has it */
    uint32_t serial;
    struct dlx_keeper_device device; /* on which it is to make memory */
    /* Of the last answer. */
    uint64_t number;
    char text[DLX_ERROR_TEXT_SIZE];
    /* The last KEPT, and how many there were. */
    struct dlx_keeper_packet kept;
    uint32_t n_kept;
};

void dlx_test_keeper_start(struct dlx_test_keeper *keeper, const struct dlxk_options *options);
/* Connect as a daemon, which takes the place of the last one. */
void dlx_test_keeper_connect(struct dlx_test_keeper *keeper);
/* SIGKILL. */
void dlx_test_keeper_kill(struct dlx_test_keeper *keeper);
/* Wait until it has ended by itself; its exit status. */
int dlx_test_keeper_wait(struct dlx_test_keeper *keeper);

/* A process that stands for a publisher's, and its pidfd; end: kill it. */
struct dlx_test_keeper_process {
    pid_t pid;
    int fd;
};
struct dlx_test_keeper_process dlx_test_keeper_process(void);
void dlx_test_keeper_process_end(struct dlx_test_keeper_process *process);

/* Send this packet. */
void dlx_test_keeper_send(const struct dlx_test_keeper *keeper,
                          const struct dlx_keeper_packet *packet, int borrow_fd);
/* Send these, and wait for the answer: 0 and a handle, or the code. Drops the former content of
 * `ret`. */
int dlx_test_keeper_allocate(struct dlx_test_keeper *keeper, uint64_t origin, uint64_t user,
                             uint64_t allocation, uint64_t n_bytes, int borrow_pidfd,
                             struct dlx_gpu_handle *ret);
int dlx_test_keeper_get(struct dlx_test_keeper *keeper, uint64_t origin, uint64_t user,
                        uint64_t allocation, struct dlx_gpu_handle *ret);
/* The answer to the request with this serial. */
int dlx_test_keeper_answer(struct dlx_test_keeper *keeper, uint32_t serial,
                           struct dlx_gpu_handle *ret);
/* The next packet, which has to be that. */
void dlx_test_keeper_is_kept(struct dlx_test_keeper *keeper, uint64_t origin, uint64_t user,
                             uint64_t n_bytes);
/* FREE of this allocation, or (0) FORGET. */
void dlx_test_keeper_free(const struct dlx_test_keeper *keeper, uint64_t origin, uint64_t user,
                          uint64_t allocation);
/* CLAIM of this origin (0: none), and then CLAIMED. */
void dlx_test_keeper_claim(const struct dlx_test_keeper *keeper, uint64_t origin, uint64_t user);

/* The keeper that serves the daemon at this path, or 0. */
pid_t dlx_test_keeper_find(const char *daemon_path);
/* Wait until there is none. */
void dlx_test_keeper_wait_gone(const char *daemon_path);

#endif
