/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What the hardware and the kernel allow, without any library: the floors that ours is held
 * against.
 *
 *   --what cacheline    two processes on two CPUs, a cache line each way
 *   --what socketpair   two processes, one byte each way over a stream socket, by poll() and recv()
 *   --what memcpy       --size bytes of private memory into a warm shared mapping
 */

#include "measure.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static const size_t line_distance = 4096; /* far enough for every prefetcher */

static void wait_for(_Atomic uint64_t *line, uint64_t value)
{
    while (atomic_load_explicit(line, memory_order_acquire) != value)
        continue;
}

static void cacheline(size_t n_warmup, size_t n)
{
    char *page = bm_shared(2 * line_distance);
    _Atomic uint64_t *ping = (_Atomic uint64_t *)(void *)page;
    _Atomic uint64_t *pong = (_Atomic uint64_t *)(void *)(page + line_distance);
    struct bm_series series;

    pid_t pid = bm_fork();
    if (!pid) {
        bm_pin(1);
        for (uint64_t i = 1; i <= n_warmup + n; i++) {
            wait_for(ping, i);
            atomic_store_explicit(pong, i, memory_order_release);
        }
        _exit(0);
    }
    bm_pin(0);
    bm_series_init(&series, n);
    for (uint64_t i = 1; i <= n_warmup + n; i++) {
        atomic_store_explicit(ping, i, memory_order_release);
        if (i > n_warmup) {
            bm_series_stamp(&series); /* while the answer is on its way */
        } else if (i == n_warmup) {
            bm_series_start(&series);
        }
        wait_for(pong, i);
    }
    bm_wait(pid);
    struct bm_summary s = bm_series_end(&series, 2);
    bm_json_begin();
    bm_json_summary(&s);
    bm_json_end();
}

static void receive(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char byte;

    bm_check_errno(poll(&p, 1, -1), "poll");
    if (recv(fd, &byte, 1, MSG_DONTWAIT) != 1)
        bm_fail("recv: nothing there");
}

static void socketpair_(size_t n_warmup, size_t n)
{
    struct bm_series series;
    int fds[2];

    bm_check_errno(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), "socketpair");
    pid_t pid = bm_fork();
    if (!pid) {
        bm_pin(1);
        for (size_t i = 1; i <= n_warmup + n; i++) {
            receive(fds[1]);
            bm_check_errno(send(fds[1], "", 1, MSG_DONTWAIT | MSG_NOSIGNAL), "send");
        }
        _exit(0);
    }
    bm_pin(0);
    bm_series_init(&series, n);
    for (size_t i = 1; i <= n_warmup + n; i++) {
        bm_check_errno(send(fds[0], "", 1, MSG_DONTWAIT | MSG_NOSIGNAL), "send");
        if (i > n_warmup)
            bm_series_stamp(&series);
        else if (i == n_warmup)
            bm_series_start(&series);
        receive(fds[0]);
    }
    bm_wait(pid);
    struct bm_summary s = bm_series_end(&series, 2);
    bm_json_begin();
    bm_json_summary(&s);
    bm_json_end();
}

static void memcpy_(size_t size, size_t n)
{
    struct bm_series series;
    char *source = malloc(size);
    char *target = bm_shared(size);

    if (!source)
        bm_fail("out of memory: %zu bytes", size);
    bm_pin(0);
    memset(source, 1, size);
    memcpy(target, source, size);
    bm_series_init(&series, n);
    bm_series_start(&series);
    for (size_t i = 0; i < n; i++) {
        memcpy(target, source, size);
        __asm__ volatile("" ::: "memory");
        bm_series_stamp(&series);
    }
    struct bm_summary s = bm_series_end(&series, 1);
    bm_json_begin();
    bm_json_summary(&s);
    bm_json_number("gb_per_s", (double)size / s.p50_ns);
    bm_json_end();
    free(source);
}

int main(int argc, char **argv)
{
    bm_init(argc, argv);
    const char *what = bm_text("what", "cacheline");
    if (!strcmp(what, "cacheline"))
        cacheline(20000, (size_t)bm_long("n", 400000));
    else if (!strcmp(what, "socketpair"))
        socketpair_(500, (size_t)bm_long("n", 20000));
    else if (!strcmp(what, "memcpy"))
        memcpy_((size_t)bm_long("size", 64 << 20), (size_t)bm_long("n", 20));
    else
        bm_fail("--what takes cacheline, socketpair or memcpy");
    return 0;
}
