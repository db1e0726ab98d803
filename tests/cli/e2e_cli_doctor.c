/* SPDX-License-Identifier: Apache-2.0 */
/* dlxctl doctor: each trouble is made for real, and what it says of that is looked at. */
#include "tests/cli/harness_cli_case.h"
#include "tests/daemon/harness_config.h"
#include "tests/gpu/harness_gpu.h"
#include "tests/harness/fork.h"
#include "tests/harness/spawn.h"
#include "tests/harness/user.h"
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>

static struct dlx_test_daemon *const daemon_ = &dlx_test_stream_daemon;

CASE(doctor)
{
    TCase *tcase = dlx_test_cli_case("doctor");
    dlx_configured_fixture(tcase);
    return tcase;
}

/* Root's own /run and /tmp, without a daemon. */
CASE(places)
{
    return dlx_test_spawn_hidden_case("places");
}

/* Runs `dlxctl doctor --json`, prepared so in its process, which must exit with this status. */
static json_t *doctor_json(const char *socket, int status, void (*prepare)(void))
{
    auto_cli cli;
    dlx_test_cli_prepare = prepare;
    dlx_test_cli_run(&cli, socket, -1, status, DLX_TEST_WORDS("doctor", "--json"));
    dlx_test_cli_prepare = NULL;
    return dlx_test_cli_json(&cli);
}

static const char *field(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text ? text : "";
}

/* The first check of this name. NULL: there is none. */
static const json_t *find_check(const json_t *report, const char *name)
{
    size_t i;
    const json_t *check;
    json_array_foreach(json_object_get(report, "checks"), i, check)
    {
        if (strcmp(field(check, "check"), name) == 0)
            return check;
    }
    return NULL;
}

/* The check must have this status, and these words in its text; with advice unless it is ok. */
static void expect(const json_t *report, const char *name, const char *status, const char *words)
{
    const json_t *check = find_check(report, name);
    ck_assert_msg(check != NULL, "no check %s", name);
    ck_assert_msg(strcmp(field(check, "status"), status) == 0, "%s is %s: %s", name,
                  field(check, "status"), field(check, "text"));
    contains(field(check, "text"), words);
    const bool is_ok = strcmp(status, "ok") == 0;
    ck_assert_int_eq(*field(check, "means") != '\0', !is_ok);
    ck_assert_int_eq(*field(check, "do") != '\0', !is_ok);
}

/* ---- one daemon ------------------------------------------------------------------------------ */

TEST_OF(doctor, doctor_names_the_daemon_that_answers_and_the_versions)
{
    json_auto_t *report = doctor_json(daemon_->path, 0, NULL);
    ck_assert_str_eq(field(report, "status"), "ok");
    expect(report, "daemon.socket", "ok", daemon_->path);
    expect(report, "versions.all", "ok", "libdlx " DLX_VERSION_STRING);
    expect(report, "quotas.used", "ok", "most used: ");
    expect(report, "kernel.release", "ok", "Linux ");
    expect(report, "memory.machine", "ok", " available");
    ck_assert_ptr_nonnull(find_check(report, "gpu.cuda"));
}

TEST_OF(doctor, doctor_shows_a_line_for_each_check_and_a_sum)
{
    auto_cli cli = dlxctl(0, "doctor");
    has(cli.out, "kernel   ok       Linux ");
    has(cli.out, "daemon   ok       ");
    has(cli.out, "\nAll is well.\n");
    has_not(cli.out, "means");
}

/* On a terminal, advice is broken between words. */
TEST_OF(doctor, lines_of_doctor_fit_on_a_terminal_of_80_columns)
{
    ck_assert_int_eq(dlx_test_daemon_stop(daemon_), 0);
    auto_cli cli = dlxctl_on_screen(80, 1, "doctor");
    has(cli.out, "daemon   problem  no dlpackd at ");
    has(cli.out, "                  do     start it: `dlpackd");
    const char *line = cli.out;
    for (const char *end; (end = strchr(line, '\n')) != NULL; line = end + 1)
        ck_assert_msg(end - line <= 81, "%.*s", (int)(end - line), line);
    dlx_test_daemon_start(daemon_, NULL);
}

static void limit_files(void)
{
    (void)setrlimit(RLIMIT_NOFILE, &(struct rlimit){100, 100});
}

static void limit_files_softly(void)
{
    struct rlimit limit;
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 200;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

TEST_OF(doctor, doctor_says_how_few_links_a_low_limit_of_descriptors_allows)
{
    json_auto_t *few = doctor_json(daemon_->path, 1, limit_files);
    json_auto_t *some = doctor_json(daemon_->path, 0, limit_files_softly);
    expect(few, "limits.open_files", "problem", "open files: 100 (hard limit 100), for 18 links");
    contains(field(find_check(few, "limits.open_files"), "do"), "`ulimit -n 1024` (as root)");
    expect(some, "limits.open_files", "warning", "open files: 200 (hard limit ");
    ck_assert_int_eq(dlx_test_cli_integer(some, "n_warnings"), 1);
}

static void limit_file_size(void)
{
    (void)signal(SIGXFSZ, SIG_IGN);
    (void)setrlimit(RLIMIT_FSIZE, &(struct rlimit){4 << 20, 4 << 20});
}

TEST_OF(doctor, doctor_warns_of_a_limit_for_the_size_of_files)
{
    json_auto_t *report = doctor_json(daemon_->path, 0, limit_file_size);
    expect(report, "limits.file_size", "warning", "at most 4.00 MiB (ulimit -f)");
}

TEST_OF(doctor, doctor_says_that_a_named_socket_has_no_daemon_and_how_to_start_it)
{
    char path[300];
    (void)snprintf(path, sizeof path, "%s/none", daemon_->dir);
    json_auto_t *report = doctor_json(path, 1, NULL);
    ck_assert_str_eq(field(report, "status"), "problem");
    expect(report, "daemon.socket", "problem", "No such file or directory");
    contains(field(find_check(report, "daemon.socket"), "do"), "`dlpackd --socket=");
}

TEST_OF(doctor, doctor_says_that_a_killed_daemon_left_its_socket)
{
    dlx_test_daemon_kill(daemon_);
    json_auto_t *report = doctor_json(daemon_->path, 1, NULL);
    expect(report, "daemon.socket", "problem", "no dlpackd listens on the socket");
    dlx_test_daemon_start(daemon_, NULL);
}

TEST_OF(doctor, doctor_says_that_a_stopped_daemon_does_not_answer)
{
    dlx_test_daemon_pause(daemon_);
    json_auto_t *report = doctor_json(daemon_->path, 1, NULL);
    ck_assert_int_eq(kill(daemon_->pid, SIGCONT), 0);
    expect(report, "daemon.socket", "problem", "does not answer: ");
}

static void become_another_user(void)
{
    if (setgid(61234) < 0 || setuid(61234) < 0)
        _exit(100);
}

/* The user needs to reach the socket, and the programs of the build. */
static bool may_reach(const char *path, const char *program)
{
    char part[PATH_MAX];
    struct stat st;
    if (!realpath(program, part))
        return false;
    for (char *slash = part; (slash = strchr(slash + 1, '/')) != NULL;) {
        *slash = '\0';
        bool may = stat(part, &st) == 0 && (st.st_mode & S_IXOTH);
        *slash = '/';
        if (!may)
            return false;
    }
    return path != NULL;
}

TEST_OF(doctor, doctor_of_another_user_says_that_the_daemon_refuses_it_and_why)
{
    if (!dlx_test_user_may() ||
        dlx_test_skips(!may_reach(daemon_->dir, dlx_test_spawn_program("dlxctl")),
                       "another user cannot reach the build"))
        return;
    char build[PATH_MAX];
    if (!getenv("BUILD") && realpath("build", build)) /* the test leaves this folder */
        (void)setenv("BUILD", build, 1);
    auto_fd folder = open(daemon_->dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    ck_assert_int_eq(fchdir(folder), 0);
    ck_assert_int_eq(chmod(daemon_->dir, 0711), 0);
    json_auto_t *refused = doctor_json("s", 1, become_another_user);
    expect(refused, "daemon.socket", "problem", "s refuses this user: uid 61234 may not use");
    ck_assert_int_eq(chmod("s", 0600), 0);
    json_auto_t *shut = doctor_json("s", 1, become_another_user);
    expect(shut, "daemon.socket", "problem", "s has mode 0600, uid 0 and gid 0");
    ck_assert_int_eq(chmod(daemon_->dir, 0700), 0);
}

TEST_OF(doctor, doctor_finds_quotas_that_are_nearly_used)
{
    dlx_configured_start("[quota default]\nobjects = 10\n");
    auto_client *c = dlx_test_cli_connect("camera_node");
    struct dlx_publisher *p[10];
    for (size_t i = 0; i < 9; i++)
        p[i] = dlx_test_stream_publisher(c, "cam", NULL);
    json_auto_t *nearly = doctor_json(daemon_->path, 0, NULL);
    p[9] = dlx_test_stream_publisher(c, "cam", NULL);
    json_auto_t *used = doctor_json(daemon_->path, 1, NULL);
    for (size_t i = 0; i < 10; i++)
        dlx_publisher_unref(p[i]);
    expect(nearly, "quotas.used", "warning", "objects: 9 of 10 used by uid ");
    expect(used, "quotas.used", "problem", "objects: 10 of 10 used by uid ");
}

#if DLX_TEST_HAS_GPU
static void find_stand_in(void)
{
    (void)setenv("LD_LIBRARY_PATH", dlx_test_gpu_folder(), 1);
}

/* The stand-in for the driver of NVIDIA, with two GPUs. */
TEST_OF(doctor, doctor_names_each_gpu_and_how_its_memory_is_shared)
{
    dlx_test_gpu_machine(2);
    json_auto_t *report = doctor_json(daemon_->path, 0, find_stand_in);
    dlx_test_gpu_machine_end();
    expect(report, "gpu.cuda", "ok", "memory by descriptors (cuda_vmm");
    expect(report, "gpu.library", "ok", "libdlx-gpu.so.0");
}
#endif

/* ---- mounts ---------------------------------------------------------------------------------- */

static void own_mounts(void)
{
    if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        _exit(77);
}

static void small_shm(void)
{
    own_mounts();
    if (mount("small", "/dev/shm", "tmpfs", 0, "size=1m") < 0)
        _exit(77);
}

static void mount_socket(void)
{
    own_mounts();
    if (mount(daemon_->path, daemon_->path, NULL, MS_BIND, NULL) < 0)
        _exit(77);
}

static void hide_proc(void)
{
    own_mounts();
    const char *build = getenv("BUILD"); /* the loader finds libdlx by /proc */
    if (mount("none", "/proc", "tmpfs", 0, "") < 0 ||
        setenv("LD_LIBRARY_PATH", build ? build : "build", 1) < 0)
        _exit(77);
}

static bool may_mount(void)
{
    return !dlx_test_skips(geteuid() != 0, "needs root to mount");
}

static void serve_posix(void *userdata)
{
    (void)userdata;
    dlx_test_daemon_exec(daemon_, DLX_TEST_WORDS("--memory", "posix"));
}

TEST_OF(doctor, doctor_looks_at_dev_shm_where_the_daemon_uses_it)
{
    if (!may_mount())
        return;
    ck_assert_int_eq(dlx_test_daemon_stop(daemon_), 0);
    dlx_test_daemon_start_prepared(daemon_, serve_posix, NULL);
    json_auto_t *report = doctor_json(daemon_->path, 0, small_shm);
    expect(report, "memory.dev_shm", "warning", "/dev/shm: 1.00 MiB of 1.00 MiB free");
}

TEST_OF(doctor, doctor_warns_of_a_socket_that_is_mounted_itself)
{
    if (!may_mount())
        return;
    json_auto_t *report = doctor_json(daemon_->path, 0, mount_socket);
    expect(report, "daemon.socket", "warning", "answers, and is itself mounted");
}

TEST_OF(doctor, doctor_without_proc_says_what_it_could_not_look_at)
{
    if (!may_mount() ||
        dlx_test_skips(dlx_test_instrumented(), "sanitizers and valgrind need /proc"))
        return;
    json_auto_t *report = doctor_json(daemon_->path, 2, hide_proc);
    ck_assert_str_eq(field(report, "status"), "unknown");
    expect(report, "daemon.process", "warning", "there is no /proc here");
    expect(report, "memory.machine", "unknown", "/proc/meminfo cannot be read");
    expect(report, "limits.mappings", "unknown", "cannot be read");
}

/* ---- several paths --------------------------------------------------------------------------- */

static void start_at(const char *path)
{
    if (dlx_test_fork() == 0) {
        execl(DLX_TEST_SPAWN_DAEMON, "dlpackd", "--socket", path, "--idle-exit", "30", NULL);
        _exit(127);
    }
    struct dlx_connect_args args = {.size = sizeof args, .socket = path, .wait_ns = PATIENCE};
    struct dlx_client *c = NULL;
    ok(dlx_connect(&args, &c));
    dlx_client_unref(c);
}

static void stop_at(const char *path)
{
    struct dlx_connect_args args = {.size = sizeof args, .socket = path};
    struct dlx_client *c = NULL;
    ok(dlx_connect(&args, &c));
    pid_t pid = dlx_test_spawn_pid(c);
    dlx_client_unref(c);
    ck_assert_int_eq(kill(pid, SIGTERM), 0);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
}

#define MACHINE "/run/dlpackd/dlpackd.sock"

TEST_OF(places, doctor_starts_no_daemon_and_says_that_programs_will)
{
    json_auto_t *report = doctor_json("", 0, NULL);
    expect(report, "daemon.none", "ok", "programs start " DLX_TEST_SPAWN_DAEMON);
    ck_assert_int_lt(access("/tmp/dlpackd-0", F_OK), 0);
    setenv("DLX_AUTOSPAWN", "no", 1);
    json_auto_t *off = doctor_json("", 1, NULL);
    unsetenv("DLX_AUTOSPAWN");
    expect(off, "daemon.none", "problem", "no dlpackd runs");
}

TEST_OF(places, doctor_finds_fault_with_an_unusable_runtime_folder)
{
    ck_assert_int_eq(mkdir("/run/user", 0755), 0);
    setenv("XDG_RUNTIME_DIR", "/run/user", 1);
    json_auto_t *open = doctor_json("", 0, NULL);
    expect(open, "daemon.runtime_dir", "warning", "/run/user has mode 0755");
    setenv("XDG_RUNTIME_DIR", "/run/none", 1);
    json_auto_t *missing = doctor_json("", 0, NULL);
    expect(missing, "daemon.runtime_dir", "warning", "/run/none: No such file or directory");
    ck_assert_int_eq(chmod("/run/user", 0700), 0);
    ck_assert_int_eq(chown("/run/user", 61234, 61234), 0);
    setenv("XDG_RUNTIME_DIR", "/run/user", 1);
    json_auto_t *other = doctor_json("", 0, NULL);
    expect(other, "daemon.runtime_dir", "warning", "/run/user belongs to uid 61234");
    ck_assert_int_eq(chown("/run/user", 0, 0), 0);
    json_auto_t *fine = doctor_json("", 0, NULL);
    expect(fine, "daemon.runtime_dir", "ok", "XDG_RUNTIME_DIR=/run/user can have");
    unsetenv("XDG_RUNTIME_DIR");
}

TEST_OF(places, doctor_finds_fault_with_a_folder_of_private_daemons_that_is_a_link)
{
    ck_assert_int_eq(symlink("/run", "/tmp/dlpackd-0"), 0);
    json_auto_t *report = doctor_json("", 1, NULL);
    expect(report, "daemon.tmp_folder", "problem", "/tmp/dlpackd-0 is a link");
}

TEST_OF(places, doctor_names_each_daemon_that_is_found_beside_the_one_that_serves)
{
    ck_assert_int_eq(mkdir("/run/user", 0700), 0);
    setenv("XDG_RUNTIME_DIR", "/run/user", 1);
    start_at(MACHINE);
    start_at("/run/user/dlpackd.sock");
    json_auto_t *report = doctor_json("", 0, NULL);
    expect(report, "daemon.socket", "ok", "/run/user/dlpackd.sock answers");
    expect(report, "daemon.other", "warning", "another dlpackd answers on " MACHINE);
    stop_at("/run/user/dlpackd.sock");
    stop_at(MACHINE);
    unsetenv("XDG_RUNTIME_DIR");
}

TEST_OF(places, doctor_says_that_programs_wait_for_the_killed_daemon_of_the_machine)
{
    ck_assert_int_eq(mkdir("/run/dlpackd", 0755), 0);
    auto_fd left = dlx_test_listen(MACHINE, SOCK_SEQPACKET);
    left = dlx__close(left);
    json_auto_t *report = doctor_json("", 1, NULL);
    expect(report, "daemon.socket", "problem", "no dlpackd listens on the socket " MACHINE);
    ck_assert_int_eq(unlink(MACHINE), 0);
}

int main(void)
{
    return dlx_test_run_cases();
}
