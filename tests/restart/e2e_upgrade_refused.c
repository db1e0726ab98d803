/* SPDX-License-Identifier: Apache-2.0 */
/* A program that cannot take the daemon's place changes nothing: the daemon serves as before, and
 * says why. docs/decisions/0030. */

#include "client/publish/publisher.h"
#include "tests/harness/fork.h"
#include "tests/harness/store.h"
#include "tests/harness/upgrade.h"

static int64_t n_published; /* messages, */
static size_t n_fds;        /* and descriptors of the daemon then */

/* A stream of one message. */
static struct dlx_test_pair begin(void)
{
    struct dlx_test_pair x = dlx_test_pair_make(NULL, NULL);
    dlx_test_stream_publish(x.p, 10, ++n_published);
    dlx_test_stream_take(x.s, n_published);
    n_fds = dlx_test_daemon_n_fds(&dlx_test_stream_daemon);
    return x;
}

/* The daemon serves as before: a client that was there notices nothing. */
static void check_unchanged(const struct dlx_test_pair *x)
{
    dlx_test_stream_publish(x->p, 10, ++n_published);
    dlx_test_stream_take(x->s, n_published);
    ck_assert_uint_eq(x->p->epoch, 0);
    dlx_test_daemon_wait_n_fds(&dlx_test_stream_daemon, n_fds);
}

TEST(a_program_that_cannot_take_over_changes_nothing)
{
    static const struct {
        size_t size;      /* of the copy; 0: the text */
        const char *text; /* NULL: no file */
        unsigned mode;
        int signum;
        const char *words;
    } all[] = {
        {10, NULL, 0755, SIGHUP, "Exec format error"},
        {20000, NULL, 0755, SIGHUP, "asked whether it can, it "},
        {4096, NULL, 0644, SIGHUP, "Permission denied"},
        {0, "#!/bin/sh\nexit 3\n", 0, SIGHUP, "ended with status 3"},
        {0, "#!/bin/sh\nkill -9 $$\n", 0, SIGHUP, "ended by signal 9 (Killed)"},
        {0, "#!/no/such/interpreter\n", 0, SIGHUP, "No such file or directory"},
        {0, NULL, 0, SIGUSR2, "No such file or directory"},
    };
    if (dlx_test_skips(dlx_test_valgrind(), "valgrind starts every program that can be read"))
        return;
    auto_pair x = begin();
    for (size_t i = 0; i < DLX_ARRAY_SIZE(all); i++) {
        if (all[i].size > 0)
            dlx_test_upgrade_put(all[i].size, all[i].mode);
        else if (all[i].text)
            dlx_test_upgrade_write(dlx_test_upgrade_program, all[i].text);
        else
            ck_assert_int_eq(unlink(dlx_test_upgrade_program), 0);
        dlx_test_upgrade_signal(all[i].signum);
        dlx_test_upgrade_await("this daemon goes on: ");
        dlx_test_upgrade_await(all[i].words);
        if (all[i].signum == SIGHUP) /* the administrator's wish is done as far as it can be */
            dlx_test_upgrade_await("read the configuration again");
        check_unchanged(&x);
    }
    dlx_test_upgrade_to_new();
}

/* The trial passes, and then execve(2) fails: what was prepared is undone. */
TEST(a_program_that_fails_at_the_last_moment_changes_nothing)
{
    char text[700];
    dlx_test_store_leave_messages("test/b", &dlx_test_retain_1, 3);
    dlx_test_upgrade();
    auto_pair x = begin();
    (void)snprintf(text, sizeof text, "#!/bin/sh\nrm %s\n", dlx_test_upgrade_program);
    dlx_test_upgrade_write(dlx_test_upgrade_program, text);
    dlx_test_upgrade_signal(SIGHUP);
    dlx_test_upgrade_await("cannot take its place: execve: No such file or directory");
    dlx_test_upgrade_await("read the configuration again");
    check_unchanged(&x);
    for (int i = 0; i < 3; i++) {
        dlx_test_upgrade_to_new();
        dlx_test_store_check_there("test/b", 3, 3);
    }
    dlx_test_store_drop("test/b");
}

/* The trial passes, and then nothing can be handed over. */
TEST(a_lack_of_descriptors_changes_nothing)
{
    if (dlx_test_skips(dlx_test_valgrind(), "valgrind needs descriptors to start a program"))
        return;
    auto_pair x = begin();
    struct rlimit before = dlx_test_daemon_leave_fds(&dlx_test_stream_daemon, 0);
    dlx_test_upgrade_signal(SIGUSR2);
    dlx_test_upgrade_await("cannot take its place: memfd_create");
    ck_assert_int_eq(prlimit(dlx_test_stream_daemon.pid, RLIMIT_NOFILE, &before, NULL), 0);
    check_unchanged(&x);
    dlx_test_upgrade();
}

TEST(a_wrong_configuration_stops_an_upgrade)
{
    auto_pair x = begin();
    dlx_test_upgrade_write(dlx_test_upgrade_config, "[daemon]\nno-such-key = 1\n");
    dlx_test_upgrade_put(0, 0755);
    dlx_test_upgrade_signal(SIGHUP);
    dlx_test_upgrade_await("c:2: [daemon] has no 'no-such-key'"); /* the new program says so */
    dlx_test_upgrade_await("ended with status 1");
    dlx_test_upgrade_await("the configuration stays as it was: ");
    check_unchanged(&x);
    dlx_test_upgrade_write(dlx_test_upgrade_config, "");
    dlx_test_upgrade_signal(SIGHUP);
    dlx_test_upgrade_await("listening on ");
}

static void check_handover(const void *option)
{
    /* A descriptor that the daemon closed when it was ready. */
    execl(dlx_test_upgrade_program, "dlpackd", "--ready-fd=77", option, (char *)NULL);
    _exit(127);
}

/* Of a daemon that hands over in another version than this program reads. */
TEST(a_program_says_whether_it_can_take_over)
{
    static const struct {
        const char *version;
        int status;
    } all[] = {{"1.2", 0}, {"1.1", 1}, {"2.2", 1}, {"", 1}, {"1.2.3", 1}};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(all); i++) {
        char option[64], said[256];
        (void)snprintf(option, sizeof option, "--check-handover=%s", all[i].version);
        int status = dlx_test_fork_said(check_handover, option, said, sizeof said);
        ck_assert_msg(status == all[i].status, "%s: %d %s", all[i].version, status, said);
        if (all[i].status > 0) {
            (void)snprintf(option, sizeof option, "hands over in version %s,", all[i].version);
            contains(said, option);
            contains(said, "takes over in version 1.2");
        }
    }
}

int main(void)
{
    return dlx_test_run_case(dlx_test_upgrade_case("upgrade_refused"));
}
