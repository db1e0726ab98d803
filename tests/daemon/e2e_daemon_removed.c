/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon whose socket file, lock file or folder is removed while it runs, as by a program that
 * cleans /tmp: it listens at its path again, and two daemons never stay apart without a word. */

#include "tests/harness/daemon_log.h"
#include "tests/harness/file.h"
#include "tests/harness/manager.h"
#include "tests/harness/stream.h"

static struct dlx_test_daemon place, second;
static char folder[220], lock_path[300];

static void set_up(void)
{
    (void)snprintf(folder, sizeof folder, "%s/f", place.dir);
    (void)snprintf(place.path, sizeof place.path, "%s/s", folder);
    (void)snprintf(lock_path, sizeof lock_path, "%s.lock", place.path);
    ck_assert_int_eq(mkdir(folder, 0700), 0);
    second = place;
}

static void tear_down(void)
{
    ck_assert_int_eq(rmdir(folder), 0);
}

static bool is_there(const char *path)
{
    return access(path, F_OK) == 0;
}

static void remove_folder(void)
{
    ck_assert_int_eq(unlink(place.path), 0);
    ck_assert_int_eq(unlink(lock_path), 0);
    ck_assert_int_eq(rmdir(folder), 0);
}

static mode_t mode_of(const char *path)
{
    struct stat st;
    ck_assert_int_eq(lstat(path, &st), 0);
    return st.st_mode & 07777U;
}

static struct dlx_client *connect_to_place(void)
{
    const struct dlx_connect_args args = {.size = sizeof args, .socket = place.path};
    struct dlx_client *c = NULL;
    ok(dlx_connect(&args, &c));
    return c;
}

static void publish(struct dlx_publisher *p, struct dlx_subscription *s)
{
    static int64_t n;
    dlx_test_stream_publish(p, 10, ++n);
    dlx_test_stream_expect(s, 10, n);
}

enum { SOCKET = 1, LOCK = 2, FOLDER = 4, UPGRADED = 8 };
static const int removals[] = {SOCKET,
                               LOCK,
                               SOCKET | LOCK,
                               SOCKET | LOCK | FOLDER,
                               SOCKET | UPGRADED,
                               LOCK | UPGRADED,
                               SOCKET | LOCK | FOLDER | UPGRADED};

LOOP_TEST(removed_files_are_made_again, 0, DLX_ARRAY_SIZE(removals))
{
    const int what = removals[_i];
    char another[64];
    dlx_test_daemon_start(&place, NULL);
    if (what & UPGRADED) {
        ck_assert_int_eq(kill(place.pid, SIGUSR2), 0);
        dlx_test_daemon_await(&place, "listening on ");
    }
    auto_client *c = connect_to_place();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", NULL);
    if (what & SOCKET)
        ck_assert_int_eq(unlink(place.path), 0);
    if (what & LOCK)
        ck_assert_int_eq(unlink(lock_path), 0);
    if (what & FOLDER)
        ck_assert_int_eq(rmdir(folder), 0);
    dlx_test_daemon_await(&place, what & SOCKET ? "was removed: listening there again"
                                                : "was removed: made it again");
    eventually(is_there(lock_path));
    ck_assert_uint_eq(mode_of(folder), 0700);
    ck_assert_uint_eq(mode_of(place.path), 0666);
    ck_assert_uint_eq(mode_of(lock_path), 0600);
    auto_client *late = connect_to_place();
    auto_subscription *s = dlx_test_stream_subscribe(late, "test/a", NULL);
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    publish(p, s);
    (void)snprintf(another, sizeof another, "another dlpackd (pid %d) is ", (int)place.pid);
    (void)dlx_test_daemon_refuses(place.path, 1, another);
    ck_assert_int_eq(dlx_test_daemon_stop(&place), 0);
    ck_assert(!is_there(place.path) && !is_there(lock_path));
}

/* The daemon would leave a folder behind that its user has just removed. */
TEST(an_unused_daemon_that_ends_when_idle_makes_nothing_again)
{
    struct dlx_test_daemon idle = place;
    idle.option[0] = "--idle-exit=1000";
    dlx_test_daemon_start(&idle, NULL);
    remove_folder();
    dlx_test_daemon_await(&idle, "no client, and none can connect: stopping");
    ck_assert_int_eq(dlx_test_daemon_wait_end(&idle), 1);
    ck_assert_int_eq(mkdir(folder, 0700), 0); /* it was not there */
}

/* The second daemon was started before the first one noticed anything. */
TEST(a_daemon_whose_path_another_one_has_ends_and_its_clients_connect_there)
{
    dlx_test_daemon_start(&place, NULL);
    auto_client *c = connect_to_place();
    auto_publisher *p = dlx_test_stream_publisher(c, "test/a", NULL);
    dlx_test_daemon_pause(&place);
    remove_folder();
    ck_assert_int_eq(mkdir(folder, 0700), 0);
    dlx_test_daemon_start(&second, NULL);
    ck_assert_int_eq(kill(place.pid, SIGCONT), 0);
    dlx_test_daemon_await(&place, "another dlpackd listens on ");
    ck_assert_int_eq(dlx_test_daemon_wait_end(&place), 1);
    ck_assert(is_there(place.path) && is_there(lock_path)); /* the second one's */
    auto_client *late = connect_to_place();
    auto_subscription *s = dlx_test_stream_subscribe(late, "test/a", NULL);
    ok(dlx_publisher_wait(p, 1, PATIENCE));
    publish(p, s);
    ck_assert_int_eq(dlx_test_daemon_stop(&second), 0);
}

/* In a sticky folder like /tmp, any user can make a folder of that name first. Even: with more
 * rights for others; odd: as another user. */
LOOP_TEST(the_folder_of_somebody_else_is_not_used, 0, 2)
{
    if (dlx_test_skips(_i == 1 && geteuid() != 0, "a folder cannot be given away"))
        return;
    dlx_test_daemon_start(&place, NULL);
    struct dlx_client *c = connect_to_place();
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "test/a", NULL);
    struct dlx_subscription *s = dlx_test_stream_subscribe(c, "test/a", NULL);
    dlx_test_daemon_pause(&place);
    remove_folder();
    ck_assert_int_eq(mkdir(folder, 0700), 0);
    ck_assert_int_eq(_i == 0 ? chmod(folder, 0777) : chown(folder, 65534, 65534), 0);
    ck_assert_int_eq(kill(place.pid, SIGCONT), 0);
    dlx_test_daemon_await(&place, "was removed, and nobody can connect there: the folder ");
    ck_assert(!is_there(place.path) && !is_there(lock_path));
    publish(p, s);                                 /* it serves those who are connected */
    ck_assert_int_eq(kill(place.pid, SIGUSR2), 0); /* nothing could be handed over */
    dlx_test_daemon_await(&place, "was removed, and nobody can connect there");

    if (_i == 0) {
        ck_assert_int_eq(chmod(folder, 0700), 0);
        dlx_test_daemon_await(&place, "was removed: listening there again");
        dlx_client_unref(connect_to_place());
    }
    dlx_subscription_unref(s);
    dlx_publisher_unref(p);
    dlx_client_unref(c);
    if (_i == 0) {
        ck_assert_int_eq(dlx_test_daemon_stop(&place), 0);
    } else {
        dlx_test_daemon_await(&place, "no client, and none can connect: stopping");
        ck_assert_int_eq(dlx_test_daemon_wait_end(&place), 1);
    }
}

/* Neither a file nor another program's socket is removed. */
LOOP_TEST(a_foreign_file_at_the_socket_path_stays, 0, 2)
{
    dlx_test_daemon_start(&place, NULL);
    auto_client *c = connect_to_place();
    dlx_test_daemon_pause(&place);
    ck_assert_int_eq(unlink(place.path), 0);
    auto_fd other = _i == 0 ? open(place.path, O_RDWR | O_CREAT | O_CLOEXEC, 0600)
                            : dlx_test_listen(place.path, SOCK_SEQPACKET);
    ck_assert_int_eq(kill(place.pid, SIGCONT), 0);
    dlx_test_daemon_await(&place, "was removed, and nobody can connect there: ");
    dlx_test_daemon_await(&place, "it is left alone");
    ck_assert_int_eq(unlink(place.path), 0);
    dlx_test_daemon_await(&place, "was removed: listening there again");
    ck_assert_int_eq(dlx_test_daemon_stop(&place), 0);
}

static int passed;
static char config_path[260];

static void pass_one_of_two(void *userdata)
{
    (void)userdata;
    dlx_test_pass_sockets(&passed, 1, "dlpackd");
    dlx_test_daemon_exec(&place, DLX_TEST_WORDS("--config", config_path));
}

/* The manager's socket comes first, so the daemon has looked at it when its own is there again. */
TEST(a_socket_of_the_service_manager_is_not_made_again)
{
    char text[300], own[250];
    (void)snprintf(own, sizeof own, "%s/own", folder);
    (void)snprintf(config_path, sizeof config_path, "%s/c", folder);
    (void)snprintf(text, sizeof text, "[socket own]\npath = %s\nmode = 0640\n", own);
    dlx_test_write_file(config_path, text);
    passed = dlx_test_listen(place.path, SOCK_SEQPACKET);
    dlx_test_daemon_start_prepared(&place, pass_one_of_two, NULL);
    ck_assert_int_eq(unlink(place.path), 0);
    ck_assert_int_eq(unlink(own), 0);
    dlx_test_daemon_await(&place, "/own was removed: listening there again");
    ck_assert(!is_there(place.path) && !is_there(lock_path));
    ck_assert_uint_eq(mode_of(own), 0640);
    ck_assert_int_eq(dlx_test_daemon_stop(&place), 0);
    close(passed);
    ck_assert_int_eq(unlink(config_path), 0);
}

int main(void)
{
    TCase *tcase = tcase_create("removed");
    tcase_set_timeout(tcase, 2 * PATIENCE_S);
    dlx_test_dir_fixture(tcase, &place);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    return dlx_test_run_case(tcase);
}
