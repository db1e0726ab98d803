/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/memory/stale_shm.h"
#include "common/shm_name.h"
#include "daemon/base/log.h"
#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

static bool is_stale(int dir_fd, const char *file)
{
    struct dlx_shm_name name;
    struct stat st;
    uid_t uid = geteuid();
    if (!dlx__shm_name_parse(file, &name) || name.uid != uid || dlx__shm_name_is_alive(&name))
        return false;
    /* Anybody may give such a name to a file of his own, or make it a symbolic link. */
    return fstatat(dir_fd, file, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
           st.st_uid == uid;
}

size_t dlxd_stale_shm_clean(const char *dir)
{
    size_t n = 0;
    DIR *files = opendir(dir);
    if (!files) {
        dlxd_log(DLXD_LOG_WARNING, "%s: %s: not looked through for what killed daemons left", dir,
                 strerror(errno));
        return 0;
    }
    for (const struct dirent *entry; (entry = readdir(files));) {
        if (!is_stale(dirfd(files), entry->d_name))
            continue;
        if (unlinkat(dirfd(files), entry->d_name, 0) == 0)
            n++;
        else if (errno != ENOENT) /* another daemon was faster */
            dlxd_log(DLXD_LOG_WARNING, "%s/%s, left by a killed daemon: %s", dir, entry->d_name,
                     strerror(errno));
    }
    (void)closedir(files);
    if (n > 0)
        dlxd_log(DLXD_LOG_NOTICE, "removed %zu name%s from %s that killed daemons left", n,
                 n == 1 ? "" : "s", dir);
    return n;
}
