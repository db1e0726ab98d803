/* SPDX-License-Identifier: Apache-2.0 */
/* Further promises of POSIX shared memory (see test_memory.c), and errors where it is missing.
 * CK_FORK=yes: some tests mount. */
#include "common/memory.h"
#include "common/shm_name.h"
#include "tests/harness/fork.h"
#include "tests/harness/shm.h"
#include "tests/harness/fds.h"
#include "tests/harness/run.h"
#include <dirent.h>
#include <sys/mount.h>
#include <sys/prctl.h>

#define SIZE  (UINT64_C(5) * DLX_PAGE)
#define POSIX (&dlx__memory_posix)

/* Returns the reader's fd. */
static int region_new(uint64_t size, int *ret_writer)
{
    int fd;
    ck_assert_int_eq(dlx__region_new(POSIX, "test", size, &fd, ret_writer), 0);
    return fd;
}

TEST(no_name_stays_and_the_file_is_the_owners_alone)
{
    struct stat st;
    int fd[8], writer[8];
    mode_t mask = umask(0777);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(fd); i++)
        fd[i] = region_new(SIZE, &writer[i]);
    umask(mask);
    ck_assert_uint_eq(dlx_test_shm_count_own(), 0);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(fd); i++) {
        ck_assert_int_eq(fstat(fd[i], &st), 0);
        ck_assert_uint_eq(st.st_mode & 07777, 0600);
        ck_assert_uint_eq(st.st_nlink, 0);
        ck_assert_int_eq(st.st_size, (off_t)SIZE);
        dlx__close(fd[i]);
        dlx__close(writer[i]);
    }
}

TEST(full_dev_shm_is_an_error_and_no_fault)
{
    const uint64_t room = 16 * DLX_PAGE;
    void *map, *small;
    const void *reader;
    int fd, full, writer;
    if (!dlx_test_shm_private("size=64k"))
        return;
    fd = region_new(room + DLX_PAGE, &writer);
    ck_assert_int_eq(dlx__region_populate(POSIX, writer, room + DLX_PAGE, &map), DLX_E_NO_MEMORY);
    ck_assert_msg(strstr(dlx__error_message(), "68.0 KiB of shared") &&
                      strstr(dlx__error_message(), "of 64.0 KiB left"),
                  "%s", dlx__error_message());
    dlx__close(fd);
    fd = region_new(room, &writer);
    ck_assert_int_eq(dlx__region_populate(POSIX, writer, room, &map), 0);
    ck_assert_int_eq(dlx__region_prove(POSIX, fd, room), 0);
    /* Full: files can be made, memory for them is not there. */
    full = region_new(DLX_PAGE, &writer);
    ck_assert_int_eq(dlx__region_populate(POSIX, writer, DLX_PAGE, &small), DLX_E_NO_MEMORY);
    ck_assert_int_eq(dlx__region_prove(POSIX, full, DLX_PAGE), DLX_E_BAD_PEER);
    dlx__close(full);
    memset(map, 'a', room);
    ck_assert_int_eq(dlx__region_attach(POSIX, fd, room, &reader), 0);
    ck_assert_int_eq(((const char *)reader)[room - 1], 'a');
    dlx__region_unmap(reader, room);
    dlx__region_unmap(map, room);
    /* And it comes back. */
    fd = region_new(DLX_PAGE, &writer);
    ck_assert_int_eq(dlx__region_populate(POSIX, writer, DLX_PAGE, &map), 0);
    dlx__region_unmap(map, DLX_PAGE);
    dlx__close(fd);
}

TEST(dev_shm_that_cannot_be_written_is_named)
{
    if (!dlx_test_shm_private("size=64k"))
        return;
    ck_assert_int_eq(dlx__memory_supported(POSIX), 0);
    ck_assert_int_eq(mount("none", "/dev/shm", "none",
                           MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV, "size=64k"),
                     0);
    ck_assert_int_eq(dlx__memory_supported(POSIX), DLX_E_KERNEL);
    ck_assert_msg(strstr(dlx__error_message(), "posix") && strstr(dlx__error_message(), "shm_open"),
                  "%s", dlx__error_message());
}

/* As a daemon in another pid namespace would, to which our process looks dead. */
static pid_t start_remover(void)
{
    pid_t parent = getpid(), pid = dlx_test_fork();
    if (pid != 0)
        return pid;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    for (;;) {
        DIR *dir = opendir("/dev/shm");
        for (const struct dirent *entry; dir && (entry = readdir(dir));)
            (void)unlinkat(dirfd(dir), entry->d_name, 0);
        closedir(dir);
    }
}

TEST(a_name_that_somebody_removed_is_made_anew)
{
    enum { N = 3000 };
    size_t before = dlx_test_fds_count(), n_done = 0;
    int fd, writer, status;
    if (!dlx_test_shm_private("size=64k"))
        return;
    pid_t remover = start_remover();
    for (int i = 0; i < N; i++) {
        int r = dlx__region_new(POSIX, "test", SIZE, &fd, &writer);
        if (r == 0) {
            dlx__close(fd);
            dlx__close(writer);
            n_done++;
        } else { /* eight times in a row: it gave up, and said why */
            ck_assert_msg(strstr(dlx__error_message(), "somebody removes"), "%s",
                          dlx__error_message());
        }
    }
    ck_assert_int_eq(kill(remover, SIGKILL), 0);
    ck_assert_int_eq(waitpid(remover, &status, 0), remover);
    ck_assert_uint_gt(n_done, N / 2);
    ck_assert_uint_eq(dlx_test_fds_count(), before);
    ck_assert_uint_eq(dlx_test_shm_count(), 0);
}

int main(void)
{
    return dlx_test_run_case(tcase_create("memory_posix"));
}
