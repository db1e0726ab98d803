/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A daemon that starts, with each of its calls of the C library failing once: it starts
 * nevertheless, or says why not and leaves nothing; and the next one starts.
 */

#include "common/error.h"
#include "common/memory.h"
#include "daemon/objects/client.h"
#include "daemon/persist/manager_fds.h"
#include "daemon/server/listener.h"
#include "daemon/server/server.h"
#include "tests/harness/daemon.h"
#include "tests/fail/harness_fail.h"
#include "tests/harness/fds.h"
#include "tests/harness/run.h"
#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

static struct dlx_test_daemon place;

static size_t n_entries(const char *path)
{
    size_t n = 0;
    DIR *dir = opendir(path);
    ck_assert_ptr_nonnull(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

/* Names of this process's shared memory. */
static size_t n_names(void)
{
    char prefix[64];
    size_t n = 0;
    (void)snprintf(prefix, sizeof prefix, "dlpackd.%u.%d.", (unsigned)geteuid(), (int)getpid());
    DIR *dir = opendir("/dev/shm");
    ck_assert_ptr_nonnull(dir);
    for (const struct dirent *entry; (entry = readdir(dir));)
        n += strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    closedir(dir);
    return n;
}

static int passed_fd = -1; /* by a service manager */

static int pass(void)
{
    return passed_fd < 0 ? -1 : dlx_test_fds_dup(passed_fd);
}

/* As main() does. */
static int start(struct dlxd_server **ret, int take_listen_fd, const struct dlx_memory *memory)
{
    struct dlxd_manager_fds manager_fds = {.n = 0};
    dlx_cleanup(dlx__closep) int fd = take_listen_fd;
    int r = dlx__memory_supported(memory);
    if (r == 0)
        r = dlxd_client_supported();
    if (r == 0)
        r = dlxd_server_new(
            ret, &(struct dlxd_listen){.path = place.path, .take_fd = dlx__steal_fd(&fd)}, memory);
    if (r == 0)
        (void)dlxd_server_keep(*ret, 100, &manager_fds); /* without it, it only says so */
    return r;
}

static void start_with_each_failure(const struct dlx_memory *memory)
{
    struct dlx_test_fail fail = {.at = 0};
    struct dlxd_server *server = NULL;
    ck_assert_int_eq(start(&server, pass(), memory), 0); /* libuv keeps a pipe for signals */
    dlxd_server_free(server);
    size_t n_files = n_entries(place.dir), n_fds = n_entries("/proc/self/fd"), n_failed = 0;
    while (dlx_test_fail_next(&fail)) {
        dlx__error_clear();
        int fd = pass();
        dlx_test_fail(&fail);
        int r = start(&server, fd, memory);
        dlx_test_fail(NULL);
        if (r < 0) {
            ck_assert_msg(strlen(dlx__error_message()) > 10, "%s failed with %s: %s, said '%s'",
                          fail.call, strerror(fail.error), dlx__error_name(r),
                          dlx__error_message());
            n_failed++;
        } else {
            dlxd_server_free(server);
        }
        /* Who has no lock, or does not know whose the file is, leaves it. */
        bool unlocked =
            fail.call && (strcmp(fail.call, "flock") == 0 || strcmp(fail.call, "fstat") == 0);
        ck_assert_msg((unlocked || n_entries(place.dir) == n_files) &&
                          n_entries("/proc/self/fd") == n_fds,
                      "%s failed with %s: something is left", fail.call ? fail.call : "nothing",
                      strerror(fail.error));
        ck_assert_msg(n_names() == 0, "%s failed with %s: a name is left in /dev/shm",
                      fail.call ? fail.call : "nothing", strerror(fail.error));
        ck_assert_int_eq(start(&server, pass(), memory), 0);
        dlxd_server_free(server);
    }
    ck_assert_uint_gt(n_failed, passed_fd < 0 ? 30 : 15);
}

TEST(a_start_that_fails_says_why_and_leaves_nothing)
{
    start_with_each_failure(&dlx__memory_memfd);
}

TEST(so_does_one_on_posix_shared_memory)
{
    start_with_each_failure(&dlx__memory_posix);
}

TEST(the_default_path_is_the_environments)
{
    static const struct {
        const char *socket, *run_dir, *path;
    } all[] = {
        {"/a/s", "/b", "/a/s"},
        {"", "/b", "/b/dlpackd.sock"},
        {NULL, "/b", "/b/dlpackd.sock"},
        {NULL, "", "/run/dlpackd/dlpackd.sock"},
        {NULL, NULL, "/run/dlpackd/dlpackd.sock"},
    };
    for (size_t i = 0; i < DLX_ARRAY_SIZE(all); i++) {
        struct dlx_test_fail fail = {.at = 1};
        (void)(all[i].socket ? setenv("DLX_SOCKET", all[i].socket, 1) : unsetenv("DLX_SOCKET"));
        (void)(all[i].run_dir ? setenv("XDG_RUNTIME_DIR", all[i].run_dir, 1)
                              : unsetenv("XDG_RUNTIME_DIR"));
        char *path = dlxd_listener_default_path();
        ck_assert_str_eq(path, all[i].path);
        free(path);
        dlx__error_clear();
        dlx_test_fail(&fail);
        path = dlxd_listener_default_path();
        dlx_test_fail(NULL);
        ck_assert_ptr_null(path);
        ck_assert_str_ne(dlx__error_message(), "");
    }
}

/* With a service manager, whose store what is retained goes to. */
TEST(so_does_one_that_a_service_manager_starts)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%.90s/n", place.dir);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    setenv("NOTIFY_SOCKET", address.sun_path, 1);
    start_with_each_failure(&dlx__memory_memfd);
    close(fd);
    ck_assert_int_eq(unlink(address.sun_path), 0);
}

/* It makes the socket as well. */
LOOP_TEST(so_does_one_whose_socket_a_service_manager_made, 0, 2)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct dlxd_server *server = NULL;
    (void)snprintf(address.sun_path, sizeof address.sun_path, "%.90s/a", place.dir);
    passed_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (_i == 0) {
        ck_assert_int_eq(bind(passed_fd, (const struct sockaddr *)&address, sizeof address), 0);
        ck_assert_int_eq(listen(passed_fd, 1), 0);
        start_with_each_failure(&dlx__memory_memfd);
        ck_assert_int_eq(unlink(address.sun_path), 0);
    } else { /* one that has a number for a name */
        ck_assert_int_eq(bind(passed_fd, (const struct sockaddr *)&address, sizeof(sa_family_t)),
                         0);
        ck_assert_int_eq(start(&server, pass(), &dlx__memory_memfd), DLX_E_INVALID);
        ck_assert_ptr_nonnull(strstr(dlx__error_message(), "bound to no path"));
    }
    close(passed_fd);
}

int main(void)
{
    TCase *tcase = tcase_create("start");
    tcase_set_timeout(tcase, PATIENCE_S);
    dlx_test_dir_fixture(tcase, &place);
    return dlx_test_run_case(tcase);
}
