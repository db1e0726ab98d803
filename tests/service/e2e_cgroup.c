/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A memory cgroup that is full. The publisher pays, and lack of memory shows when it asks for
 * memory: never as a SIGBUS, neither there nor in a subscriber. A subscriber pays nothing: one with
 * next to no memory reads as much as it likes.
 */

#include "tests/harness/fork.h"
#include "tests/harness/stream.h"

#define MIB     (INT64_C(1) << 20)
#define MESSAGE (2 * MIB)
#define WORDS   (MESSAGE / 8)

static char group[600]; /* its folder */

static bool put(const char *file, const char *text)
{
    char path[700];
    (void)snprintf(path, sizeof path, "%s/%s", group, file);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool good = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    dlx__close(fd);
    return good;
}

/* Below our own: where the memory controller is, version 1 or 2. */
static bool find_own(char *ret, size_t size)
{
    char line[500];
    bool found = false;
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (file && !found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        const char *v1 = strstr(line, ":memory:");
        if (v1)
            found = snprintf(ret, size, "/sys/fs/cgroup/memory%s", v1 + strlen(":memory:")) > 0;
        else if (strncmp(line, "0::", 3) == 0 && access("/sys/fs/cgroup/cgroup.procs", F_OK) == 0)
            found = snprintf(ret, size, "/sys/fs/cgroup%s", line + 3) > 0;
    }
    if (file)
        (void)fclose(file);
    return found;
}

/* Returns false, and says so, where no process may make one. */
static bool make_group(const char *bytes)
{
    char own[500];
    if (dlx_test_skips(dlx_test_instrumented(), "sanitizers and valgrind need much memory"))
        return false;
    bool made = false;
    if (find_own(own, sizeof own)) {
        (void)snprintf(group, sizeof group, "%s/dlx-test.%d", own, (int)getpid());
        made = mkdir(group, 0755) == 0;
    }
    if (made && (put("memory.limit_in_bytes", bytes) || put("memory.max", bytes)))
        return true;
    if (made)
        (void)rmdir(group);
    printf("SKIP: no memory cgroup can be made here (%s)\n", strerror(errno));
    return false;
}

/* Swap would only make it slow. */
static bool enter_group(void)
{
    (void)(put("memory.memsw.limit_in_bytes", "64M") || put("memory.swap.max", "0"));
    return put("cgroup.procs", "0");
}

static void remove_group(void)
{
    for (uint64_t until = dlx__deadline(PATIENCE); rmdir(group) < 0; dlx_test_before(until)) {
        ck_assert_int_eq(errno, EBUSY); /* what ended there leaves in a while */
        sched_yield();
    }
}

enum { RAN_OUT = 0, CANNOT_ENTER = 3, NEVER_FULL = 4, OTHER_CODE = 5, SMALL_FAILS = 6 };

/* All of it stays: nothing may be used again. Returns an exit status. */
static int publish_until_full(void)
{
    if (!enter_group())
        return CANNOT_ENTER;
    auto_publisher *p = dlx_test_stream_new_publisher("test/a", PUBLISHER(.history = 100));
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    for (int64_t i = 0; i < 100; i++) {
        int64_t n = WORDS;
        const struct dlx_tensor_spec spec = INT64_SPEC(&n);
        DLManagedTensorVersioned *t;
        int r = dlx_alloc(p, &spec, &t);
        if (r < 0) {
            if (r != DLX_E_NO_MEMORY)
                return OTHER_CODE;
            dlx_test_stream_publish(p, 10, i * WORDS); /* into what it has */
            return RAN_OUT;
        }
        for (int64_t k = 0; k < n; k++)
            ((int64_t *)t->dl_tensor.data)[k] = i * WORDS + k;
        ok(dlx_publish(p, t, NULL, NULL));
    }
    return NEVER_FULL;
}

TEST(a_publisher_whose_group_is_full_is_told)
{
    struct dlx_message *held[100];
    int n = 0, r;
    if (!make_group("32M"))
        return;
    auto_subscription *s =
        dlx_test_stream_new_subscription("test/a", SUBSCRIBE(.max_held = 100, .history = 100));
    pid_t pid = dlx_test_fork();
    if (pid == 0)
        _exit(publish_until_full());
    /* Each message that came is whole, and stays so when its publisher has gone. */
    while ((r = dlx_take(s, PATIENCE, &held[n])) == 0)
        n++;
    ck_assert_int_eq(r, DLX_E_PUBLISHER_GONE);
    int status = dlx_test_fork_status(pid);
    ck_assert_int_ge(n, 4);
    ck_assert_int_lt(n, 20);
    for (int i = 0; i < n; i++) {
        dlx_test_stream_check(held[i], dlx_message_tensor_peek(held[i], 0)->shape[0], i * WORDS);
        dlx_message_unref(held[i]);
    }
    /* The kernel may rather end a process than refuse it memory: its own choice. */
    ck_assert_msg(status == RAN_OUT || status == 256 + SIGKILL, "%d", status);
    remove_group();
}

enum { N_MESSAGES = 16 };

static void read_all(int sock, const void *none)
{
    struct dlx_message *held[N_MESSAGES];
    (void)none;
    if (!enter_group())
        _exit(CANNOT_ENTER);
    auto_subscription *s = dlx_test_stream_new_subscription(
        "test/a", SUBSCRIBE(.reliable = true, .max_held = N_MESSAGES));
    dlx_test_say(sock);
    for (int i = 0; i < N_MESSAGES; i++)
        ok(dlx_take(s, PATIENCE, &held[i]));
    for (int i = 0; i < N_MESSAGES; i++) {
        dlx_test_stream_check(held[i], WORDS, i);
        dlx_message_unref(held[i]);
    }
}

TEST(a_reader_in_a_small_group_pays_nothing)
{
    if (!make_group("8M"))
        return;
    auto_publisher *p =
        dlx_test_stream_new_publisher("test/a", PUBLISHER_BLOCKING(.history = N_MESSAGES));
    struct dlx_test_part reader = dlx_test_part_begin(read_all, NULL);
    dlx_test_hear(reader.sock);
    for (int i = 0; i < N_MESSAGES; i++) /* four times what its group may have */
        dlx_test_stream_publish(p, WORDS, i);
    dlx_test_part_join(&reader);
    remove_group();
}
