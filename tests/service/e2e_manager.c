/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon's messages to the service manager that started it: that it is ready, that its loop goes
 * round, that it reloads, and a line of status. The manager is a socket of the test;
 * check_systemd_service.sh has the real one.
 */

#include "tests/harness/upgrade.h"
#include <sys/un.h>

#define INTERVAL_MS 50U /* of pings: half of WATCHDOG_USEC */

static struct dlx_test_daemon daemon_;
static char config_path[300], notify_path[300], said[2048];
static int notify_fd;

static void open_manager(void)
{
    (void)snprintf(config_path, sizeof config_path, "%s/dlpackd.conf", daemon_.dir);
    (void)snprintf(notify_path, sizeof notify_path, "%s/n", daemon_.dir);
    (void)unlink(notify_path); /* of a test that failed */
    notify_fd = dlx_test_listen(notify_path, SOCK_DGRAM);
    dlx_test_upgrade_write(config_path, "[rule everybody]\nusers = *\ntopics = **\nallow = all\n");
}

/* Ends the daemon that a test started, too. */
static void close_manager(void)
{
    ck_assert(daemon_.pid < 0 || dlx_test_daemon_stop(&daemon_) == 0);
    ck_assert_int_eq(close(notify_fd), 0);
    ck_assert_int_eq(unlink(notify_path), 0);
    ck_assert_int_eq(unlink(config_path), 0);
}

/* In the child; `userdata` is WATCHDOG_USEC, or NULL. */
static void serve(void *userdata)
{
    char pid[16];
    (void)snprintf(pid, sizeof pid, "%d", (int)getpid());
    (void)setenv("NOTIFY_SOCKET", notify_path, 1);
    (void)setenv("WATCHDOG_PID", pid, 1);
    if (userdata)
        (void)setenv("WATCHDOG_USEC", userdata, 1);
    dlx_test_daemon_exec(&daemon_, DLX_TEST_WORDS("--config", config_path));
}

static void start(const char *watchdog_us)
{
    dlx_test_daemon_start_prepared(&daemon_, serve, (void *)(uintptr_t)watchdog_us);
}

/* The next message to the manager. */
static const char *hear(void)
{
    dlx_test_wait_readable(notify_fd);
    ssize_t n = recv(notify_fd, said, sizeof said - 1, 0);
    ck_assert_int_gt(n, 0);
    said[n] = '\0';
    return said;
}

static bool is_ping(void)
{
    return strncmp(said, "WATCHDOG=1\n", 11) == 0;
}

/* Pings may come in between. */
static const char *hear_of(const char *state)
{
    while (strncmp(hear(), state, strlen(state)) != 0)
        ck_assert_msg(is_ping(), "%s: %s", state, said);
    return said;
}

TEST(pings_come_in_half_of_the_time_and_say_who_is_there)
{
    enum { N = 5 };
    char status[400];
    start("100000");
    (void)snprintf(status, sizeof status, "\nSTATUS=Listening on %s: 0 clients", daemon_.path);
    ck_assert_int_eq(strncmp(hear(), "READY=1\n", 8), 0);
    contains(said, status);
    uint64_t begin_ns = 0;
    for (unsigned i = 0; i <= N; i++) {
        (void)hear();
        ck_assert_msg(is_ping(), "%s", said);
        begin_ns = i == 0 ? dlx__now_ns() : begin_ns;
    }
    uint64_t took_ms = (dlx__now_ns() - begin_ns) / 1000000;
    /* The first one may have been waiting for a while, so that the next one came early. */
    ck_assert_uint_ge(took_ms, (N - 1) * INTERVAL_MS / 2);
    contains(said, status);
    auto_fd fd = dlx_test_hello(&daemon_, 1);
    (void)snprintf(status, sizeof status, "%s: 1 clients, 0 publishers", daemon_.path);
    while (!strstr(hear_of("WATCHDOG=1\n"), status))
        ;
    ck_assert_int_eq(dlx_test_daemon_stop(&daemon_), 0);
    (void)hear_of("STOPPING=1\n");
}

TEST(without_a_watchdog_there_are_no_pings_and_no_numbers)
{
    start(NULL);
    (void)hear_of("READY=1\n");
    ck_assert_msg(!strstr(said, "clients"), "%s", said);
    ck_assert_int_eq(dlx_test_daemon_stop(&daemon_), 0);
    ck_assert_msg(strncmp(hear(), "STOPPING=1\n", 11) == 0, "%s", said);
}

static void reload(const char *config)
{
    dlx_test_upgrade_write(config_path, config);
    ck_assert_int_eq(kill(daemon_.pid, SIGHUP), 0);
    (void)hear_of("RELOADING=1\n");
    (void)hear_of("READY=1\n");
}

TEST(the_manager_hears_of_a_reload_and_why_it_was_refused)
{
    char place[400];
    start("100000");
    (void)hear_of("READY=1\n");
    reload("[rule everybody]\nusers = *\ntopics = **\nallow = nonsense\n");
    (void)snprintf(place, sizeof place, "; the new configuration is wrong: %s:4: 'nonsense'",
                   config_path);
    contains(said, place);
    (void)hear_of("WATCHDOG=1\n"); /* it stays so until there is a better one */
    contains(said, place);
    reload("[rule nobody]\nusers = 64001\ntopics = a\nallow = all\n");
    ck_assert_msg(!strstr(said, "configuration"), "%s", said);
}

/* How often has it slept? */
static unsigned long n_sleeps(void)
{
    char path[64], line[128];
    unsigned long n = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/status", (int)daemon_.pid);
    FILE *f = fopen(path, "re");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof line, f))
        if (strncmp(line, "voluntary_ctxt_switches:", 24) == 0)
            n = strtoul(line + 24, NULL, 10);
    (void)fclose(f);
    return n;
}

/* A turn of the loop sends the ping: a manager that does not read does not hold the daemon up, and
 * when it reads again the daemon has not given up. */
TEST(a_manager_that_does_not_read_for_a_while_is_pinged_again)
{
    const uint64_t deadline = dlx__deadline(PATIENCE);
    start("2000");
    auto_fd fd = dlx_test_hello(&daemon_, 1);
    /* The manager's queue is full when a datagram of the test does not fit either. */
    auto_fd sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%.100s", notify_path);
    while (sendto(sock, "x", 1, MSG_DONTWAIT, (const struct sockaddr *)&address, sizeof address) ==
           1)
        dlx_test_before(deadline);
    /* The daemon has tried in vain. */
    for (const unsigned long before = n_sleeps(); n_sleeps() < before + 5;
         dlx_test_before(deadline))
        (void)poll(NULL, 0, 1);
    auto_fd other = dlx_test_hello(&daemon_, 1); /* it still serves */
    while (!strstr(hear(), ": 2 clients") || !is_ping())
        dlx_test_before(deadline);
}

int main(void)
{
    TCase *tcase = tcase_create("manager");
    tcase_set_timeout(tcase, PATIENCE_S);
    dlx_test_dir_fixture(tcase, &daemon_);
    tcase_add_checked_fixture(tcase, open_manager, close_manager);
    return dlx_test_run_case(tcase);
}
