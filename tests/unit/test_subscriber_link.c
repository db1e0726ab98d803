/* SPDX-License-Identifier: Apache-2.0 */

/* A link from the subscriber's side, without a daemon. */

#include "client/message/subscriber_link.h"
#include "common/memory.h"
#include "ring/entry.h"
#include "tests/harness/maps.h"
#include "tests/harness/run.h"
#include <fcntl.h>

enum { HELD = 16, N_ENTRIES = DLX_SHM_ENTRIES_MIN };

/* A link, and its page as its publisher sees it. */
static struct dlx_subscriber_link *subscriber_link;
static const struct dlx_shm_link *page;
static struct dlx_shm_control *control; /* if it was opened */

static void setup(void)
{
    const struct dlx_memory *memory = dlx__memory_by_tag(0);
    const uint64_t size = dlx_shm_link_size(HELD);
    uint64_t generation;
    int fd, writer_fd;
    ck_assert_ptr_nonnull(memory);
    ck_assert_int_eq(dlx__region_new(memory, "dlx-link", size, &fd, &writer_fd), 0);
    page = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    ck_assert(page != MAP_FAILED);
    close(fd);
    ck_assert_int_eq(dlx__fork_init(&generation), 0);
    ck_assert_int_eq(dlx__subscriber_link_new(&subscriber_link, memory, generation, 7, 8, "t",
                                              writer_fd, size, HELD),
                     0);
}

static void teardown(void)
{
    dlx__subscriber_link_unref(subscriber_link);
    dlx__region_unmap(control, dlx_shm_control_size(N_ENTRIES));
    control = NULL;
    munmap((void *)(uintptr_t)page, dlx_shm_link_size(HELD));
}

/* To a publisher of which there is only the control block. */
static void open_link(void)
{
    const struct dlx_memory *memory = dlx__memory_by_tag(0);
    const uint64_t size = dlx_shm_control_size(N_ENTRIES);
    int fd, writer_fd;
    ck_assert_int_eq(dlx__region_new(memory, "dlx-control", size, &fd, &writer_fd), 0);
    ck_assert_int_eq(dlx__region_populate(memory, writer_fd, size, (void **)&control), 0);
    struct dlx_notification opened = {.fds = {fd, -1, -1}, .size = size, .n_entries = N_ENTRIES};
    ck_assert_int_eq(dlx__subscriber_link_open(subscriber_link, &opened, false, false), 0);
}

/* Its publisher may know it already, and would wait for its first cursor as long as the process
 * lives. */
TEST(a_link_that_was_never_opened_lets_its_publisher_go)
{
    ck_assert_uint_eq(*(const uint64_t *)&page->cursor, 0);
    dlx__subscriber_link_close(subscriber_link);
    ck_assert_uint_eq(*(const uint64_t *)&page->cursor, DLX_SHM_CURSOR_CLOSED);
}

/* The rest of a batch is held, but was not handed out: it goes with the link. */
TEST(a_closed_link_holds_nothing_that_was_not_handed_out)
{
    enum { N_BATCH = 5 };
    uint64_t words[DLX_SHM_ENTRY_WORDS] = {0};
    struct dlx_message *message;
    open_link();
    /* Of tensors of size 0, which need no arena. */
    ck_assert(
        dlx__entry_pack_tensor(words, 0, 0, (DLDataType){kDLInt, 64, 1}, false, 1, (int64_t[]){0}));
    for (uint64_t n = 1; n <= N_BATCH; n++) {
        for (uint32_t i = 0; i < DLX_SHM_ENTRY_WORDS; i++)
            dlx_store64_relaxed(&control->entries[n].words[i], words[i]);
        dlx_store64_release(&control->entries[n].gen, n);
    }
    dlx_store64_release(&control->head, N_BATCH);
    dlx__subscriber_link_start(subscriber_link, N_BATCH, false);
    ck_assert_int_eq(dlx__subscriber_link_take(subscriber_link, N_BATCH, &message), 0);
    ck_assert_uint_eq(dlx_message_seq(message), 1);
    ck_assert_uint_eq(dlx__reader_n_held(&subscriber_link->core), N_BATCH);
    dlx__subscriber_link_close(subscriber_link);
    ck_assert_uint_eq(dlx__reader_n_held(&subscriber_link->core), 1);
    ck_assert_uint_eq(*(const uint64_t *)&page->hold[0], 1); /* the one that was */
    dlx_message_unref(message);
    ck_assert_uint_eq(*(const uint64_t *)&page->hold[0], 0);
}

/* A struct that was never used is like nothing, also not like words that are all 0. */
TEST(a_message_of_zeros_is_refused_by_a_link_that_has_taken_nothing)
{
    struct dlx_message *message;
    open_link();
    dlx_store64_release(&control->entries[1].gen, 1);
    dlx_store64_release(&control->head, 1);
    dlx__subscriber_link_start(subscriber_link, 1, false);
    ck_assert_int_eq(dlx__subscriber_link_take(subscriber_link, 1, &message), DLX_E_BAD_PEER);
    ck_assert_ptr_nonnull(strstr(dlx__error_message(), "unknown kind 0"));
    dlx__subscriber_link_close(subscriber_link);
}

/* Its descriptor is kept for a message that needs it, and closed when there can be none. */
TEST(an_arena_that_could_not_be_mapped_waits_until_it_is_dropped)
{
    enum { ID = 3, SIZE = 64 << 20, ROOM = 16 << 20 };
    const struct dlx_memory *memory = dlx__memory_by_tag(0);
    void *map;
    int fd, writer_fd;
    if (!dlx_test_maps_can_limit())
        return;
    open_link();
    dlx__subscriber_link_start(subscriber_link, 0, false);
    ck_assert_int_eq(dlx__region_new(memory, "dlx-arena", SIZE, &fd, &writer_fd), 0);
    ck_assert_int_eq(dlx__region_populate(memory, writer_fd, SIZE, &map), 0);
    dlx__region_unmap(map, SIZE);
    dlx_test_maps_limit(ROOM);
    ck_assert_int_eq(dlx__subscriber_link_arena_add(subscriber_link, ID, fd, SIZE), 0);
    dlx_test_maps_unlimit();
    ck_assert(!dlx__subscriber_link_has_arena(subscriber_link, ID));
    dlx__subscriber_link_sweep_arenas(subscriber_link);
    ck_assert_uint_eq(subscriber_link->n_arenas, 1);
    ck_assert_int_ge(fcntl(fd, F_GETFD), 0);
    dlx__subscriber_link_arena_dropped(subscriber_link, ID);
    ck_assert_uint_eq(subscriber_link->n_arenas, 0);
    ck_assert_int_eq(fcntl(fd, F_GETFD), -1);
    dlx__subscriber_link_close(subscriber_link);
}

int main(void)
{
    TCase *tcase = tcase_create("subscriber link");
    tcase_add_checked_fixture(tcase, setup, teardown);
    return dlx_test_run_case(tcase);
}
