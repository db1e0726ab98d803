/* SPDX-License-Identifier: Apache-2.0 */

/*
 * libfaultalloc.so, for LD_PRELOAD: an allocator that counts what is alive and fails the calls that
 * the page of tests/actor/ledger.h names. Without that page it only passes calls on to glibc.
 */

#include "tests/actor/ledger.h"
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *p);

#define EXPORT __attribute__((visibility("default")))

EXPORT void *memalign(size_t alignment, size_t size);

static struct actor_head nobody;
static struct actor_head *page = &nobody;

/* The run-time that counts branches keeps blocks, too: then no test counts the blocks that are
 * left. */
#ifdef DLX_COVERAGE
enum { ONE_BLOCK = 0 };
#else
enum { ONE_BLOCK = 1 };
#endif

/* Tests recognise in a trace what belongs to the program by this mmap(). Earlier allocations are
 * not counted. */
__attribute__((constructor)) static void find_page(void)
{
    const char *fd = getenv(ACTOR_LEDGER_ENV);
    void *map = fd ? mmap(NULL, ACTOR_HEAD_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(fd), 0)
                   : MAP_FAILED;
    if (map != MAP_FAILED) {
        page = map;
        atomic_store(&page->live, atomic_load(&nobody.live));
    }
}

static bool fails(void)
{
    uint64_t n = atomic_fetch_add(&page->allocations, 1) + 1;
    if (n < page->fail_from || n - page->fail_from >= page->fail_count)
        return false;
    atomic_fetch_add(&page->failed, 1);
    errno = ENOMEM;
    return true;
}

static void *count(void *p)
{
    if (p)
        atomic_fetch_add(&page->live, ONE_BLOCK);
    return p;
}

EXPORT void *malloc(size_t size)
{
    return fails() ? NULL : count(__libc_malloc(size));
}

EXPORT void *calloc(size_t n, size_t size)
{
    return fails() ? NULL : count(__libc_calloc(n, size));
}

EXPORT void *realloc(void *p, size_t size)
{
    if (fails())
        return NULL;
    void *q = __libc_realloc(p, size);
    return p ? q : count(q);
}

EXPORT void *memalign(size_t alignment, size_t size)
{
    return fails() ? NULL : count(__libc_memalign(alignment, size));
}

EXPORT void *aligned_alloc(size_t alignment, size_t size)
{
    return memalign(alignment, size);
}

EXPORT int posix_memalign(void **ret, size_t alignment, size_t size)
{
    void *p = memalign(alignment, size);
    if (!p)
        return ENOMEM;
    *ret = p;
    return 0;
}

EXPORT void free(void *p)
{
    if (p)
        atomic_fetch_sub(&page->live, ONE_BLOCK);
    __libc_free(p);
}
