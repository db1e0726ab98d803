/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's messages to its service manager: sd_notify(3). */
#include "daemon/persist/notify.h"
#include "tests/harness/fds.h"
#include "tests/harness/run.h"

/* A manager's socket with an abstract name, which is put in the environment. */
static int make_manager(void)
{
    char name[64];
    (void)snprintf(name, sizeof name, "@dlpackd-test-notify-%d", (int)getpid());
    setenv("NOTIFY_SOCKET", name, 1);
    return dlx_test_fds_bind(name, SOCK_DGRAM | SOCK_NONBLOCK);
}

TEST(a_manager_with_an_abstract_name_is_told)
{
    char text[64] = "";
    int fd = make_manager();
    ck_assert(dlxd_notify_is_possible());
    ok(dlxd_notify("READY=1", -1));
    ck_assert_int_eq(recv(fd, text, sizeof text - 1, 0), 7);
    ck_assert_str_eq(text, "READY=1");
    close(fd);
}

TEST(a_manager_that_does_not_read_is_not_waited_for)
{
    int fd = make_manager(), r;
    do {
        r = dlxd_notify("READY=1", -1);
    } while (r == 0);
    ck_assert_int_eq(r, DLX_E_FULL);
    close(fd);
    ck_assert_int_lt(dlxd_notify("READY=1", -1), 0);
    ck_assert_ptr_nonnull(strstr(dlx__error_message(), "service manager"));
}

TEST(names_that_are_no_socket_are_no_manager)
{
    char long_name[200];
    memset(long_name, 'x', sizeof long_name - 1);
    long_name[0] = '/';
    long_name[sizeof long_name - 1] = '\0';
    const char *const names[] = {"", "/", "@", "relative", "vsock:2:1", long_name};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(names); i++) {
        setenv("NOTIFY_SOCKET", names[i], 1);
        ck_assert_msg(!dlxd_notify_is_possible(), "%s", names[i]);
        ck_assert_int_eq(dlxd_notify("READY=1", -1), DLX_E_NOT_FOUND);
    }
    unsetenv("NOTIFY_SOCKET");
    ck_assert(!dlxd_notify_is_possible());
}

TEST(only_a_watchdog_of_this_process_counts)
{
    static const struct {
        const char *usec, *pid; /* pid: NULL is none, "" this process's */
        uint64_t us;
    } all[] = {
        {"30000000", "", 30000000},
        {"30000000", NULL, 30000000},
        {"18446744073709551615", "", UINT64_MAX},
        {"30000000", "1", 0}, /* it was started by another one, which is watched */
        {"30000000", "x", 0},
        {NULL, "", 0},
        {"", "", 0},
        {"0", "", 0},
        {"-1", "", 0},
        {" 5", "", 0},
        {"5s", "", 0},
        {"18446744073709551616", "", 0},
    };
    char self[16];
    (void)snprintf(self, sizeof self, "%d", (int)getpid());
    int fd = make_manager();
    for (size_t i = 0; i < DLX_ARRAY_SIZE(all); i++) {
        const char *pid = all[i].pid && !*all[i].pid ? self : all[i].pid;
        (void)(all[i].usec ? setenv("WATCHDOG_USEC", all[i].usec, 1) : unsetenv("WATCHDOG_USEC"));
        (void)(pid ? setenv("WATCHDOG_PID", pid, 1) : unsetenv("WATCHDOG_PID"));
        ck_assert_msg(dlxd_notify_watchdog_us() == all[i].us, "%zu", i);
    }
    setenv("WATCHDOG_USEC", "30000000", 1);
    unsetenv("NOTIFY_SOCKET"); /* whom should it tell? */
    unsetenv("WATCHDOG_PID");
    ck_assert_uint_eq(dlxd_notify_watchdog_us(), 0);
    close(fd);
}

int main(void)
{
    return dlx_test_run_case(tcase_create("notify"));
}
