/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fail/harness_fail.h"
#include "common/error.h"
#include "common/util.h"
#include "tests/harness/fds.h"
#include "tests/harness/fork.h"
#include "tests/harness/shm.h"
#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

static _Thread_local struct dlx_test_fail *mine;

struct dlx_test_fail *dlx_test_fail(struct dlx_test_fail *fail)
{
    struct dlx_test_fail *before = mine;
    mine = fail;
    return before;
}

const char *dlx_test_fail_stop(struct dlx_test_fail *fail)
{
    if (fail)
        atomic_store(&fail->at, 0);
    return fail ? fail->call : NULL;
}

static bool is_due(struct dlx_test_fail *fail)
{
    size_t n = ++fail->n_calls, at = atomic_load(&fail->at);
    if (n == at && fail->for_ns > 0)
        fail->until_ns = dlx__deadline((int64_t)fail->for_ns);
    return at > 0 && n >= at && (n <= at + fail->n_more || dlx__now_ns() < fail->until_ns);
}

static bool fails_now(const char *call, const int errors[DLX_TEST_FAIL_WAYS])
{
    struct dlx_test_fail *fail = mine;
    if (!fail || (fail->only && strcmp(fail->only, call) != 0) || !is_due(fail) ||
        errors[fail->way] == 0)
        return false;
    fail->error = errors[fail->way];
    fail->was_last_way = fail->way + 1 == DLX_TEST_FAIL_WAYS || errors[fail->way + 1] == 0;
    fail->call = call; /* after what is asked for then */
    errno = errors[fail->way];
    return true;
}

/* ret_type, name, what it returns, parameters, arguments; then the errors that it can have, after
 * the manual pages. */
#define WRAP(type, name, failed, params, args, ...)                                                \
    type __real_##name params;                                                                     \
    type __wrap_##name params;                                                                     \
    type __wrap_##name params                                                                      \
    {                                                                                              \
        static const int errors[DLX_TEST_FAIL_WAYS] = {__VA_ARGS__};                               \
        return fails_now(#name, errors) ? (failed) : __real_##name args;                           \
    }

/* The allocations of this project's code that are not freed. */
static atomic_size_t n_allocated;

static void *count(void *fresh)
{
    n_allocated += fresh != NULL;
    return fresh;
}

/* The same for what allocates, if the condition holds. */
#define WRAP_ALLOCATOR(type, name, condition, params, args)                                        \
    type __real_##name params;                                                                     \
    type __wrap_##name params;                                                                     \
    type __wrap_##name params                                                                      \
    {                                                                                              \
        static const int errors[DLX_TEST_FAIL_WAYS] = {ENOMEM};                                    \
        if (fails_now(#name, errors))                                                              \
            return NULL;                                                                           \
        return (condition) ? count(__real_##name args) : __real_##name args;                       \
    }

void __real_free(void *p);
void __wrap_free(void *p);
void __wrap_free(void *p)
{
    n_allocated -= p != NULL;
    __real_free(p);
}

/* clang-format off */
WRAP_ALLOCATOR(void *, malloc, true, (size_t size), (size))
WRAP_ALLOCATOR(void *, aligned_alloc, true, (size_t alignment, size_t size), (alignment, size))
WRAP_ALLOCATOR(void *, calloc, true, (size_t n, size_t size), (n, size))
WRAP_ALLOCATOR(void *, realloc, !p, (void *p, size_t size), (p, size))
WRAP_ALLOCATOR(void *, reallocarray, !p, (void *p, size_t n, size_t size), (p, n, size))
WRAP_ALLOCATOR(char *, strdup, true, (const char *s), (s))
WRAP_ALLOCATOR(char *, strndup, true, (const char *s, size_t n), (s, n))
WRAP(int, accept4, -1, (int fd, struct sockaddr *a, socklen_t *size, int flags), (fd, a, size,
     flags), EMFILE, ECONNABORTED, ENOMEM)
WRAP(int, bind, -1, (int fd, const struct sockaddr *a, socklen_t size), (fd, a, size), EADDRINUSE,
     EACCES)
WRAP(int, chmod, -1, (const char *path, mode_t mode), (path, mode), EPERM)
WRAP(int, connect, -1, (int fd, const struct sockaddr *a, socklen_t size), (fd, a, size), ENOMEM,
     ECONNREFUSED, EAGAIN)
WRAP(int, epoll_create1, -1, (int flags), (flags), EMFILE, ENOMEM)
WRAP(int, eventfd, -1, (unsigned n, int flags), (n, flags), EMFILE, ENOMEM)
WRAP(int, fallocate, -1, (int fd, int mode, off_t at, off_t size), (fd, mode, at, size), ENOSPC,
     ENOMEM, EINTR)
WRAP(int, fchmod, -1, (int fd, mode_t mode), (fd, mode), EPERM)
WRAP(int, flock, -1, (int fd, int how), (fd, how), EWOULDBLOCK, ENOLCK, EINTR)
WRAP(int, fstat, -1, (int fd, struct stat *st), (fd, st), ENOMEM)
WRAP(int, fstatvfs, -1, (int fd, struct statvfs *st), (fd, st), ENOSYS)
WRAP(int, ftruncate, -1, (int fd, off_t size), (fd, size), ENOMEM, ENOSPC)
WRAP(int, getsockname, -1, (int fd, struct sockaddr *a, socklen_t *size), (fd, a, size), ENOBUFS)
WRAP(ssize_t, getrandom, -1, (void *p, size_t size, unsigned flags), (p, size, flags), EINTR,
     ENOSYS)
WRAP(int, getsockopt, -1, (int fd, int level, int name, void *p, socklen_t *size), (fd, level, name,
     p, size), ENOMEM, EINVAL, EMFILE)
WRAP(int, listen, -1, (int fd, int n), (fd, n), EADDRINUSE)
WRAP(int, lstat, -1, (const char *path, struct stat *st), (path, st), EACCES, ENOENT)
WRAP(int, madvise, -1, (void *p, size_t size, int advice), (p, size, advice), ENOMEM)
WRAP(int, memfd_create, -1, (const char *name, unsigned flags), (name, flags), EMFILE, ENOMEM,
     EINVAL)
WRAP(int, mkdir, -1, (const char *path, mode_t mode), (path, mode), EACCES, ENOSPC)
WRAP(void *, mmap, MAP_FAILED, (void *p, size_t n, int prot, int flags, int fd, off_t at), (p, n,
     prot, flags, fd, at), ENOMEM)
WRAP(int, mprotect, -1, (void *p, size_t size, int prot), (p, size, prot), ENOMEM)
WRAP(DIR *, opendir, NULL, (const char *path), (path), EMFILE, ENOENT)
WRAP(int, pipe2, -1, (int fds[2], int flags), (fds, flags), EMFILE)
WRAP(int, poll, -1, (struct pollfd *p, nfds_t n, int ms), (p, n, ms), EINTR, ENOMEM)
WRAP(ssize_t, pread, -1, (int fd, void *p, size_t size, off_t at), (fd, p, size, at), EIO)
WRAP(ssize_t, pwrite, -1, (int fd, const void *p, size_t size, off_t at), (fd, p, size, at), ENOSPC)
WRAP(int, pthread_create, mine->error, (pthread_t *t, const pthread_attr_t *a, void *(*fn)(void *),
     void *p), (t, a, fn, p), EAGAIN)
WRAP(ssize_t, recv, -1, (int fd, void *p, size_t size, int flags), (fd, p, size, flags), ENOMEM,
     EINTR)
WRAP(ssize_t, recvmsg, -1, (int fd, struct msghdr *m, int flags), (fd, m, flags), ENOBUFS, EINTR)
WRAP(ssize_t, send, -1, (int fd, const void *p, size_t size, int flags), (fd, p, size, flags),
     ENOBUFS, EINTR, EAGAIN)
WRAP(ssize_t, sendmsg, -1, (int fd, const struct msghdr *m, int flags), (fd, m, flags), ENOBUFS,
     EINTR, ETOOMANYREFS, ENOMEM)
WRAP(int, setsockopt, -1, (int fd, int level, int name, const void *p, socklen_t size), (fd, level,
     name, p, size), ENOMEM, ENOPROTOOPT)
WRAP(int, socket, -1, (int family, int type, int protocol), (family, type, protocol), EMFILE,
     ENOBUFS)
WRAP(int, socketpair, -1, (int family, int type, int protocol, int fds[2]), (family, type, protocol,
     fds), EMFILE, ENOBUFS)
WRAP(int, shm_open, -1, (const char *name, int flags, mode_t mode), (name, flags, mode), EMFILE,
     EEXIST, ENOENT)
WRAP(int, stat, -1, (const char *path, struct stat *st), (path, st), EACCES)
WRAP(int, sysinfo, -1, (struct sysinfo *info), (info), EFAULT)
WRAP(int, timerfd_create, -1, (int clock, int flags), (clock, flags), EMFILE)
WRAP(int, unlink, -1, (const char *path), (path), EACCES, ENOENT)
/* clang-format on */

/* ---- what has arguments that depend ---------------------------------------------------------- */

int __real_epoll_ctl(int epoll, int what, int fd, struct epoll_event *event);
int __wrap_epoll_ctl(int epoll, int what, int fd, struct epoll_event *event);
int __wrap_epoll_ctl(int epoll, int what, int fd, struct epoll_event *event)
{
    static const int errors[DLX_TEST_FAIL_WAYS] = {ENOMEM, ENOSPC};
    if (what == EPOLL_CTL_ADD && fails_now("epoll_ctl", errors))
        return -1;
    return __real_epoll_ctl(epoll, what, fd, event);
}

int __real_fcntl(int fd, int what, ...);
int __wrap_fcntl(int fd, int what, ...);
int __wrap_fcntl(int fd, int what, ...)
{
    static const int dup_errors[DLX_TEST_FAIL_WAYS] = {EMFILE, ENOMEM};
    static const int seal_errors[DLX_TEST_FAIL_WAYS] = {EBUSY, EPERM};
    static const int set_lock_errors[DLX_TEST_FAIL_WAYS] = {ENOLCK};
    static const int get_lock_errors[DLX_TEST_FAIL_WAYS] = {ENOMEM};
    va_list args;
    va_start(args, what);
    long argument = va_arg(args, long);
    va_end(args);
    if (what == F_DUPFD_CLOEXEC && fails_now("fcntl F_DUPFD_CLOEXEC", dup_errors))
        return -1;
    if (what == F_ADD_SEALS && fails_now("fcntl F_ADD_SEALS", seal_errors))
        return -1;
    if (what == F_OFD_SETLK && fails_now("fcntl F_OFD_SETLK", set_lock_errors))
        return -1;
    if (what == F_OFD_GETLK && fails_now("fcntl F_OFD_GETLK", get_lock_errors))
        return -1;
    return __real_fcntl(fd, what, argument);
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    static const int errors[DLX_TEST_FAIL_WAYS] = {EMFILE, EACCES, ENOENT};
    va_list args;
    va_start(args, flags);
    unsigned mode = va_arg(args, unsigned);
    va_end(args);
    return fails_now("open", errors) ? -1 : __real_open(path, flags, mode);
}

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);
long __wrap_syscall(long number, ...)
{
    static const int errors[DLX_TEST_FAIL_WAYS] = {EMFILE, ESRCH, ENOMEM};
    long a[6];
    va_list args;
    va_start(args, number);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(a); i++)
        a[i] = va_arg(args, long);
    va_end(args);
    if (number == SYS_pidfd_open && fails_now("pidfd_open", errors))
        return -1;
    return __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

int __wrap_asprintf(char **ret, const char *format, ...);
int __wrap_asprintf(char **ret, const char *format, ...)
{
    static const int errors[DLX_TEST_FAIL_WAYS] = {ENOMEM};
    if (fails_now("asprintf", errors))
        return -1;
    va_list args;
    va_start(args, format);
    int n = vasprintf(ret, format, args);
    va_end(args);
    n_allocated += n >= 0;
    return n;
}

/* ---- stories --------------------------------------------------------------------------------- */

static struct {
    const char *wrong; /* what was not as promised first */
    char words[256];
} said;

void dlx_test_fail_expect(bool good, const char *what)
{
    if (!good && !said.wrong)
        said.wrong = what;
}

int dlx_test_fail_say(int code)
{
    if (code < 0)
        (void)snprintf(said.words, sizeof said.words, "%s", dlx__error_message());
    return code;
}

/* The things of a process that can be left over. */
struct usage {
    size_t n_fds, n_maps, n_names, n_allocated;
};

static struct usage usage(void)
{
    struct usage u = {.n_fds = dlx_test_fds_count(),
                      .n_names = dlx_test_shm_count_own(),
                      .n_allocated = n_allocated};
    char line[512], how[8];
    FILE *f = fopen("/proc/self/maps", "re");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof line, f))
        u.n_maps += sscanf(line, "%*s %7s", how) == 1 && how[3] == 's';
    (void)fclose(f);
    return u;
}

/* All ways of one call, then the next call. False: what was told last made fewer calls, so that was
 * all. */
static bool next_point(struct dlx_test_fail *fail)
{
    size_t at = fail->at, way = fail->way + 1;
    if (at > 0 && !fail->call && way == 1)
        return false;
    if (at == 0 || !fail->call || fail->was_last_way) {
        at++;
        way = 0;
    }
    *fail = (struct dlx_test_fail){.at = at, .way = way};
    return true;
}

/* A failed call must not look like a peer's lie, nor like a time limit. */
static bool is_honest(int code, int error)
{
    if (code == DLX_E_INVALID)
        return error == EINVAL;
    return code != DLX_E_TIMEOUT && code != DLX_E_PROTOCOL && code != DLX_E_BAD_PEER &&
           code != DLX_E_PUBLISHER_NOT_RESPONDING;
}

static int tell(const struct dlx_test_fail_story *story, struct dlx_test_fail *fail)
{
    memset(&said, 0, sizeof said);
    dlx__error_clear();
    int r = story->tell(story->kind, fail);
    return said.words[0] ? r : dlx_test_fail_say(r);
}

static void check_point(const struct dlx_test_fail_story *story, const struct dlx_test_fail *fail,
                        int r, struct usage before)
{
    char point[256];
    (void)snprintf(point, sizeof point, "%s: call %zu (%s), way %zu (%s)", story->name, fail->at,
                   fail->call ? fail->call : "none", fail->way, strerror(fail->error));
    ck_assert_msg(r == 0 || (r < 0 && fail->call && is_honest(r, fail->error)), "%s: %s: %s", point,
                  dlx__error_name(r), said.words);
    ck_assert_msg(r == 0 || said.words[0], "%s: %s and no words", point, dlx__error_name(r));
    ck_assert_msg(r == 0 || !story->words || strstr(said.words, story->words),
                  "%s: '%s' is not in '%s'", point, story->words, said.words);
    ck_assert_msg(!said.wrong, "%s: not as promised: %s", point, said.wrong);
    struct usage now = usage();
    ck_assert_msg(memcmp(&now, &before, sizeof now) == 0,
                  "%s: %zu descriptors, %zu shared mappings, %zu names, %zu allocations; "
                  "%zu, %zu, %zu, %zu before",
                  point, now.n_fds, now.n_maps, now.n_names, now.n_allocated, before.n_fds,
                  before.n_maps, before.n_names, before.n_allocated);
}

static void each_point(const struct dlx_test_fail_story *story)
{
    struct dlx_test_fail fail = {.at = 0};
    size_t n_calls = 0, n_errors = 0;
    int r = tell(story, NULL);
    ck_assert_msg(r == 0 && !said.wrong, "%s: %s: %s %s", story->name, dlx__error_name(r),
                  said.words, said.wrong);
    const struct usage before = usage();
    while (next_point(&fail)) {
        size_t at = fail.at;
        r = tell(story, &fail);
        fail.at = at; /* the story may have stopped it */
        check_point(story, &fail, r, before);
        n_calls += fail.call != NULL;
        n_errors += r < 0;
    }
    ck_assert_msg(n_calls >= story->n_calls && n_errors >= story->n_errors,
                  "%s: %zu calls failed, %zu errors: it is not the story that is meant",
                  story->name, n_calls, n_errors);
}

void dlx_test_fail_each(const struct dlx_test_fail_story *story)
{
    pid_t pid = story->in_child ? dlx_test_fork() : 0;
    if (pid == 0)
        each_point(story);
    if (story->in_child && pid == 0)
        _exit(0);
    if (story->in_child)
        dlx_test_fork_join(pid);
}
