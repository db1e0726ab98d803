/* SPDX-License-Identifier: Apache-2.0 */
/* What POSIX shared memory promises, and that lack of it is an error. CK_FORK=yes: some tests
 * mount. */
#include "common/memory.h"
#include "common/shm_name.h"
#include "tests/harness/fork.h"
#include "tests/harness/shm.h"
#include "tests/harness/fds.h"
#include "tests/harness/memory.h"
#include "tests/harness/run.h"
#include <dirent.h>
#include <sys/mount.h>
#include <sys/prctl.h>

#define SIZE  (UINT64_C(5) * DLX_PAGE)
#define POSIX (&dlx__memory_posix)

/* ---- the four steps ------------------------------------------------------------------------ */

TEST(what_the_writer_writes_readers_see)
{
    size_t before = dlx_test_fds_count();
    const void *readers[3];
    void *map;
    int ro, writer;
    ck_assert_int_eq(dlx__memory_supported(POSIX), 0);
    ck_assert_uint_eq(dlx_test_fds_count(), before);
    ck_assert_int_eq(dlx__region_new(POSIX, "test", SIZE, &ro, &writer), 0);
    ck_assert_int_eq(fcntl(ro, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    ck_assert_int_eq(fcntl(writer, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    ck_assert_int_eq(fcntl(writer, F_GETFL) & O_ACCMODE, O_RDWR);
    ck_assert_int_eq(dlx__region_populate(POSIX, writer, SIZE, &map), 0);
    ck_assert_int_eq(dlx__region_prove(POSIX, ro, SIZE), 0);
    ck_assert_int_eq(fcntl(ro, F_GETFL) & O_ACCMODE, O_RDONLY);
    ck_assert_uint_eq(dlx_test_fds_count(), before + 1);
    for (size_t i = 0; i < SIZE; i++)
        ck_assert_uint_eq(((uint8_t *)map)[i], 0);
    memset(map, 'a', SIZE);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(readers); i++)
        ck_assert_int_eq(dlx__region_attach(POSIX, dlx_test_fds_dup(ro), SIZE, &readers[i]), 0);
    memset((uint8_t *)map + SIZE / 2, 'b', SIZE / 2);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(readers); i++) {
        ck_assert_mem_eq(readers[i], map, SIZE);
        dlx__region_unmap(readers[i], SIZE);
    }
    dlx__region_unmap(map, SIZE);
    dlx__close(ro);
    ck_assert_uint_eq(dlx_test_fds_count(), before);
}

TEST(no_name_stays_and_the_file_is_the_owners_alone)
{
    struct stat st;
    int fd[8], writer[8];
    mode_t mask = umask(0777);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(fd); i++)
        ck_assert_int_eq(dlx__region_new(POSIX, "test", SIZE, &fd[i], &writer[i]), 0);
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

TEST(readers_cannot_write_by_what_they_were_given)
{
    const void *reader;
    void *map;
    int fd, writer;
    ck_assert_int_eq(dlx__region_new(POSIX, "test", SIZE, &fd, &writer), 0);
    ck_assert_int_eq(dlx__region_populate(POSIX, writer, SIZE, &map), 0);
    ck_assert_int_eq(dlx__region_prove(POSIX, fd, SIZE), 0);
    memset(map, 'a', SIZE);
    ck_assert_ptr_eq(mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    ck_assert_int_eq(dlx__region_attach(POSIX, dlx_test_fds_dup(fd), SIZE, &reader), 0);
    void *upgrade = (void *)(uintptr_t)reader;
    ck_assert_int_ne(mprotect(upgrade, SIZE, PROT_READ | PROT_WRITE), 0);
    ck_assert_int_ne(madvise(upgrade, SIZE, MADV_REMOVE), 0);
    ck_assert_int_lt(pwrite(fd, "x", 1, 0), 0);
    ck_assert_int_lt(ftruncate(fd, 0), 0);
    ck_assert_int_lt(fallocate(fd, 0, (off_t)SIZE, DLX_PAGE), 0);
    for (size_t i = 0; i < SIZE; i++)
        ck_assert_uint_eq(((const uint8_t *)reader)[i], 'a');
    dlx__region_unmap(reader, SIZE);
    dlx__region_unmap(map, SIZE);
    dlx__close(fd);
}

/* ---- what is refused ----------------------------------------------------------------------- */

TEST(bad_regions_are_refused_and_closed)
{
    size_t before = dlx_test_fds_count();
    static const uint64_t wrong[] = {SIZE - DLX_PAGE, SIZE + DLX_PAGE,  0, 1,
                                     UINT64_MAX,      UINT64_C(1) << 63};
    const void *map = NULL;
    void *writable = NULL;
    int fd, writer, fds[2];
    ck_assert_int_eq(dlx__region_new(POSIX, "test", UINT64_MAX - DLX_PAGE + 1, &fd, &writer),
                     DLX_E_NO_MEMORY);
    /* Pages are missing: all, or one. */
    for (off_t pages = 0; pages < 5; pages += 4) {
        ck_assert_int_eq(dlx__region_new(POSIX, "test", SIZE, &fd, &writer), 0);
        dlx_test_memory_fill(writer, (uint64_t)pages * DLX_PAGE);
        ck_assert_int_eq(dlx__region_attach(POSIX, dlx_test_fds_dup(fd), SIZE, &map),
                         DLX_E_PROTOCOL);
        ck_assert_int_eq(dlx__region_prove(POSIX, fd, SIZE), DLX_E_BAD_PEER);
        ck_assert_ptr_nonnull(strstr(dlx__error_message(), "not made ready"));
        dlx__close(fd);
        dlx__close(writer);
    }
    ck_assert_int_eq(dlx__region_new(POSIX, "test", SIZE, &fd, &writer), 0);
    ck_assert_int_eq(
        dlx__region_populate(POSIX, dlx_test_fds_dup(writer), SIZE + DLX_PAGE, &writable),
        DLX_E_PROTOCOL);
    ck_assert_int_eq(fallocate(writer, 0, 0, (off_t)SIZE), 0);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(wrong); i++)
        ck_assert_int_eq(dlx__region_attach(POSIX, dlx_test_fds_dup(fd), wrong[i], &map),
                         DLX_E_PROTOCOL);
    /* Who expects sealed memory does not take this for it. */
    ck_assert_int_eq(dlx__region_attach(&dlx__memory_memfd, dlx_test_fds_dup(fd), SIZE, &map),
                     DLX_E_PROTOCOL);
    ck_assert_int_eq(dlx__region_populate(&dlx__memory_memfd, writer, SIZE, &writable),
                     DLX_E_PROTOCOL);
    dlx__close(fd);
    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    ck_assert_int_eq(dlx__region_attach(POSIX, fds[0], SIZE, &map), DLX_E_PROTOCOL);
    ck_assert_int_eq(dlx__region_populate(POSIX, fds[1], SIZE, &writable), DLX_E_PROTOCOL);
    ck_assert_int_eq(dlx__region_prove(POSIX, -1, SIZE), DLX_E_BAD_PEER);
    ck_assert_ptr_null(map);
    ck_assert_ptr_null(writable);
    ck_assert_uint_eq(dlx_test_fds_count(), before);
}

TEST(backends_are_found_by_name_and_by_tag)
{
    static const struct dlx_memory *const all[] = {&dlx__memory_memfd, &dlx__memory_posix};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(all); i++) {
        ck_assert_ptr_eq(dlx__memory_by_name(all[i]->name), all[i]);
        ck_assert_ptr_eq(dlx__memory_by_tag(all[i]->tag), all[i]);
    }
    ck_assert_uint_eq(dlx__memory_memfd.tag, 0); /* the numbers are the protocol's */
    ck_assert_uint_eq(dlx__memory_posix.tag, 1);
    ck_assert_ptr_null(dlx__memory_by_name(""));
    ck_assert_ptr_null(dlx__memory_by_name("memfds"));
    ck_assert_ptr_null(dlx__memory_by_tag(2));
}

/* ---- /dev/shm ------------------------------------------------------------------------------ */

TEST(full_dev_shm_is_an_error_and_no_fault)
{
    const uint64_t room = 16 * DLX_PAGE;
    void *map, *small;
    const void *reader;
    int fd, fd2, writer;
    if (!dlx_test_shm_private("size=64k"))
        return;
    ck_assert_int_eq(dlx__region_new(POSIX, "test", room + DLX_PAGE, &fd, &writer), 0);
    ck_assert_int_eq(dlx__region_populate(POSIX, writer, room + DLX_PAGE, &map), DLX_E_NO_MEMORY);
    ck_assert_msg(strstr(dlx__error_message(), "68.0 KiB of shared") &&
                      strstr(dlx__error_message(), "of 64.0 KiB left"),
                  "%s", dlx__error_message());
    dlx__close(fd);
    ck_assert_int_eq(dlx__region_new(POSIX, "test", room, &fd, &writer), 0);
    ck_assert_int_eq(dlx__region_populate(POSIX, writer, room, &map), 0);
    ck_assert_int_eq(dlx__region_prove(POSIX, fd, room), 0);
    /* Full: files can be made, memory for them is not there. */
    ck_assert_int_eq(dlx__region_new(POSIX, "test", DLX_PAGE, &fd2, &writer), 0);
    ck_assert_int_eq(dlx__region_populate(POSIX, writer, DLX_PAGE, &small), DLX_E_NO_MEMORY);
    ck_assert_int_eq(dlx__region_prove(POSIX, fd2, DLX_PAGE), DLX_E_BAD_PEER);
    dlx__close(fd2);
    memset(map, 'a', room);
    ck_assert_int_eq(dlx__region_attach(POSIX, fd, room, &reader), 0);
    ck_assert_int_eq(((const char *)reader)[room - 1], 'a');
    dlx__region_unmap(reader, room);
    dlx__region_unmap(map, room);
    /* And it comes back. */
    ck_assert_int_eq(dlx__region_new(POSIX, "test", DLX_PAGE, &fd, &writer), 0);
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
