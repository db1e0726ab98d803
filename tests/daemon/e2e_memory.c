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

#define POSIX "DLX_MEMORY=posix"
#define MEMFD "DLX_MEMORY=memfd"

static struct dlx_test_daemon *const daemon_ = &dlx_test_stream_daemon;
static struct dlx_test_daemon other;

static void make_dirs(void)
{
    dlx_test_dir_make(daemon_);
    dlx_test_dir_make(&other);
}

static void remove_dirs(void)
{
    dlx_test_dir_remove(daemon_);
    dlx_test_dir_remove(&other);
}

/* Stops the daemons that a test started. */
static void stop_daemons(void)
{
    ck_assert(daemon_->pid < 0 || dlx_test_daemon_stop(daemon_) == 0);
    ck_assert(other.pid < 0 || dlx_test_daemon_stop(&other) == 0);
}

static void is_memory(struct dlx_client *c, const char *name)
{
    struct dlx_daemon_info info = dlx_test_stream_daemon_info(c);
    ck_assert_str_eq(info.memory, name);
}

/* A publisher and a subscription, each in a connection of its own, and messages. */
static void stream(void)
{
    auto_publisher *p = dlx_test_stream_new_publisher("t", NULL);
    auto_subscription *s = dlx_test_stream_new_subscription("t", NULL);
    for (int64_t i = 0; i < 20; i++) {
        dlx_test_stream_publish(p, 100000, i);
        dlx_test_stream_expect(s, 100000, i);
    }
}

TEST(a_process_uses_daemons_of_both_kinds)
{
    struct dlx_test_pair x[2];
    static const char *const kinds[] = {POSIX, MEMFD};
    struct dlx_test_daemon *const daemons[] = {daemon_, &other};
    for (int i = 0; i < 2; i++) {
        dlx_test_daemon_start(daemons[i], kinds[i]);
        struct dlx_connect_args args = {.size = sizeof args, .socket = daemons[i]->path};
        ok(dlx_connect(&args, &x[i].c));
        is_memory(x[i].c, i == 0 ? "posix" : "memfd");
        x[i].p = dlx_test_stream_publisher(x[i].c, "t", NULL);
        x[i].s = dlx_test_stream_subscribe(x[i].c, "t", NULL);
    }
    for (int i = 0; i < 6; i++)
        dlx_test_stream_publish(x[i % 2].p, 50000, i);
    for (int i = 0; i < 6; i++)
        dlx_test_stream_expect(x[i % 2].s, 50000, i);
    for (int i = 0; i < 2; i++)
        dlx_test_pair_end(&x[i]);
}

static const struct {
    const char *env, *name, *promise;
} kinds[] = {{POSIX, "posix", "not sealed"}, {MEMFD, "memfd", "memfd: sealed"}};

LOOP_TEST(dlxctl_info_tells_which, 0, DLX_ARRAY_SIZE(kinds))
{
    struct dlx_test_cli cli;
    dlx_test_daemon_start(daemon_, kinds[_i].env);
    dlx_test_cli_run(&cli, daemon_->path, -1, 0, DLX_TEST_WORDS("info"));
    contains(cli.out, kinds[_i].promise);
    dlx_test_cli_deinit(&cli);
    dlx_test_cli_run(&cli, daemon_->path, -1, 0, DLX_TEST_WORDS("info", "--json"));
    json_t *json = dlx_test_cli_json(&cli);
    ck_assert_str_eq(json_string_value(json_object_get(json, "memory")), kinds[_i].name);
    json_decref(json);
    dlx_test_cli_deinit(&cli);
}

TEST(an_empty_variable_chooses_sealed_memory)
{
    ck_assert_int_eq(setenv("DLX_MEMORY", "", 1), 0);
    dlx_test_daemon_start(daemon_, NULL);
    auto_client *c = dlx_test_stream_connect();
    is_memory(c, "memfd");
}

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
    if (dlx_test_skips(dlx_test_valgrind(),
                       "valgrind makes system calls of its own under the filter"))
        return;
    forbid_future_write();
    ck_assert_int_eq(setenv("DLX_MEMORY", "memfd", 1), 0);
    contains(dlx_test_daemon_refuses(daemon_->path, 1, "F_SEAL_FUTURE_WRITE"), "--memory posix");
    dlx_test_daemon_start(daemon_, POSIX);
    stream();
}

TEST(full_dev_shm_fails_the_alloc_and_nothing_else)
{
    const struct dlx_tensor_spec spec = INT64_SPEC((int64_t[]){4 << 17});
    DLManagedTensorVersioned *t = NULL;
    if (!dlx_test_shm_private("size=2m"))
        return;
    dlx_test_daemon_start(daemon_, POSIX);
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    for (int64_t i = 0; i < 20; i++) {
        fails(dlx_alloc(x.p, &spec, &t), DLX_E_NO_MEMORY, "/dev/shm");
        dlx_test_stream_publish(x.p, 1000, i);
        dlx_test_stream_expect(x.s, 1000, i);
    }
}

/* Memory that a publisher has and does not use is not why it gets none. */
TEST(when_there_is_no_more_what_is_empty_makes_way)
{
    int64_t n = 5 << 17;
    const struct dlx_tensor_spec spec = INT64_SPEC(&n);
    DLManagedTensorVersioned *t = NULL;
    if (!dlx_test_shm_private("size=12m"))
        return;
    dlx_test_daemon_start(daemon_, POSIX);
    auto_publisher *p = dlx_test_stream_new_publisher("t", NULL);
    ok(dlx_alloc(p, &spec, &t));
    n = 8 << 17;
    DLManagedTensorVersioned *more = NULL;
    fails(dlx_alloc(p, &spec, &more), DLX_E_NO_MEMORY, "/dev/shm"); /* it is used */
    t->deleter(t);
    /* The daemon may have it open for a moment. */
    eventually(dlx_alloc(p, &spec, &more) != DLX_E_NO_MEMORY);
    more->deleter(more);
    n = 3 << 17; /* and what is too large for it is used, if there is nothing else */
    ok(dlx_alloc(p, &spec, &t));
    n = 4 << 17;
    ok(dlx_alloc(p, &spec, &more));
    t->deleter(t);
    more->deleter(more);
}

TEST(no_name_is_there_while_everything_runs)
{
    if (!dlx_test_shm_private("size=64m"))
        return;
    dlx_test_daemon_start(daemon_, POSIX);
    auto_pair x = dlx_test_pair_make(NULL, NULL);
    dlx_test_stream_publish(x.p, 100000, 1);
    dlx_test_stream_expect(x.s, 100000, 1);
    ck_assert_uint_eq(dlx_test_shm_count(), 0);
    DLManagedTensorVersioned *t = dlx_test_stream_alloc(x.p, 100000, 2);
    dlx_test_daemon_kill(daemon_);
    ck_assert_uint_eq(dlx_test_shm_count(), 0);
    ok(dlx_publish(x.p, t, NULL, NULL)); /* the daemon is not needed for that */
    dlx_test_stream_expect(x.s, 100000, 2);
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
    if (dlx_test_skips(dlx_test_instrumented(), "sanitizers and valgrind need /proc themselves") ||
        !dlx_test_shm_private("size=64m"))
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
    dlx_test_daemon_start(daemon_, POSIX);
    stream();
    ck_assert_uint_eq(dlx_test_shm_count(), 0);
}

/* The daemon says so before it says that it listens. */
TEST(sealed_memory_without_proc_is_refused_at_the_start)
{
    if (!take_proc_away())
        return;
    ck_assert_int_eq(setenv("DLX_MEMORY", "memfd", 1), 0);
    const char *log = dlx_test_daemon_refuses(daemon_->path, 1, "without /proc");
    ck_assert_msg(strstr(log, "--memory posix") && !strstr(log, "listening"), "%s", log);
    ck_assert_int_lt(access(daemon_->path, F_OK), 0);
}

/* The kernel kills a process that asks to remove a name. */
static void kill_at_unlink(void)
{
#ifdef SYS_unlink
    ck_assert(dlx_test_seccomp_kill(SYS_unlink));
#endif
    ck_assert(dlx_test_seccomp_kill(SYS_unlinkat));
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
        _exit(dlx_test_daemon_fail(other.path, log, sizeof log) == 256 + SIGSYS ? 0 : 1);
    }
    dlx_test_fork_join(pid);
}

/* The daemon's log until it listens is read by the harness: so one that fails, as its socket is
 * taken. */
static const char *clean(void)
{
    ck_assert_int_eq(setenv("DLX_MEMORY", "posix", 1), 0);
    return dlx_test_daemon_refuses(daemon_->path, 1, "");
}

TEST(names_of_killed_daemons_are_removed_and_counted)
{
    char name[DLX_SHM_NAME_SIZE];
    if (!dlx_test_shm_private("size=16m"))
        return;
    dlx_test_daemon_start(daemon_, POSIX);
    for (int i = 0; i < 3; i++)
        leave_residue();
    ck_assert_uint_eq(dlx_test_shm_count(), 3);
    /* A name of a live process: this one. */
    ck_assert_int_eq(dlx__shm_name_make(name), 0);
    int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600);
    ck_assert_int_ge(fd, 0);
    close(fd);
    contains(clean(), "removed 3 names from /dev/shm");
    ck_assert_uint_eq(dlx_test_shm_count(), 1);
    ck_assert_uint_eq(dlx_test_shm_count_own(), 1);
    ck_assert_ptr_null(strstr(clean(), "removed"));
    ck_assert_uint_eq(dlx_test_shm_count(), 1);
    ck_assert_int_eq(shm_unlink(name), 0);
    stream(); /* it has noticed nothing */
}

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

/* A publisher and a subscriber keep their descriptors and take pages away: the daemon, which looks
 * at their counters for lists, does not fault. */
TEST(pages_that_a_writer_takes_away_do_not_end_the_daemon)
{
    auto_test_subscription sub;
    void *map;
    dlx_test_daemon_start(daemon_, POSIX);
    auto_fd control = dlx_test_hello(daemon_, 10);
    Dlx__Wire__PublisherNew request = dlx_test_publisher_request("t");
    const Dlx__Wire__Packet *reply = dlx_test_call(control, BODY(PUBLISHER_NEW), &request);
    ck_assert_int_eq(reply->body_case, BODY(PUBLISHER_NEW_REPLY));
    uint64_t size = reply->publisher_new_reply->control_size;
    uint64_t id = reply->publisher_new_reply->publisher;
    int block = dlx_test_take_fd(0);
    auto_fd kept = fcntl(block, F_DUPFD_CLOEXEC, 0), link_sock = dlx_test_take_fd(2);
    ck_assert_int_eq(dlx__region_populate(dlx_test_memory, block, size, &map), 0);
    dlx_test_call_ok(control, PUBLISHER_READY(.publisher = id));
    /* And a subscriber likewise. */
    dlx_test_subscribe(&sub, control, "t", false);
    const Dlx__Wire__Packet *offer = dlx_test_expect(sub.fd, BODY(LINK_OFFER));
    auto_fd page = dlx_test_take_fd(0);
    off_t page_size = (off_t)offer->link_offer->page_size;
    dlx_test_memory_fill(page, (uint64_t)page_size);
    dlx_test_ack(&sub);
    dlx_test_send(sub.fd, LINK_READY(.link = offer->link_offer->link), 0);
    (void)dlx_test_expect(sub.fd, BODY(LINK_OPEN));
    pid_t takers[] = {start_taker(kept, (off_t)size), start_taker(page, page_size)};
    for (int i = 0; i < 2000; i++) {
        reply = dlx_test_call(control, LIST_PUBLISHERS());
        ck_assert_int_eq(reply->body_case, BODY(PUBLISHER_LIST));
        ck_assert_uint_eq(reply->publisher_list->n_entries, 1);
        reply = dlx_test_call(control, LIST_LINKS(.publisher = id));
        ck_assert_int_eq(reply->body_case, BODY(LINK_LIST));
        ck_assert_uint_eq(reply->link_list->n_entries, 1);
    }
    for (int i = 0; i < 2; i++) { /* they have done it until now */
        ck_assert_int_eq(kill(takers[i], SIGKILL), 0);
        ck_assert_int_eq(dlx_test_fork_status(takers[i]), 256 + SIGKILL);
    }
    dlx_test_recv_done();
    dlx__region_unmap(map, size);
    control = dlx__close(control);
    stream();
}

int main(void)
{
    TCase *tcase = tcase_create("memory");
    tcase_set_timeout(tcase, 120);
    tcase_add_unchecked_fixture(tcase, make_dirs, remove_dirs);
    tcase_add_checked_fixture(tcase, NULL, stop_daemons);
    return dlx_test_run_case(tcase);
}
