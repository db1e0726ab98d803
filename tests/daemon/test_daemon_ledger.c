/* SPDX-License-Identifier: Apache-2.0 */

/* The ledger that one daemon leaves for the next. */

#include "daemon/persist/ledger.h"
#include "daemon/persist/manager_fds.h"
#include "daemon/persist/record.h"
#include "daemon/persist/restore.h"
#include "tests/harness/fork.h"
#include "tests/harness/run.h"
#include <sys/resource.h>

static int put(struct dlxd_ledger *ledger, uint32_t index, uint64_t id)
{
    struct dlxd_ledger_entry entry = {.id = id, .expires_ns = id * 2};
    (void)snprintf(entry.topic, sizeof entry.topic, "t/%d", (int)id);
    return dlxd_ledger_put(ledger, index, &entry);
}

TEST(the_next_daemon_reads_what_the_last_one_wrote)
{
    struct dlxd_ledger ledger, next;
    struct dlxd_ledger_entry entry;
    ok(dlxd_ledger_init(&ledger));
    for (uint64_t i = 1; i <= 100; i++)
        ck_assert_int_eq(put(&ledger, 0, i * 10), (int)i);
    ck_assert_int_eq(put(&ledger, 7, 71), 7);
    dlxd_ledger_remove(&ledger, 3);
    ck_assert_int_eq(put(&ledger, 0, 33), 3); /* its place is used again */
    dlxd_ledger_remove(&ledger, 50);
    ok(dlxd_ledger_open(&next, fcntl(ledger.fd, F_DUPFD_CLOEXEC, 0)));
    dlxd_ledger_deinit(&ledger);
    ck_assert_uint_eq(next.n, 100);
    for (uint32_t i = 1; i <= 100; i++) {
        uint64_t id = i == 7 ? 71 : i == 3 ? 33 : i * 10;
        ck_assert_int_eq(dlxd_ledger_get(&next, i, &entry), i != 50);
        ck_assert_int_eq(next.used[i], i != 50);
        if (i == 50)
            continue;
        ck_assert_uint_eq(entry.id, id);
        ck_assert_uint_eq(entry.expires_ns, id * 2);
    }
    ck_assert_str_eq(entry.topic, "t/1000");
    ck_assert(!dlxd_ledger_get(&next, 101, &entry));
    ck_assert_int_eq(put(&next, 0, 5), 50);
    dlxd_ledger_deinit(&next);
}

/* The header, and three entries, the second of which is free. */
#define GOLDEN_SIZE (4 * sizeof(struct dlxd_ledger_entry))

static void read_golden(uint8_t bytes[GOLDEN_SIZE])
{
    char path[512];
    const char *top = getenv("SRCDIR");
    (void)snprintf(path, sizeof path, "%s/tests/data/ledger/version-2", top ? top : ".");
    dlx_cleanup(dlx__closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_msg(fd >= 0, "%s", path);
    ck_assert_int_eq(read(fd, bytes, GOLDEN_SIZE), (ssize_t)GOLDEN_SIZE);
}

/* A ledger of these bytes, as the next daemon gets it. */
static int ledger_of(const uint8_t bytes[GOLDEN_SIZE])
{
    int fd = memfd_create("test", MFD_CLOEXEC);
    ck_assert_int_eq(write(fd, bytes, GOLDEN_SIZE), (ssize_t)GOLDEN_SIZE);
    return fd;
}

/* Its numbers count up from `base`, in the order in which they are stored. */
static struct dlxd_ledger_entry golden_entry(uint32_t base, char letter, size_t name_size,
                                             size_t topic_size)
{
    struct dlxd_ledger_entry entry = {
        .id = base,
        .resumes = base + 1,
        .after_seq = base + 2,
        .retain_for_ns = base + 3,
        .max_held_bytes = base + 4,
        .expires_ns = base + 5,
        .history = base + 6,
        .depth = base + 7,
        .n_entries = base + 8,
        .on_full = base + 9,
        .retain = base + 10,
        .pid = base + 11,
        .uid = base + 12,
        .max_held = base + 13,
    };
    memset(entry.client_name, letter, name_size);
    memset(entry.topic, 't', topic_size);
    return entry;
}

/* If this test fails, an upgrade loses retained messages: see the rules in ledger.h. */
TEST(the_layout_of_a_ledger_is_the_one_that_was_released)
{
    uint8_t golden[GOLDEN_SIZE], bytes[GOLDEN_SIZE];
    struct dlxd_ledger ledger;
    struct dlxd_ledger_entry entry, first = golden_entry(100, 0, 0, 0),
                                    third = golden_entry(200, 'n', 63, 255);
    (void)snprintf(first.client_name, sizeof first.client_name, "camera");
    (void)snprintf(first.topic, sizeof first.topic, "cam/front");
    read_golden(golden);
    ok(dlxd_ledger_open(&ledger, ledger_of(golden)));
    ck_assert_uint_eq(ledger.n, 3);
    ck_assert(dlxd_ledger_get(&ledger, 1, &entry));
    ck_assert_mem_eq(&entry, &first, sizeof entry);
    ck_assert(!dlxd_ledger_get(&ledger, 2, &entry));
    ck_assert(dlxd_ledger_get(&ledger, 3, &entry));
    ck_assert_mem_eq(&entry, &third, sizeof entry);
    dlxd_ledger_deinit(&ledger);
    ok(dlxd_ledger_init(&ledger));
    ck_assert_int_eq(dlxd_ledger_put(&ledger, 0, &first), 1);
    ck_assert_int_eq(dlxd_ledger_put(&ledger, 0, &first), 2);
    ck_assert_int_eq(dlxd_ledger_put(&ledger, 0, &third), 3);
    dlxd_ledger_remove(&ledger, 2);
    ck_assert_int_eq(pread(ledger.fd, bytes, sizeof bytes, 0), (ssize_t)sizeof bytes);
    ck_assert_mem_eq(bytes, golden, sizeof bytes);
    dlxd_ledger_deinit(&ledger);
}

TEST(fields_of_a_newer_daemon_of_the_same_version_are_ignored)
{
    uint8_t bytes[GOLDEN_SIZE], before[GOLDEN_SIZE];
    struct dlxd_ledger ledger;
    struct dlxd_ledger_entry entry;
    read_golden(before);
    read_golden(bytes);
    memset(bytes + 2 * sizeof entry - sizeof entry.reserved, 0xa5, sizeof entry.reserved);
    ok(dlxd_ledger_open(&ledger, ledger_of(bytes)));
    ck_assert(dlxd_ledger_get(&ledger, 1, &entry));
    ck_assert_mem_eq(&entry, before + sizeof entry, offsetof(struct dlxd_ledger_entry, reserved));
    dlxd_ledger_deinit(&ledger);
}

static void check_refused(uint32_t version, uint32_t entry_size, const char *word)
{
    uint8_t bytes[GOLDEN_SIZE];
    struct dlxd_ledger ledger;
    read_golden(bytes);
    memcpy(bytes + 16, &version, sizeof version);
    memcpy(bytes + 20, &entry_size, sizeof entry_size);
    fails(dlxd_ledger_open(&ledger, ledger_of(bytes)), DLX_E_VERSION, word);
    ck_assert_ptr_nonnull(strstr(dlx__error_message(), "reads version 2 (entries of 512 bytes)"));
}

TEST(a_ledger_of_another_version_is_refused_and_both_versions_are_named)
{
    struct dlxd_ledger ledger;
    check_refused(1, 512, "is a ledger of version 1 (");
    check_refused(3, 512, "is a ledger of version 3 (");
    check_refused(2, 1024, "is a ledger of version 2 (entries of 1024 bytes)");
    int empty = memfd_create("test", MFD_CLOEXEC);
    ck_assert_int_eq(dlxd_ledger_open(&ledger, empty), DLX_E_VERSION);
    ck_assert_str_eq(dlx__error_message(), "it is not a ledger of dlpackd");
}

TEST(strings_of_a_ledger_end)
{
    struct dlxd_ledger ledger;
    struct dlxd_ledger_entry entry = {.id = 1};
    memset(entry.topic, 'x', sizeof entry.topic);
    memset(entry.client_name, 'x', sizeof entry.client_name);
    ok(dlxd_ledger_init(&ledger));
    ck_assert_int_eq(dlxd_ledger_put(&ledger, 0, &entry), 1);
    ck_assert(dlxd_ledger_get(&ledger, 1, &entry));
    ck_assert_uint_eq(strlen(entry.topic), sizeof entry.topic - 1);
    ck_assert_uint_eq(strlen(entry.client_name), sizeof entry.client_name - 1);
    dlxd_ledger_deinit(&ledger);
}

/* RLIMIT_FSIZE may lie within an entry: the rest of it is not said to be an error that was there
 * before. */
TEST(an_entry_beyond_the_limit_is_refused_in_words)
{
    struct dlxd_ledger ledger;
    struct rlimit limit = {.rlim_cur = 3 * sizeof(struct dlxd_ledger_entry) + 100,
                           .rlim_max = RLIM_INFINITY};
    pid_t child = dlx_test_fork(); /* Check writes files, too */
    if (child == 0) {
        (void)signal(SIGXFSZ, SIG_IGN);
        ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
        ok(dlxd_ledger_init(&ledger));
        ck_assert_int_eq(put(&ledger, 0, 1), 1);
        ck_assert_int_eq(put(&ledger, 0, 2), 2);
        for (int i = 0; i < 2; i++) {
            errno = 0;
            ck_assert_int_lt(put(&ledger, 0, 3), 0);
            ck_assert_ptr_nonnull(strstr(dlx__error_message(), "File too large"));
        }
        dlxd_ledger_deinit(&ledger);
        _exit(0);
    }
    dlx_test_fork_join(child);
}

/* A daemon that could not read a ledger, for lack of descriptors, began another one, and could not
 * drop the first. The first is read only if the newest cannot be. */
TEST(of_two_ledgers_the_newest_counts)
{
    static char older[] = DLXD_RECORD_LEDGER "900", newest[] = DLXD_RECORD_LEDGER "1000";
    struct dlxd_ledger ledgers[2], read;
    ok(dlxd_ledger_init(&ledgers[0]));
    ok(dlxd_ledger_init(&ledgers[1]));
    ck_assert_int_eq(put(&ledgers[1], 0, 10), 1);
    for (size_t first = 0; first < 2; first++) {
        struct dlxd_manager_fd fds[2] = {
            {.fd = ledgers[first].fd, .name = first ? newest : older},
            {.fd = ledgers[!first].fd, .name = first ? older : newest}};
        struct dlxd_manager_fds all = {.fds = fds, .n = 2};
        ck_assert_ptr_eq(dlxd_restore_ledger(&all, &read), &fds[!first]);
        ck_assert_uint_eq(read.n, 1);
        dlxd_ledger_deinit(&read);
        fds[!first].fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        ck_assert_ptr_eq(dlxd_restore_ledger(&all, &read), &fds[first]);
        dlxd_ledger_deinit(&read);
        close(fds[!first].fd);
    }
    dlxd_ledger_deinit(&ledgers[0]);
    dlxd_ledger_deinit(&ledgers[1]);
}

int main(void)
{
    return dlx_test_run_case(tcase_create("ledger"));
}
