/* SPDX-License-Identifier: Apache-2.0 */
/* Names that killed daemons left are removed; no others. */
#include "common/shm_name.h"
#include "daemon/memory/stale_shm.h"
#include "tests/harness/fork.h"
#include "tests/harness/run.h"
#include <dirent.h>

#define RANDOM "0123456789abcdef0123456789abcdef"

static char dir[200];

static void make_dir(void)
{
    const char *tmp = getenv("TMPDIR");
    (void)snprintf(dir, sizeof dir, "%s/stale-XXXXXX", tmp ? tmp : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(dir));
}

static void remove_dir(void)
{
    DIR *files = opendir(dir);
    ck_assert_ptr_nonnull(files);
    for (const struct dirent *entry; (entry = readdir(files));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            unlinkat(dirfd(files), entry->d_name, 0) < 0)
            (void)unlinkat(dirfd(files), entry->d_name, AT_REMOVEDIR);
    closedir(files);
    ck_assert_int_eq(rmdir(dir), 0);
}

/* Static; four at once. */
static const char *path_of(const char *name)
{
    static char paths[4][400];
    static unsigned next;
    char *path = paths[next++ % 4];
    (void)snprintf(path, sizeof paths[0], "%.199s/%.190s", dir, name);
    return path;
}

/* Static; sixteen at once. */
static const char *name_of(uid_t uid, pid_t pid, uint64_t start)
{
    static char names[16][DLX_SHM_NAME_SIZE];
    static unsigned next;
    char *name = names[next++ % 16];
    (void)snprintf(name, sizeof names[0], "dlpackd.%u.%d.%llu." RANDOM, (unsigned)uid, (int)pid,
                   (unsigned long long)start);
    return name;
}

static void make_file(const char *name)
{
    int fd = open(path_of(name), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    close(fd);
}

static bool is_there(const char *name)
{
    struct stat st;
    return lstat(path_of(name), &st) == 0;
}

/* A process that is there until it is killed. */
static pid_t start_process(void)
{
    struct dlx_test_child child = dlx_test_fork_child();
    if (child.pid == 0)
        dlx_test_fork_ready(&child);
    return dlx_test_fork_wait_ready(&child);
}

/* Kill it; wait until it is a zombie, or until nothing is left. */
static void end_process(pid_t pid, bool zombie)
{
    siginfo_t info;
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitid(P_PID, (id_t)pid, &info, WEXITED | (zombie ? WNOWAIT : 0)), 0);
}

/* The number of one that has ended. */
static pid_t dead_process(void)
{
    pid_t pid = start_process();
    end_process(pid, false);
    return pid;
}

/* This process's own name, which tells its start time. */
static struct dlx_shm_name own_name(void)
{
    char name[DLX_SHM_NAME_SIZE];
    struct dlx_shm_name own;
    ok(dlx__shm_name_make(name));
    ck_assert_int_eq(name[0], '/');
    ck_assert(dlx__shm_name_parse(name + 1, &own));
    return own;
}

TEST(names_are_read_as_they_are_written)
{
    char first[DLX_SHM_NAME_SIZE], second[DLX_SHM_NAME_SIZE];
    struct dlx_shm_name own = own_name();
    ck_assert_uint_eq(own.uid, geteuid());
    ck_assert_int_eq(own.pid, getpid());
    ck_assert_uint_gt(own.start, 0);
    ok(dlx__shm_name_make(first));
    ok(dlx__shm_name_make(second));
    ck_assert_str_ne(first, second);
    ck_assert(
        dlx__shm_name_parse("dlpackd.4294967295.2147483647.18446744073709551615." RANDOM, &own));
    ck_assert_uint_eq(own.start, UINT64_MAX);
    ck_assert(dlx__shm_name_parse("dlpackd.0.1.0." RANDOM, &own));
}

TEST(other_names_are_not_taken_for_ours)
{
    static const char *const names[] = {
        "",
        "dlpackd",
        "dlpackd.",
        "dlpackd.0.1.0.",
        "dlpackd.0.1.0",
        "dlpackd.0.1." RANDOM,
        "dlpackd.0.0.0." RANDOM,
        "dlpackd.0.-1.0." RANDOM,
        "dlpackd.0.+1.0." RANDOM,
        "dlpackd.0. 1.0." RANDOM,
        "dlpackd.00.1.0." RANDOM,
        "dlpackd.0.01.0." RANDOM,
        "dlpackd..1.0." RANDOM,
        "dlpackd.0.1.." RANDOM,
        "dlpackd.0.1.0x1." RANDOM,
        "dlpackd.4294967296.1.0." RANDOM,
        "dlpackd.0.2147483648.0." RANDOM,
        "dlpackd.0.1.18446744073709551616." RANDOM,
        "dlpackd.0.1.99999999999999999999999." RANDOM,
        "dlpackd.0.1.0." RANDOM "0",
        "dlpackd.0.1.0." RANDOM ".bak",
        "dlpackd.0.1.0.0123456789abcdef0123456789abcde",
        "dlpackd.0.1.0.0123456789ABCDEF0123456789ABCDEF",
        "dlpackd.0.1.0.0.123456789abcdef0123456789abcde",
        "xdlpackd.0.1.0." RANDOM,
        "Dlpackd.0.1.0." RANDOM,
    };
    struct dlx_shm_name name;
    for (size_t i = 0; i < DLX_ARRAY_SIZE(names); i++)
        ck_assert_msg(!dlx__shm_name_parse(names[i], &name), "%s", names[i]);
}

TEST(a_name_is_alive_as_long_as_its_process)
{
    struct dlx_shm_name name = own_name();
    ck_assert(dlx__shm_name_is_alive(&name));
    name.start++; /* the pid was used again */
    ck_assert(!dlx__shm_name_is_alive(&name));
    name.start = 0; /* it is not known */
    ck_assert(dlx__shm_name_is_alive(&name));
    name.pid = start_process();
    ck_assert(dlx__shm_name_is_alive(&name));
    ck_assert_int_eq(kill(name.pid, SIGSTOP), 0); /* a stopped process is alive */
    ck_assert(dlx__shm_name_is_alive(&name));
    end_process(name.pid, true);
    ck_assert(!dlx__shm_name_is_alive(&name));
    end_process(name.pid, false);
    ck_assert(!dlx__shm_name_is_alive(&name));
}

TEST(regions_that_dead_daemons_left_are_removed_and_no_others)
{
    struct dlx_shm_name own = own_name();
    uid_t uid = geteuid();
    pid_t dead = dead_process(), zombie = start_process(), alive = start_process();
    end_process(zombie, true);
    const char *const gone[] = {
        name_of(uid, dead, 1),
        name_of(uid, zombie, 0),
        name_of(uid, own.pid, own.start + 1),
    };
    for (size_t i = 0; i < DLX_ARRAY_SIZE(gone); i++)
        make_file(gone[i]);
    char copy[DLX_SHM_NAME_SIZE + 4];
    (void)snprintf(copy, sizeof copy, "%s.bak", name_of(uid, dead, 1));
    const char *const kept[] = {
        name_of(uid, own.pid, own.start),
        name_of(uid, alive, 0),
        name_of(uid + 1, dead, 1),
        copy,
        "unrelated",
    };
    for (size_t i = 0; i < DLX_ARRAY_SIZE(kept); i++)
        make_file(kept[i]);
    ck_assert_uint_eq(dlxd_stale_shm_clean(dir), 3);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(gone); i++)
        ck_assert_msg(!is_there(gone[i]), "%s", gone[i]);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(kept); i++)
        ck_assert_msg(is_there(kept[i]), "%s", kept[i]);
    end_process(alive, true);
    ck_assert_uint_eq(dlxd_stale_shm_clean(dir), 1);
    ck_assert_uint_eq(dlxd_stale_shm_clean(dir), 0);
    end_process(alive, false);
    end_process(zombie, false);
}

TEST(links_folders_and_pipes_stay)
{
    pid_t dead = dead_process();
    uid_t uid = geteuid();
    make_file("target");
    ck_assert_int_eq(symlink(path_of("target"), path_of(name_of(uid, dead, 1))), 0);
    ck_assert_int_eq(symlink("nowhere", path_of(name_of(uid, dead, 2))), 0);
    ck_assert_int_eq(mkdir(path_of(name_of(uid, dead, 3)), 0700), 0);
    ck_assert_int_eq(mkfifo(path_of(name_of(uid, dead, 4)), 0600), 0); /* opening it would block */
    ck_assert_uint_eq(dlxd_stale_shm_clean(dir), 0);
    ck_assert(is_there("target"));
    for (uint64_t start = 1; start <= 4; start++)
        ck_assert(is_there(name_of(uid, dead, start)));
}

TEST(files_of_others_stay)
{
    const char *name = name_of(geteuid(), dead_process(), 1);
    make_file(name);
    if (chown(path_of(name), 65534, 65534) < 0) {
        puts("SKIP: needs root to make a file of somebody else");
        return;
    }
    ck_assert_uint_eq(dlxd_stale_shm_clean(dir), 0);
    ck_assert(is_there(name));
    ck_assert_int_eq(chown(path_of(name), geteuid(), getegid()), 0);
    ck_assert_uint_eq(dlxd_stale_shm_clean(dir), 1);
}

TEST(a_region_that_cannot_be_removed_stays_and_is_no_failure)
{
    const char *name = name_of(65534, dead_process(), 1);
    make_file(name);
    if (chown(path_of(name), 65534, 65534) < 0) {
        puts("SKIP: needs root to become somebody who may not remove it");
        return;
    }
    int folder = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert_int_ge(folder, 0);
    ck_assert_int_eq(fchmod(folder, 0755), 0);
    pid_t pid = dlx_test_fork();
    if (pid == 0) /* from inside: he need not be able to search $TMPDIR */
        _exit(fchdir(folder) < 0 || setresuid(65534, 65534, 65534) < 0 ||
              dlxd_stale_shm_clean(".") != 0);
    close(folder);
    dlx_test_fork_join(pid);
    ck_assert(is_there(name));
}

TEST(no_folder_is_no_failure)
{
    ck_assert_uint_eq(dlxd_stale_shm_clean(path_of("nowhere")), 0);
}

int main(void)
{
    TCase *tcase = tcase_create("stale shm");
    tcase_add_checked_fixture(tcase, make_dir, remove_dir);
    return dlx_test_run_case(tcase);
}
