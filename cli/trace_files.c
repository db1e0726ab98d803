/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/trace_files.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

/* From <linux/magic.h>: a program serves it, and says what it likes of owners. */
#define FUSE_MAGIC 0x65735546

struct file {
    char id[64]; /* device and inode, as in /proc/PID/maps */
    bool has_probes;
    bool is_others; /* it was not read */
    uint32_t uid;
};

struct trace_files {
    struct file *files;
    size_t n_files;
};

struct trace_files *trace_files_new(void)
{
    return calloc(1, sizeof(struct trace_files));
}

struct trace_files *trace_files_free(struct trace_files *f)
{
    if (f)
        free(f->files);
    free(f);
    return NULL;
}

static struct file *files_find(const struct trace_files *f, const char *id)
{
    for (size_t i = 0; i < f->n_files; i++)
        if (strcmp(f->files[i].id, id) == 0)
            return &f->files[i];
    return NULL;
}

static struct file *files_add(struct trace_files *f, const char *id)
{
    struct file *files = reallocarray(f->files, f->n_files + 1, sizeof *files);
    if (!files)
        return NULL;
    f->files = files;
    files[f->n_files] = (struct file){0};
    (void)snprintf(files[f->n_files].id, sizeof files->id, "%s", id);
    return &files[f->n_files++];
}

/* Can root and the user of this process alone change the file? */
static bool is_safe(int borrow_fd, const struct stat *st)
{
    struct statfs fs;
    return (st->st_uid == 0 || st->st_uid == geteuid()) &&
           (st->st_mode & (S_IWGRP | S_IWOTH)) == 0 && fstatfs(borrow_fd, &fs) == 0 &&
           fs.f_type != FUSE_MAGIC;
}

/* A line of /proc/PID/maps with code of a file. */
struct mapping {
    uint64_t start, end;
    char id[64];
    char path[256];
    uint64_t inode;
};

static bool parse(const char *line, struct mapping *ret)
{
    char mode[8], device[32];
    int at = 0;
    if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s %*s %31s %" SCNu64 " %n", &ret->start, &ret->end,
               mode, device, &ret->inode, &at) < 5 ||
        mode[2] != 'x' || ret->inode == 0 || line[at] != '/')
        return false;
    (void)snprintf(ret->id, sizeof ret->id, "%s %" PRIu64, device, ret->inode);
    (void)snprintf(ret->path, sizeof ret->path, "%.*s", (int)strcspn(line + at, "\n"), line + at);
    return true;
}

/* What is at the path in the root directory of the process, whatever links there are on the way. */
static int find_in_root(uint32_t pid, const char *path)
{
    struct open_how how = {.flags = O_PATH | O_CLOEXEC,
                           .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS};
    char text[64];
    (void)snprintf(text, sizeof text, "/proc/%u/root", pid);
    int root = open(text, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int fd = root < 0 ? -1 : (int)syscall(SYS_openat2, root, path, &how, sizeof how);
    if (root >= 0)
        (void)close(root);
    return fd;
}

/* What is mapped, also if the path names another file by now, which only root may open; else what
 * is at the path. A process chose it, so nothing is opened before it is known to be a file: to open
 * a device may do something. */
static int open_mapped(uint32_t pid, const struct mapping *m, struct stat *ret_st)
{
    char path[96];
    (void)snprintf(path, sizeof path, "/proc/%u/map_files/%" PRIx64 "-%" PRIx64, pid, m->start,
                   m->end);
    int fd = -1, found = open(path, O_PATH | O_CLOEXEC);
    if (found < 0)
        found = find_in_root(pid, m->path);
    if (found < 0)
        return -1;
    if (fstat(found, ret_st) == 0 && S_ISREG(ret_st->st_mode) && ret_st->st_ino == m->inode) {
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", found);
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    }
    (void)close(found);
    return fd;
}

static int look_at(struct trace_files *f, struct trace *t, uint32_t pid, bool is_named,
                   const struct mapping *m, struct trace_found *ret, struct cli_error *e)
{
    struct stat st;
    int r = 0;
    struct file *file = files_find(f, m->id);
    if (!file || (file->is_others && is_named)) {
        int fd = open_mapped(pid, m, &st);
        if (fd < 0)
            return 0; /* it has ended, or the file is of no kind that is mapped */
        file = file ? file : files_add(f, m->id);
        if (!file) {
            (void)close(fd);
            return cli_fail(e, DLX_E_NO_MEMORY, "out of memory");
        }
        file->uid = st.st_uid;
        file->is_others = !is_named && !is_safe(fd, &st);
        if (!file->is_others)
            r = trace_attach(t, fd, m->path, e);
        file->has_probes = r > 0;
        (void)close(fd);
        if (r < 0) { /* the next look tries again, and tells the reason again */
            *file = f->files[--f->n_files];
            return r;
        }
    }
    if (file->is_others && ret->n_others++ == 0) {
        ret->uid = file->uid;
        (void)snprintf(ret->path, sizeof ret->path, "%s", m->path);
    }
    ret->n_probed += file->has_probes;
    return r < 0 ? r : 0;
}

int trace_files_look(struct trace_files *f, struct trace *t, uint32_t pid, bool is_named,
                     struct trace_found *ret, struct cli_error *e)
{
    char path[64], *line = NULL;
    size_t size = 0;
    struct mapping mapping;
    int r = 0;
    *ret = (struct trace_found){0};
    (void)snprintf(path, sizeof path, "/proc/%u/maps", pid);
    FILE *maps = fopen(path, "re");
    if (!maps && (errno == ENOENT || errno == ESRCH))
        return cli_fail(e, DLX_E_NOT_FOUND, "there is no process %u", pid);
    if (!maps)
        return cli_fail(e, DLX_E_ACCESS,
                        "%s: %s: only CAP_SYS_PTRACE lets a program look at those of other users",
                        path, strerror(errno));
    errno = 0;
    while (r == 0 && getline(&line, &size, maps) > 0)
        if (parse(line, &mapping))
            r = look_at(f, t, pid, is_named, &mapping, ret, e);
    /* The kernel checks the right to look when the file is read, too. */
    if (r == 0 && ferror(maps))
        r = errno == ESRCH ? cli_fail(e, DLX_E_NOT_FOUND, "there is no process %u", pid)
                           : cli_fail(e, DLX_E_ACCESS, "%s: %s", path, strerror(errno));
    free(line);
    (void)fclose(maps);
    return r;
}
