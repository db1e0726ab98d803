/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Are all pages of a region there, and will they stay? Its seals are set already: nobody makes
 * holes, or changes the size.
 *
 * The number of blocks (st_blocks) is no answer. A fallocate(2) that has not ended counts, and when
 * its caller is killed, the kernel takes back what that call has added: pages that nobody has
 * initialized yet, which are all that it may take. mincore(2) tells pages by that: those that are
 * initialized. So what it shows once stays.
 *
 * It does not show pages that were swapped out. Reading a byte brings such a page back; of a hole,
 * or of a page that a fallocate() has added, it makes nothing. So pages that do not show after a
 * few reads are missing. (SEEK_HOLE would tell all of this at once, but waits for the file's lock,
 * which its writer may hold for ever.)
 *
 * mincore() answers only whoever owns the file, or may write it; to others it shows every page. The
 * daemon owns what it has made; dlx__memory_supported() tries it.
 */

#include "common/error.h"
#include "common/memory.h"
#include <inttypes.h>
#include <sys/mman.h>
#include <unistd.h>

/* So many at a time, as the kernel does. */
#define PAGES 4096U
/* Short of memory, a page may be swapped out again before it was looked at. */
#define LOOKS 4

struct look {
    int fd;
    uint8_t *map;
    uint64_t size;
    uint64_t page_size;
    uint8_t there[PAGES];
};

/* The first page from `at` on, up to `end`, that does not show; `end` when all do. */
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
