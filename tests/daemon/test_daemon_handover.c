/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The objects that one program hands to the next one in the same process: the daemon believes the
 * table of them only if a daemon has written it for this process. Calls that fail meanwhile are in
 * tests/fail/test_fails.c.
 */

#include "daemon/persist/handover.h"
#include "tests/harness/fds.h"
#include "tests/harness/fork.h"
#include "tests/harness/run.h"

#define SEALS (F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL)

static void name_it(int fd)
{
    char text[64];
    (void)snprintf(text, sizeof text, "%d:%d", (int)getpid(), fd);
    ck_assert_int_eq(setenv(DLXD_HANDOVER_VARIABLE, text, 1), 0);
}

static bool is_cloexec(int fd)
{
    return fcntl(fd, F_GETFD) == FD_CLOEXEC;
}

LOOP_TEST(descriptors_that_are_handed_over_are_taken_over, 0, 3)
{
    struct dlxd_handover handover;
    struct dlxd_manager_fds manager_fds;
    size_t n_before = dlx_test_fds_count();
    const struct dlxd_listen_lock lock = {
        .dev = 5, .ino = UINT64_MAX, .is_bound = _i != 1, .made_folder = _i != 2};
    int one = dlx_test_fds_dup(STDIN_FILENO), two = dlx_test_fds_dup(STDIN_FILENO);
    dlxd_handover_init(&handover);
    ok(dlxd_handover_add(&handover, one, "one", false));
    ok(dlxd_handover_add(&handover, two, "two", true));
    ok(dlxd_handover_add(&handover, one, "one again", true));
    ok(dlxd_handover_add(&handover, -1, "forget me", false));
    ok(dlxd_handover_add_lock(&handover, two, "main" DLXD_HANDOVER_LOCK_SUFFIX, &lock));
    ok(dlxd_handover_write(&handover));
    ck_assert(!is_cloexec(one) && !is_cloexec(two) && !is_cloexec(handover.fd));
    name_it(dlx__steal_fd(&handover.fd)); /* as across execve(2) */
    ok(dlxd_manager_fds_init(&manager_fds));
    ck_assert(!getenv(DLXD_HANDOVER_VARIABLE));
    ck_assert(manager_fds.is_handed_over);
    ck_assert_uint_eq(manager_fds.n, 5);
    static const char *const names[] = {"one", "two", "one again", "forget me", "main:lock"};
    static const bool not_stored[] = {false, true, true, false, true};
    for (size_t i = 0; i < manager_fds.n; i++) {
        ck_assert_str_eq(manager_fds.fds[i].name, names[i]);
        ck_assert_int_eq(manager_fds.fds[i].not_stored, not_stored[i]);
        ck_assert_int_eq(is_cloexec(manager_fds.fds[i].fd), i != 3);
    }
    ck_assert_int_eq(manager_fds.fds[0].fd, one);
    ck_assert_int_eq(manager_fds.fds[1].fd, two);
    ck_assert_int_ne(manager_fds.fds[2].fd, one); /* its own */
    ck_assert_int_eq(manager_fds.fds[3].fd, -1);
    struct dlxd_listen_lock found;
    int lock_fd = dlxd_manager_fds_take_lock(&manager_fds, "main", &found);
    ck_assert_int_eq(lock_fd, manager_fds.fds[4].fd);
    ck_assert_int_ne(lock_fd, two); /* its own */
    ck_assert(found.dev == lock.dev && found.ino == lock.ino);
    ck_assert(found.is_bound == (_i != 1) && found.made_folder == (_i != 2));
    close(lock_fd);
    dlxd_manager_fds_deinit(&manager_fds);
    dlxd_handover_deinit(&handover);
    ck_assert_uint_eq(dlx_test_fds_count(), n_before);
}

TEST(without_execve_nothing_can_be_inherited)
{
    struct dlxd_handover handover;
    int fd = dlx_test_fds_dup(STDIN_FILENO);
    dlxd_handover_init(&handover);
    ok(dlxd_handover_add(&handover, fd, "one", false));
    ok(dlxd_handover_add(&handover, -1, "forget me", false));
    ok(dlxd_handover_write(&handover));
    dlxd_handover_undo(&handover);
    ck_assert(is_cloexec(fd) && is_cloexec(handover.fd));
    ck_assert_int_eq(write(handover.fd, "", 1), -1); /* it is sealed */
    dlxd_handover_deinit(&handover);
    close(fd);
}

struct header {
    char magic[16];
    uint32_t version, item_size, n_items, pid;
    uint8_t reserved[32];
};

struct item {
    int32_t fd;
    uint32_t flags;
    uint64_t dev, ino;
    char name[104];
};

static struct table {
    struct header header;
    struct item items[2];
} table;

/* The layout that is released. */
static void begin_table(int fd)
{
    memset(&table, 0, sizeof table);
    memcpy(table.header.magic, "dlpackd handover", 16);
    table.header.version = 1;
    table.header.item_size = sizeof table.items[0];
    table.header.n_items = 2;
    table.header.pid = (uint32_t)getpid();
    for (size_t i = 0; i < 2; i++) {
        table.items[i].fd = fd;
        memcpy(table.items[i].name, "x", 2);
    }
}

static int write_table(size_t size, unsigned seals)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_eq(write(fd, &table, size), (ssize_t)size);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

/* All that was listed is open still: the process ends by this. */
static void refused(int fd, const char *words)
{
    struct dlxd_manager_fds manager_fds;
    name_it(fd);
    int r = dlxd_manager_fds_init(&manager_fds);
    ck_assert_msg(r == DLX_E_INVALID || r == DLX_E_VERSION || r == DLX_E_SYSTEM, "%d", r);
    ck_assert_msg(strstr(dlx__error_message(), words), "'%s' is not in '%s'", words,
                  dlx__error_message());
    ck_assert_ptr_nonnull(strstr(dlx__error_message(), "what DLX_HANDOVER hands over"));
    ck_assert(!manager_fds.is_handed_over || manager_fds.n == 0);
    ck_assert(!getenv(DLXD_HANDOVER_VARIABLE));
}

TEST(a_handover_that_is_no_sealed_memfd_with_a_table_is_refused)
{
    int fd = dlx_test_fds_dup(STDIN_FILENO);
    begin_table(fd);
    refused(write_table(sizeof table, 0), "is not a sealed memfd");
    refused(write_table(sizeof table, SEALS & ~(unsigned)F_SEAL_WRITE), "is not a sealed memfd");
    refused(dlx_test_fds_dup(STDIN_FILENO), "is not a sealed memfd");
    refused(write_table(sizeof table - 1, SEALS), "319 bytes for 2 descriptors");
    refused(write_table(10, SEALS), "is not what a dlpackd has written");
    refused(STDERR_FILENO, "it names no descriptor");
    refused(9999, "descriptor 9999");
    close(fd);
}

/* A member of the table and what it is instead; all of its bytes are `byte` if that is not 0. */
struct change {
    size_t at, size;
    uint32_t value;
    int byte;
    const char *words;
};
#define MEMBER(m) offsetof(struct table, m), sizeof(((struct table *)0)->m)

/* clang-format off */
static const struct change changes[] = {
    {MEMBER(header.magic[0]), 'D', 0, "is not what a dlpackd has written"},
    {MEMBER(header.version), 2, 0, "it has version 2 (items of 128 bytes)"},
    {MEMBER(header.item_size), 64, 0, "it has version 1 (items of 64 bytes)"},
    {MEMBER(header.pid), 1, 0, "it is for process 1"},
    {MEMBER(header.n_items), 3, 0, "320 bytes for 3 descriptors"},
    {MEMBER(header.n_items), UINT32_MAX, 0, "320 bytes for 4294967295 descriptors"},
    {MEMBER(items[0].fd), STDERR_FILENO, 0, "descriptor 2 cannot be x"},
    {MEMBER(items[0].fd), UINT32_MAX - 1, 0, "descriptor -2 cannot be x"},
    {MEMBER(items[0].fd), 9999, 0, "x: Bad file descriptor"},
    {MEMBER(items[1].name), 0, 'x', "descriptor -1 has no name"},
    {MEMBER(items[0].name[0]), 0, 0, "descriptor -1 has no name"},
};
/* clang-format on */

LOOP_TEST(a_table_that_no_daemon_wrote_for_this_process_is_refused, 0, DLX_ARRAY_SIZE(changes))
{
    const struct change *change = &changes[_i];
    uint8_t *member = (uint8_t *)&table + change->at;
    begin_table(-1);
    if (change->byte)
        memset(member, change->byte, change->size);
    else
        memcpy(member, &change->value, DLX_MIN(change->size, sizeof change->value));
    refused(write_table(sizeof table, SEALS), change->words);
}

TEST(a_table_that_names_itself_is_refused)
{
    begin_table(-1);
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    table.items[1].fd = fd;
    ck_assert_int_eq(write(fd, &table, sizeof table), (ssize_t)sizeof table);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, SEALS), 0);
    refused(fd, "cannot be x");
}

TEST(a_handover_for_another_process_is_left_alone)
{
    static const char *const texts[] = {
        "", "1:3", ":3", "x", "99999", "-1:3", "99999999999999999999:3"};
    struct dlxd_manager_fds manager_fds;
    for (size_t i = 0; i < DLX_ARRAY_SIZE(texts); i++) {
        ck_assert_int_eq(setenv(DLXD_HANDOVER_VARIABLE, texts[i], 1), 0);
        ok(dlxd_manager_fds_init(&manager_fds));
        ck_assert(!manager_fds.is_handed_over && manager_fds.n == 0);
        ck_assert(!getenv(DLXD_HANDOVER_VARIABLE));
    }
}

int main(void)
{
    return dlx_test_run_case(tcase_create("handover"));
}
