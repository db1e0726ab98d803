/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Are all pages of a region present for good? The region is sealed already: nobody can punch holes
 * into it or change its size.
 *
 * The number of blocks (st_blocks) does not tell. It counts pages of an unfinished fallocate(2),
 * and the kernel removes those, which nobody has initialized yet, if the caller is killed.
 * mincore(2) shows exactly the initialized pages, so a page that it shows once stays.
 *
 * mincore() does not show swapped-out pages. Reading a byte brings such a page back, and changes
 * nothing for a hole or a page that fallocate() has added. So a page that does not show after a few
 * reads is missing. (SEEK_HOLE would tell all of this at once, but it waits for the lock of the
 * file, which the writer may hold forever.)
 *
 * mincore() tells the truth only to a process that owns the file or may write to it, and shows
 * every page to others. The daemon owns the files that it makes; dlx__memory_supported() tests
 * this.
 */

#include "common/error.h"
#include "common/memory.h"
#include <inttypes.h>
#include <sys/mman.h>
#include <unistd.h>

/* Pages per call of mincore(), like the kernel's own batches. */
#define PAGES 4096U
/* Attempts: when memory is short, a page may be swapped out again before the next check. */
#define LOOKS 4

struct look {
    int fd;
    uint8_t *map;
    uint64_t size;
    uint64_t page_size;
    uint8_t there[PAGES];
};

/* Returns the first page in [at, end) that does not show, or `end`. */
static uint64_t next_missing(const struct look *look, uint64_t begin, uint64_t at, uint64_t end)
{
    while (at < end && (look->there[(at - begin) / look->page_size] & 1))
        at += look->page_size;
    return DLX_MIN(at, end);
}

static int read_missing(const struct look *look, uint64_t begin, uint64_t end)
{
    uint8_t byte;
    for (uint64_t at = next_missing(look, begin, begin, end); at < end;
         at = next_missing(look, begin, at + look->page_size, end))
        if (pread(look->fd, &byte, sizeof byte, (off_t)at) < 0)
            return dlx__fail_errno("reading a region at %" PRIu64, at);
    return 0;
}

static int check_part(struct look *look, uint64_t begin, uint64_t end)
{
    for (int n = 1;; n++) {
        if (mincore(look->map + begin, end - begin, look->there) < 0)
            return dlx__fail_errno("mincore of a region");
        uint64_t missing = next_missing(look, begin, begin, end);
        if (missing == end)
            return 0;
        if (n == LOOKS)
            return dlx__fail(DLX_E_PROTOCOL,
                             "the page at %" PRIu64 " of a region of %" PRIu64
                             " bytes is missing, or nobody has touched it",
                             missing, look->size);
        int r = read_missing(look, begin, end);
        if (r < 0)
            return r;
    }
}

int dlx__region_check_pages(int fd, void *map, uint64_t size)
{
    struct look look = {
        .fd = fd, .map = map, .size = size, .page_size = (uint64_t)sysconf(_SC_PAGESIZE)};
    int r = 0;
    for (uint64_t at = 0; r == 0 && at < size; at += PAGES * look.page_size)
        r = check_part(&look, at, DLX_MIN(at + PAGES * look.page_size, size));
    return r;
}
