/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/shm.h"
#include "common/shm_name.h"
#include <dirent.h>
#include <sched.h>
#include <sys/mount.h>

static bool write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    dlx__close(fd);
    return done;
}

/* A process without root is in a user namespace of its own, under the same uid. */
static bool unshare_mounts(void)
{
    char uid[64], gid[64];
    (void)snprintf(uid, sizeof uid, "%u %u 1", (unsigned)geteuid(), (unsigned)geteuid());
    (void)snprintf(gid, sizeof gid, "%u %u 1", (unsigned)getegid(), (unsigned)getegid());
    if (unshare(CLONE_NEWNS) == 0)
        return true;
    return unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 &&
           write_file("/proc/self/setgroups", "deny") && write_file("/proc/self/uid_map", uid) &&
           write_file("/proc/self/gid_map", gid);
}

bool dlx_test_shm_private(const char *options)
{
    if (unshare_mounts() && mount("none", "/", "none", MS_REC | MS_PRIVATE, NULL) == 0 &&
        mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, options) == 0)
        return true;
    printf("SKIP: needs a /dev/shm of its own, and may not mount one: %s\n", strerror(errno));
    return false;
}

static size_t count(bool own)
{
    struct dlx_shm_name name;
    size_t n = 0;
    DIR *dir = opendir("/dev/shm");
    ck_assert_ptr_nonnull(dir);
    for (const struct dirent *entry; (entry = readdir(dir));)
        n += own ? dlx__shm_name_parse(entry->d_name, &name) && name.pid == getpid()
                 : entry->d_name[0] != '.';
    closedir(dir);
    return n;
}

size_t dlx_test_shm_count(void)
{
    return count(false);
}

size_t dlx_test_shm_count_own(void)
{
    return count(true);
}
