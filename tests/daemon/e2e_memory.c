/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's choice of memory: a kernel without seals, a full /dev/shm, names that killed daemons
 * left, and a writer that takes pages away. Daemons here say themselves which memory they use. */
#include "common/memory.h"
#include "common/shm_name.h"
#include "tests/harness/cli.h"
#include "tests/harness/fork.h"
#include "tests/harness/memory.h"
#include "tests/harness/seccomp.h"
#include "tests/harness/shm.h"
#include "tests/harness/stream.h"
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define BODY(name) DLX__WIRE__PACKET__BODY_##name
#define POSIX      "DLX_MEMORY=posix"
#define MEMFD      "DLX_MEMORY=memfd"

static struct dlx_test_daemon daemon_, other;

static void make_dirs(void)
{
    dlx_test_dir_make(&daemon_);
    dlx_test_dir_make(&other);
}

static void remove_dirs(void)
{
    dlx_test_dir_remove(&daemon_);
    dlx_test_dir_remove(&other);
}

static struct dlx_client *connect_to(const struct dlx_test_daemon *daemon)
{
    struct dlx_client *c = NULL;
    struct dlx_connect_args args = {.size = sizeof args, .socket = daemon->path};
    ok(dlx_connect(&c, &args));
    return c;
}

static void is_memory(struct dlx_client *c, const char *name)
{
    struct dlx_daemon_info info = dlx_test_stream_daemon_info(c);
    ck_assert_str_eq(info.memory, name);
}

static void take_and_check(struct dlx_subscription *s, int64_t n, int64_t value)
{
    dlx_test_stream_expect(s, n, value);
}

/* A publisher and a subscription, each in a connection of its own, and messages. */
static void stream(const struct dlx_test_daemon *daemon)
{
    struct dlx_client *a = connect_to(daemon), *b = connect_to(daemon);
    struct dlx_publisher *p = dlx_test_stream_publisher(a, "t", NULL);
    struct dlx_subscription *s = dlx_test_stream_subscribe(b, "t", NULL);
    for (int64_t i = 0; i < 20; i++) {
        dlx_test_stream_publish(p, 100000, i);
        take_and_check(s, 100000, i);
    }
    dlx_subscription_unref(s);
    dlx_publisher_unref(p);
    dlx_client_unref(a);
    dlx_client_unref(b);
}

static void start_with(struct dlx_test_daemon *daemon, const char *memory)
{
    dlx_test_daemon_start(daemon, memory);
}

/* ---- both at once -------------------------------------------------------------------------- */

TEST(one_process_uses_daemons_of_both_kinds)
{
    struct dlx_publisher *p[2] = {NULL};
    struct dlx_subscription *s[2] = {NULL};
    start_with(&daemon_, POSIX);
    start_with(&other, MEMFD);
    struct dlx_client *c[2] = {connect_to(&daemon_), connect_to(&other)};
    is_memory(c[0], "posix");
    is_memory(c[1], "memfd");
    for (int i = 0; i < 2; i++) {
        ok(dlx_publisher_new(c[i], "t", NULL, &p[i]));
        ok(dlx_subscribe(c[i], "t", NULL, &s[i]));
    }
    for (int i = 0; i < 6; i++)
        dlx_test_stream_publish(p[i % 2], 50000, i);
    for (int i = 0; i < 6; i++)
        take_and_check(s[i % 2], 50000, i);
    for (int i = 0; i < 2; i++) {
        dlx_subscription_unref(s[i]);
        dlx_publisher_unref(p[i]);
        dlx_client_unref(c[i]);
    }
    ck_assert_int_eq(dlx_test_daemon_stop(&daemon_), 0);
    ck_assert_int_eq(dlx_test_daemon_stop(&other), 0);
}

TEST(dlxctl_info_tells_which)
{
    static const struct {
        const char *env, *name, *promise;
    } kinds[] = {{POSIX, "posix", "not sealed"}, {MEMFD, "memfd", "memfd: sealed"}};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(kinds); i++) {
        struct dlx_test_cli cli;
        start_with(&daemon_, kinds[i].env);
        dlx_test_cli_run(&cli, daemon_.path, -1, 0, DLX_TEST_WORDS("info"));
        ck_assert_msg(strstr(cli.out, kinds[i].promise), "%s", cli.out);
        dlx_test_cli_deinit(&cli);
        dlx_test_cli_run(&cli, daemon_.path, -1, 0, DLX_TEST_WORDS("info", "--json"));
        json_t *json = dlx_test_cli_json(&cli);
        ck_assert_str_eq(json_string_value(json_object_get(json, "memory")), kinds[i].name);
        json_decref(json);
        dlx_test_cli_deinit(&cli);
        ck_assert_int_eq(dlx_test_daemon_stop(&daemon_), 0);
    }
}

TEST(memory_that_there_is_not_is_refused)
{
    char log[2048];
    ck_assert_int_eq(setenv("DLX_MEMORY", "sealed", 1), 0);
    ck_assert_int_eq(dlx_test_daemon_fail(daemon_.path, log, sizeof log), 2);
    ck_assert_msg(strstr(log, "'sealed'") && strstr(log, "memfd, posix"), "%s", log);
    ck_assert_int_eq(setenv("DLX_MEMORY", "", 1), 0); /* as if it were not set */
    start_with(&daemon_, NULL);
    struct dlx_client *c = connect_to(&daemon_);
    is_memory(c, "memfd");
    dlx_client_unref(c);
    ck_assert_int_eq(dlx_test_daemon_stop(&daemon_), 0);
}

/* ---- another kernel ------------------------------------------------------------------------ */

#define F_SEAL_FUTURE_WRITE_ 0x0010

/* For this process and its children the kernel is older than 5.1. */
static void forbid_future_write(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fcntl, 0, 5),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, F_ADD_SEALS, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, F_SEAL_FUTURE_WRITE_, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    ck_assert(dlx_test_seccomp_install(filter, DLX_ARRAY_SIZE(filter)));
}

TEST(without_seals_the_way_out_is_named_and_works)
{
    char log[2048];
    if (dlx_test_valgrind()) {
        puts("SKIP: valgrind makes system calls of its own under the filter");
        return;
    }
    forbid_future_write();
    ck_assert_int_eq(setenv("DLX_MEMORY", "memfd", 1), 0);
    ck_assert_int_eq(dlx_test_daemon_fail(daemon_.path, log, sizeof log), 1);
    ck_assert_msg(strstr(log, "F_SEAL_FUTURE_WRITE") && strstr(log, "--memory posix"), "%s", log);
    start_with(&daemon_, POSIX);
    stream(&daemon_);
    ck_assert_int_eq(dlx_test_daemon_stop(&daemon_), 0);
}

/* ---- /dev/shm ------------------------------------------------------------------------------ */

TEST(full_dev_shm_fails_the_alloc_and_nothing_else)
{
    struct dlx_tensor_spec spec = {
        .size = sizeof spec, .dtype = {kDLUInt, 8, 1}, .ndim = 1, .shape = (int64_t[]){4 << 20}};
    DLManagedTensorVersioned *t = NULL;
    if (!dlx_test_shm_private("size=2m"))
        return;
    start_with(&daemon_, POSIX);
    struct dlx_client *c = connect_to(&daemon_);
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "t", NULL);
    struct dlx_subscription *s = dlx_test_stream_subscribe(c, "t", NULL);
    for (int64_t i = 0; i < 20; i++) {
        fails(dlx_alloc(p, &spec, &t), DLX_E_NO_MEMORY, "/dev/shm");
        dlx_test_stream_publish(p, 1000, i);
        take_and_check(s, 1000, i);
    }
    dlx_subscription_unref(s);
    dlx_publisher_unref(p);
    dlx_client_unref(c);
    ck_assert_int_eq(dlx_test_daemon_stop(&daemon_), 0);
}

/* Memory that a publisher has and does not use is not why it gets none. */
TEST(when_there_is_no_more_what_is_empty_makes_way)
{
    int64_t n = 5 << 20;
    struct dlx_tensor_spec spec = {
        .size = sizeof spec, .dtype = {kDLUInt, 8, 1}, .ndim = 1, .shape = &n};
    DLManagedTensorVersioned *t = NULL;
    if (!dlx_test_shm_private("size=12m"))
        return;
    start_with(&daemon_, POSIX);
    struct dlx_client *c = connect_to(&daemon_);
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "t", NULL);
    ok(dlx_alloc(p, &spec, &t));
    n = 8 << 20;
    DLManagedTensorVersioned *more = NULL;
    fails(dlx_alloc(p, &spec, &more), DLX_E_NO_MEMORY, "/dev/shm"); /* it is used */
    t->deleter(t);
    int r;
    uint64_t until = dlx__deadline(PATIENCE);
    do /* the daemon may have it open for a moment */
        r = dlx_alloc(p, &spec, &more);
    while (r == DLX_E_NO_MEMORY && dlx__now_ns() < until);
    ok(r);
    more->deleter(more);
    n = 3 << 20; /* and what is too large for it is used, if there is nothing else */
    ok(dlx_alloc(p, &spec, &t));
    n = 4 << 20;
    r = dlx_alloc(p, &spec, &more);
    ck_assert_msg(r == 0, "%s", dlx_client_errmsg(NULL));
    t->deleter(t);
    more->deleter(more);
    dlx_publisher_unref(p);
    dlx_client_unref(c);
    ck_assert_int_eq(dlx_test_daemon_stop(&daemon_), 0);
}

TEST(no_name_is_there_while_everything_runs)
{
    if (!dlx_test_shm_private("size=64m"))
        return;
    start_with(&daemon_, POSIX);
    struct dlx_client *c = connect_to(&daemon_);
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "t", NULL);
    struct dlx_subscription *s = dlx_test_stream_subscribe(c, "t", NULL);
    dlx_test_stream_publish(p, 100000, 1);
    take_and_check(s, 100000, 1);
    ck_assert_uint_eq(dlx_test_shm_count(), 0);
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(p, 100000, 2);
    dlx_test_daemon_kill(&daemon_);
    ck_assert_uint_eq(dlx_test_shm_count(), 0);
    ok(dlx_publish(p, t, NULL)); /* the daemon is not needed for that */
    take_and_check(s, 100000, 2);
    dlx_subscription_unref(s);
    dlx_publisher_unref(p);
    dlx_client_unref(c);
}

/* Do valgrind, or thread sanitizer's run-time, remove files of their own? */
static bool unlinks_itself(void)
{
#if defined(__SANITIZE_THREAD__)
    return true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
    return true;
#endif
#endif
    return dlx_test_valgrind();
}

/* For this process and its children. False: it cannot be, and that was said. */
static bool take_proc_away(void)
{
#ifdef DLX_SANITIZE
    puts("SKIP: sanitizers need /proc themselves");
    return false;
#endif
    if (dlx_test_valgrind()) {
        puts("SKIP: valgrind needs /proc itself");
        return false;
    }
    if (!dlx_test_shm_private("size=64m"))
        return false;
    ck_assert_int_eq(mount("none", "/proc", "tmpfs", 0, "size=4k"), 0);
    return true;
}

TEST(without_seals_no_proc_is_needed)
{
    char name[DLX_SHM_NAME_SIZE];
    struct dlx_shm_name own;
    if (!take_proc_away())
        return;
    ck_assert_int_eq(dlx__shm_name_make(name), 0);
    ck_assert(dlx__shm_name_parse(name + 1, &own));
    ck_assert_uint_eq(own.start, 0);
    ck_assert(dlx__shm_name_is_alive(&own));
    start_with(&daemon_, POSIX);
    stream(&daemon_);
    ck_assert_uint_eq(dlx_test_shm_count(), 0);
    ck_assert_int_eq(dlx_test_daemon_stop(&daemon_), 0);
}

/* It says so before it says that it listens. */
TEST(sealed_memory_without_proc_is_refused_at_the_start)
{
    char log[2048];
    if (!take_proc_away())
        return;
    ck_assert_int_eq(setenv("DLX_MEMORY", "memfd", 1), 0);
    ck_assert_int_eq(dlx_test_daemon_fail(daemon_.path, log, sizeof log), 1);
    ck_assert_msg(strstr(log, "without /proc") && strstr(log, "--memory posix"), "%s", log);
    ck_assert_msg(!strstr(log, "listening"), "%s", log);
    ck_assert_int_lt(access(daemon_.path, F_OK), 0);
}

/* Whoever asks to remove a name is killed by the kernel. */
static void kill_at_unlink(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
#ifdef SYS_unlink
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_unlink, 1, 0),
#endif
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_unlinkat, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    ck_assert(dlx_test_seccomp_install(filter, DLX_ARRAY_SIZE(filter)));
}

/* A daemon that dies with its first name in /dev/shm; or a process that does as such a daemon. */
static void leave_residue(void)
{
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        char log[512], name[DLX_SHM_NAME_SIZE];
        if (unlinks_itself())
            _exit(dlx__shm_name_make(name) == 0 &&
                          shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600) >= 0
                      ? 0
                      : 1);
        kill_at_unlink();
        (void)setenv("DLX_MEMORY", "posix", 1);
        _exit(dlx_test_daemon_fail(daemon_.path, log, sizeof log) == 256 + SIGSYS ? 0 : 1);
    }
    dlx_test_fork_join(pid);
}

/* The daemon's log until it listens is read by the harness: so one that fails, as its socket is
 * taken. */
static void clean(char *log, size_t size)
{
    ck_assert_int_eq(setenv("DLX_MEMORY", "posix", 1), 0);
    ck_assert_int_eq(dlx_test_daemon_fail(other.path, log, size), 1);
}

TEST(names_of_killed_daemons_are_removed_and_counted)
{
    char log[4096], name[DLX_SHM_NAME_SIZE];
    if (!dlx_test_shm_private("size=16m"))
        return;
    start_with(&other, POSIX);
    for (int i = 0; i < 3; i++)
        leave_residue();
    ck_assert_uint_eq(dlx_test_shm_count(), 3);
    /* One of a process that is alive: this one. */
    ck_assert_int_eq(dlx__shm_name_make(name), 0);
    int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
    ck_assert_int_ge(fd, 0);
    close(fd);
    clean(log, sizeof log);
    ck_assert_msg(strstr(log, "removed 3 names from /dev/shm"), "%s", log);
    ck_assert_uint_eq(dlx_test_shm_count(), 1);
    ck_assert_uint_eq(dlx_test_shm_count_own(), 1);
    clean(log, sizeof log);
    ck_assert_msg(!strstr(log, "removed"), "%s", log);
    ck_assert_uint_eq(dlx_test_shm_count(), 1);
    ck_assert_int_eq(shm_unlink(name), 0);
    stream(&other); /* it has noticed nothing */
    ck_assert_int_eq(dlx_test_daemon_stop(&other), 0);
}

/* ---- the weaker promise -------------------------------------------------------------------- */

/* Takes all pages of a region away and brings them back, until it is killed. */
static pid_t start_taker(int fd, off_t size)
{
    pid_t parent = getpid(), pid = dlx_test_fork();
    if (pid != 0)
        return pid;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (getppid() == parent)
        if (ftruncate(fd, 0) < 0 || fallocate(fd, 0, 0, size) < 0)
            break;
    _exit(1);
}

static void end_taker(pid_t pid)
{
    int status;
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status)); /* it has done it until now */
}

/* A publisher and a subscriber keep their descriptors and take pages away: the daemon, which looks
 * at their counters for lists, does not fault. */
TEST(pages_that_a_writer_takes_away_do_not_end_the_daemon)
{
    Dlx__Wire__PublisherNew request = DLX__WIRE__PUBLISHER_NEW__INIT;
    Dlx__Wire__PublisherReady ready = DLX__WIRE__PUBLISHER_READY__INIT;
    Dlx__Wire__ListPublishers list = DLX__WIRE__LIST_PUBLISHERS__INIT;
    Dlx__Wire__ListLinks links = DLX__WIRE__LIST_LINKS__INIT;
    struct dlx_test_subscription sub;
    char topic[] = "t";
    void *map;
    start_with(&daemon_, POSIX);
    int control = dlx_test_hello(&daemon_, 10);
    request.topic = topic;
    request.history = 1;
    request.depth = 16;
    request.n_entries = 256;
    const Dlx__Wire__Packet *reply = dlx_test_call(control, BODY(PUBLISHER_NEW), &request);
    ck_assert_int_eq(reply->body_case, BODY(PUBLISHER_NEW_REPLY));
    uint64_t size = reply->publisher_new_reply->control_size;
    links.publisher = ready.publisher = reply->publisher_new_reply->publisher;
    int block = dlx_test_take_fd(0), kept = fcntl(block, F_DUPFD_CLOEXEC, 0);
    int link_sock = dlx_test_take_fd(2);
    ck_assert_int_eq(dlx__region_populate(dlx_test_memory, block, size, &map), 0);
    dlx_test_call_ok(control, BODY(PUBLISHER_READY), &ready);
    /* And a subscriber likewise. */
    dlx_test_subscribe(&sub, control, "t", false);
    const Dlx__Wire__Packet *offer = dlx_test_expect(sub.fd, BODY(LINK_OFFER));
    Dlx__Wire__LinkReady link_ready = DLX__WIRE__LINK_READY__INIT;
    link_ready.link = offer->link_offer->link;
    int page = dlx_test_take_fd(0);
    off_t page_size = (off_t)offer->link_offer->page_size;
    dlx_test_memory_fill(page, (uint64_t)page_size);
    dlx_test_ack(&sub);
    dlx_test_send(sub.fd, BODY(LINK_READY), &link_ready, 0);
    (void)dlx_test_expect(sub.fd, BODY(LINK_OPEN));
    pid_t takers[] = {start_taker(kept, (off_t)size), start_taker(page, page_size)};
    for (int i = 0; i < 2000; i++) {
        reply = dlx_test_call(control, BODY(LIST_PUBLISHERS), &list);
        ck_assert_int_eq(reply->body_case, BODY(PUBLISHER_LIST));
        ck_assert_uint_eq(reply->publisher_list->n_entries, 1);
        reply = dlx_test_call(control, BODY(LIST_LINKS), &links);
        ck_assert_int_eq(reply->body_case, BODY(LINK_LIST));
        ck_assert_uint_eq(reply->link_list->n_entries, 1);
    }
    end_taker(takers[0]);
    end_taker(takers[1]);
    dlx_test_recv_done();
    dlx__region_unmap(map, size);
    dlx_test_subscription_deinit(&sub);
    close(link_sock);
    close(kept);
    close(page);
    close(control);
    stream(&daemon_);
    ck_assert_int_eq(dlx_test_daemon_stop(&daemon_), 0);
}

int main(void)
{
    TCase *tcase = tcase_create("memory");
    tcase_set_timeout(tcase, 120);
    tcase_add_unchecked_fixture(tcase, make_dirs, remove_dirs);
    return dlx_test_run_case(tcase);
}
