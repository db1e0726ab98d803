/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_COMMON_UTIL_H
#define DLX_COMMON_UTIL_H

/* Small helpers without state: cleanup attributes, ownership of fds, checked arithmetic, time. */

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define dlx_cleanup(fn) __attribute__((__cleanup__(fn)))
#define dlx_likely(x)   __builtin_expect(!!(x), 1)
#define dlx_unlikely(x) __builtin_expect(!!(x), 0)
/* A function that libdlx.so exports to libdlx-gpu.so alone, as DLX_PRIVATE_0 (client/libdlx.map).
 * Within libdlx its call costs no more than others. */
#ifdef DLX_GPU_LIBRARY
#define dlx_for_gpu __attribute__((visibility("default")))
#else
#define dlx_for_gpu __attribute__((visibility("protected")))
#endif
#define dlx_printf(fmt, args) __attribute__((__format__(__printf__, fmt, args)))
#define DLX_ARRAY_SIZE(a)     (sizeof(a) / sizeof((a)[0]))

/* Evaluates each argument once: it may be a word that another process writes. */
#define DLX_MIN(a, b) DLX_CHOOSE_(a, <, b, __COUNTER__)
#define DLX_MAX(a, b) DLX_CHOOSE_(a, >, b, __COUNTER__)
/* Nested uses need different variable names. */
#define DLX_CHOOSE_(a, op, b, n) DLX_CHOOSE_NAMED_(a, op, b, n)
#define DLX_CHOOSE_NAMED_(a, op, b, n)                                                             \
    __extension__({                                                                                \
        __typeof__(a) dlx_a_##n = (a);                                                             \
        __typeof__(b) dlx_b_##n = (b);                                                             \
        dlx_a_##n op dlx_b_##n ? dlx_a_##n : dlx_b_##n;                                            \
    })

/* Two words at a time, at any multiple of 8 bytes. */
typedef uint64_t dlx_pair __attribute__((vector_size(16), aligned(8), may_alias));

#define DLX_PAGE      4096U
#define DLX_CACHELINE 64U

/* Takes the value out of a variable whose cleanup attribute would free it. */
#define dlx_steal(p)                                                                               \
    __extension__({                                                                                \
        __typeof__(p) dlx_stolen_ = (p);                                                           \
        (p) = NULL;                                                                                \
        dlx_stolen_;                                                                               \
    })

static inline void dlx__freep(void *p)
{
    free(*(void **)p);
}

/* Closes the fd and preserves errno; ignores -1. Returns -1, for `fd = dlx__close(fd)`. */
static inline int dlx__close(int take_fd)
{
    if (take_fd >= 0) {
        int saved = errno;
        close(take_fd);
        errno = saved;
    }
    return -1;
}

static inline void dlx__closep(int *fd)
{
    *fd = dlx__close(*fd);
}

static inline int dlx__steal_fd(int *fd)
{
    int stolen = *fd;
    *fd = -1;
    return stolen;
}

/* Rounds up to a multiple of `align`, a power of two. Returns false on overflow. */
static inline bool dlx__align_up(uint64_t value, uint64_t align, uint64_t *ret)
{
    uint64_t sum;
    if (__builtin_add_overflow(value, align - 1, &sum))
        return false;
    *ret = sum & ~(align - 1);
    return true;
}

static inline uint64_t dlx__now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * UINT64_C(1000000000) + (uint64_t)ts.tv_nsec;
}

/* The time `timeout_ns` from now; UINT64_MAX (never) for negative timeouts and on overflow. */
static inline uint64_t dlx__deadline(int64_t timeout_ns)
{
    uint64_t sum;
    if (timeout_ns < 0 || __builtin_add_overflow(dlx__now_ns(), (uint64_t)timeout_ns, &sum))
        return UINT64_MAX;
    return sum;
}

/* Milliseconds until a deadline for poll(2) and epoll_wait(2): rounded up, -1 for never. */
static inline int dlx__deadline_ms(uint64_t deadline, uint64_t now)
{
    if (deadline == UINT64_MAX)
        return -1;
    if (deadline <= now)
        return 0;
    uint64_t ms = (deadline - now + 999999) / 1000000;
    return ms > 3600000 ? 3600000 : (int)ms;
}

static inline dlx_pair dlx__pair(const void *at)
{
    return *(const dlx_pair *)at;
}

static inline bool dlx__pair_is_zero(dlx_pair pair)
{
    return (pair[0] | pair[1]) == 0;
}

/* Prefetches a cache line that is about to be written. A hint without side effects, valid for any
 * address. */
static inline void dlx__prefetch_write(const void *line)
{
#if defined(__x86_64__)
    /* a no-op on processors that do not know it */
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)line));
#else
    __builtin_prefetch(line, 1);
#endif
}

static inline void dlx__cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#endif
}

#endif
