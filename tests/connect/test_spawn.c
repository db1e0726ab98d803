/* SPDX-License-Identifier: Apache-2.0 */
/* Where a daemon may be, and who may start one: the decisions, without a daemon. */
#include "client/start/socket_path.h"
#include "client/start/spawn.h"
#include "tests/harness/run.h"
#include <dlx/dlx.h>

static char base[200];
static char folder[300];
static struct dlx_socket_path_env env;

static void start(void)
{
    const char *tmp = getenv("TMPDIR");
    (void)snprintf(base, sizeof base, "%s/place-XXXXXX", tmp ? tmp : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(base));
    env = (struct dlx_socket_path_env){
        .system_path = "/nonexistent/dlpackd.sock", .tmp_dir = base, .uid = geteuid()};
    (void)snprintf(folder, sizeof folder, "%s/dlpackd-%u", base, (unsigned)geteuid());
}

static void stop(void)
{
    (void)rmdir(folder);
    ck_assert_int_eq(rmdir(base), 0);
}

TEST(environment_and_arguments_say_if_a_daemon_may_be_started)
{
    ck_assert_ptr_null(dlx__spawn_refusal(DLX_AUTOSPAWN_DEFAULT, NULL, false));
    ck_assert_ptr_null(dlx__spawn_refusal(DLX_AUTOSPAWN_DEFAULT, "", false));
    ck_assert_ptr_null(dlx__spawn_refusal(DLX_AUTOSPAWN_DEFAULT, "yes", false));
    ck_assert_ptr_nonnull(dlx__spawn_refusal(DLX_AUTOSPAWN_DEFAULT, "no", false));
    ck_assert_ptr_nonnull(dlx__spawn_refusal(DLX_AUTOSPAWN_DEFAULT, "Off", false));
    ck_assert_ptr_nonnull(dlx__spawn_refusal(DLX_AUTOSPAWN_DEFAULT, "0", false));
    ck_assert_ptr_nonnull(dlx__spawn_refusal(DLX_AUTOSPAWN_DEFAULT, "yes", true));
    ck_assert_ptr_nonnull(dlx__spawn_refusal(DLX_AUTOSPAWN_NEVER, "yes", false));
    ck_assert(!dlx__spawn_is_secure());
}

TEST(places_in_order)
{
    char path[DLX_SOCKET_PATH_SIZE], list[400], expected[600];
    ck_assert(!dlx__socket_path_of(&env, DLX_SOCKET_PATH_RUNTIME, path));
    env.runtime_dir = "relative";
    ck_assert(!dlx__socket_path_of(&env, DLX_SOCKET_PATH_RUNTIME, path));
    env.runtime_dir = "/run/user/7";
    ck_assert(dlx__socket_path_of(&env, DLX_SOCKET_PATH_RUNTIME, path));
    ck_assert_str_eq(path, "/run/user/7/dlpackd.sock");
    ck_assert(dlx__socket_path_of(&env, DLX_SOCKET_PATH_SYSTEM, path));
    ck_assert_str_eq(path, "/nonexistent/dlpackd.sock");
    ck_assert(!dlx__socket_path_of(&env, DLX_SOCKET_PATH_TMP, path)); /* no folder */
    dlx__socket_path_list(&env, list, sizeof list);
    (void)snprintf(expected, sizeof expected,
                   "/run/user/7/dlpackd.sock, /nonexistent/dlpackd.sock or %s/dlpackd.sock",
                   folder);
    ck_assert_str_eq(list, expected);
    dlx__socket_path_list(&env, list, 30); /* cut, not overrun */
    ck_assert_uint_lt(strlen(list), 30);
}

/* A path of one byte more than a socket address holds. */
TEST(a_place_that_is_too_long)
{
    static char dir[DLX_SOCKET_PATH_SIZE + 1];
    char path[DLX_SOCKET_PATH_SIZE];
    const size_t longest = DLX_SOCKET_PATH_SIZE - 1 - strlen("/dlpackd.sock");
    memset(dir, 'x', sizeof dir);
    dir[0] = '/';
    dir[longest] = '\0';
    env.runtime_dir = dir;
    ck_assert(dlx__socket_path_of(&env, DLX_SOCKET_PATH_RUNTIME, path));
    ck_assert_uint_eq(strlen(path), DLX_SOCKET_PATH_SIZE - 1);
    dir[longest] = 'x';
    dir[longest + 1] = '\0';
    ck_assert(!dlx__socket_path_of(&env, DLX_SOCKET_PATH_RUNTIME, path));
    env.runtime_dir = NULL;
}

/* Where a private daemon's socket goes. */
static enum dlx_socket_path private_place(void)
{
    char path[DLX_SOCKET_PATH_SIZE];
    enum dlx_socket_path place;
    auto_fd fd = -1;
    ck_assert_int_eq(dlx__socket_path_private(&env, &place, path, &fd), 0);
    return place;
}

static void refused(const char *word)
{
    char path[DLX_SOCKET_PATH_SIZE];
    enum dlx_socket_path place;
    int fd = -1;
    ck_assert_int_eq(dlx__socket_path_private(&env, &place, path, &fd), DLX_E_ACCESS);
    ck_assert_int_eq(fd, -1);
    contains(dlx__error_message(), folder);
    contains(dlx__error_message(), word);
    ck_assert(!dlx__socket_path_of(&env, DLX_SOCKET_PATH_TMP, path)); /* nor is it looked into */
}

TEST(a_folder_that_is_not_ours_alone)
{
    char path[DLX_SOCKET_PATH_SIZE], other[300];
    static const mode_t open_modes[] = {0701, 0710, 0755, 0770, 0777, 01700, 02700};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(open_modes); i++) {
        ck_assert_int_eq(mkdir(folder, 0700), 0);
        ck_assert_int_eq(chmod(folder, open_modes[i]), 0);
        (void)snprintf(other, sizeof other, "has mode %04o, not 0700", (unsigned)open_modes[i]);
        refused(other);
        ck_assert_int_eq(rmdir(folder), 0);
    }
    (void)snprintf(other, sizeof other, "%s/other", base);
    ck_assert_int_eq(mkdir(other, 0700), 0);
    ck_assert_int_eq(symlink(other, folder), 0); /* ours and 0700, but who made the link? */
    refused("not a folder");
    ck_assert_int_eq(unlink(folder), 0);
    ck_assert_int_eq(symlink("nowhere", folder), 0);
    refused("not a folder");
    ck_assert_int_eq(unlink(folder), 0);
    ck_assert_int_eq(rmdir(other), 0);
    close(open(folder, O_CREAT | O_WRONLY | O_CLOEXEC, 0700));
    refused("is not a folder");
    ck_assert_int_eq(unlink(folder), 0);

    ck_assert_int_eq(mkdir(folder, 0700), 0);
    env.uid++; /* as another user sees it, had he that name */
    (void)snprintf(other, sizeof other, "%s/dlpackd-%u", base, (unsigned)env.uid);
    ck_assert_int_eq(rename(folder, other), 0);
    (void)snprintf(folder, sizeof folder, "%s", other);
    refused("belongs to uid");
    env.uid--;
    ck_assert_int_eq(rmdir(folder), 0);
    (void)snprintf(folder, sizeof folder, "%s/dlpackd-%u", base, (unsigned)env.uid);

    ck_assert_int_eq(private_place(), DLX_SOCKET_PATH_TMP);
    ck_assert(dlx__socket_path_of(&env, DLX_SOCKET_PATH_TMP, path));
}

/* Or read, and so open and lock. */
TEST(a_runtime_folder_that_others_can_write_to)
{
    static char run[300];
    (void)snprintf(run, sizeof run, "%s/run", base);
    ck_assert_int_eq(mkdir(run, 0700), 0);
    env.runtime_dir = run;
    static const struct {
        mode_t mode;
        enum dlx_socket_path place;
    } cases[] = {{0700, DLX_SOCKET_PATH_RUNTIME}, {0711, DLX_SOCKET_PATH_RUNTIME},
                 {0755, DLX_SOCKET_PATH_TMP},     {0740, DLX_SOCKET_PATH_TMP},
                 {0770, DLX_SOCKET_PATH_TMP},     {0702, DLX_SOCKET_PATH_TMP},
                 {01777, DLX_SOCKET_PATH_TMP}};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(cases); i++) {
        ck_assert_int_eq(chmod(run, cases[i].mode), 0);
        ck_assert_msg(private_place() == cases[i].place, "mode %o", (unsigned)cases[i].mode);
    }
    ck_assert_int_eq(rmdir(run), 0);
    ck_assert_int_eq(private_place(), DLX_SOCKET_PATH_TMP);
}

TEST(a_socket_path_is_trusted_by_the_user_that_listens_there)
{
    int fds[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    ck_assert(dlx__socket_path_is_trusted(&env, DLX_SOCKET_PATH_TMP, fds[0]));
    env.uid++;
    ck_assert(!dlx__socket_path_is_trusted(&env, DLX_SOCKET_PATH_TMP, fds[0]));
    ck_assert(dlx__socket_path_is_trusted(&env, DLX_SOCKET_PATH_SYSTEM, fds[0])); /* its own user */
    env.uid--;
    close(fds[0]);
    close(fds[1]);
}

TEST(the_lock_of_a_folder_has_one_holder)
{
    auto_fd a = open(base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    auto_fd b = open(base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    uint64_t now = dlx__now_ns();
    ck_assert_int_eq(dlx__socket_path_lock(a, base, now), 0);
    ck_assert_int_eq(dlx__socket_path_lock(b, base, now + 20000000), DLX_E_TIMEOUT);
    ck_assert_uint_ge(dlx__now_ns(), now + 20000000);
    ck_assert_ptr_nonnull(strstr(dlx__error_message(), base));
    int manager_fds = fcntl(a, F_DUPFD_CLOEXEC, 0); /* as a child would have it */
    dlx__socket_path_unlock(a);
    ck_assert_int_eq(dlx__socket_path_lock(b, base, now), 0);
    close(manager_fds);
}

int main(void)
{
    TCase *tcase = tcase_create("spawn");
    tcase_add_checked_fixture(tcase, start, stop);
    return dlx_test_run_case(tcase);
}
