/* SPDX-License-Identifier: Apache-2.0 */
#include "client/start/start.h"
#include "client/control/call.h"
#include "common/error.h"
#include "common/syscalls.h"
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define STACK_SIZE  (64U * 1024U)
#define SLICE_MS    20
#define READY       "READY=1\n"
#define N_SIGNALS   64 /* the kernel's */
#define FALLBACK_FD 65536

/*
 * Between clone() and execve() the starter and the program-to-be make system calls only, by
 * syscall(): the functions of libc take locks that another thread may hold, and those of sanitizers
 * keep books that belong to the caller. `errno` is the calling thread's, which looks at it again
 * when the starter is WATCHING: from then on the starter makes no call that fails.
 */
#if defined(__clang__)
#define BARE __attribute__((no_sanitize("address", "thread", "undefined")))
#else
#define BARE __attribute__((no_sanitize("address", "thread", "undefined"), no_stack_protector))
#endif

enum phase {
    STARTING, /* the program is not executed yet */
    WATCHING, /* the starter waits for it to say that it is ready */
    OVER,     /* the starter ends; one that was killed does not say so */
};

/* In memory that both processes see, also where the starter gets a copy of the caller's. */
struct shared {
    struct dlx_start start;
    _Atomic uint32_t phase;     /* of enum phase; a futex */
    _Atomic uint32_t is_wanted; /* 0: the caller's wait was interrupted */
    struct timespec deadline;
    bool forever;
    pid_t caller;
    unsigned n_fds;
    int exec_error;
    size_t n_words;
    char words[2 * DLX_START_WORDS_SIZE];
};

#define OFFSET_OF_STACKS ((sizeof(struct shared) + DLX_PAGE - 1) / DLX_PAGE * DLX_PAGE)
#define MAP_SIZE         (OFFSET_OF_STACKS + 2 * (size_t)STACK_SIZE)

BARE static long clone_process(int (*fn)(void *), struct shared *s, unsigned stack, int flags)
{
#ifdef DLX_SANITIZE
    /* Sanitizers do not support two processes in one memory. */
    (void)stack;
    long pid = syscall(SYS_clone, (long)(flags & ~CLONE_VFORK), 0L, 0L, 0L, 0L);
    if (pid == 0)
        syscall(SYS_exit_group, (long)fn(s));
    return pid;
#else
    char *top = (char *)s + OFFSET_OF_STACKS + (stack + 1) * (size_t)STACK_SIZE;
    return clone(fn, top, CLONE_VM | flags, s);
#endif
}

/* ---- the program-to-be --------------------------------------------------------------------- */

/* Handlers are code of the caller, which must not run here; what is ignored would stay so. */
BARE static void reset_signals(void)
{
    uint64_t zero[8] = {0}; /* the kernel's struct sigaction: SIG_DFL, no flags, no mask */
    for (long i = 1; i <= N_SIGNALS; i++)
        (void)syscall(SYS_rt_sigaction, i, zero, NULL, 8L);
    (void)syscall(SYS_rt_sigprocmask, (long)SIG_SETMASK, zero, NULL, 8L);
}

BARE static int run_program(void *data)
{
    struct shared *s = data;
    struct sched_param other = {.sched_priority = 0};
    reset_signals();
    /* A daemon has no business among the real-time threads of the program that happened to start
     * it. */
    long policy = syscall(SYS_sched_getscheduler, 0L);
    if (policy == SCHED_FIFO || policy == SCHED_RR)
        (void)syscall(SYS_sched_setscheduler, 0L, (long)SCHED_OTHER, &other);
    (void)syscall(SYS_umask, 077L);
    (void)syscall(SYS_chdir, "/");
    /* 3 is the pipe's end; like the reading end it closes on exec. */
    if (syscall(SYS_dup3, 3L, 2L, 0L) == 2)
        (void)syscall(SYS_execve, s->start.program, s->start.argv, s->start.envp);
    s->exec_error = errno;
    return 127;
}

/* ---- the starter --------------------------------------------------------------------------- */

BARE static void enter(struct shared *s, enum phase phase)
{
    /* Partner: await_starter(). */
    atomic_store_explicit(&s->phase, phase, memory_order_release);
    (void)syscall(SYS_futex, &s->phase, (long)FUTEX_WAKE, 1L, NULL, NULL, 0L);
}

BARE static int give_up(struct shared *s, const char *what, int error)
{
    s->start.error = error;
    s->start.what = what;
    enter(s, OVER);
    return 1;
}

BARE static void close_all(const struct shared *s)
{
    if (syscall(SYS_close_range, 0L, 0xffffffffL, 0L) == 0)
        return;
    for (long fd = 0; fd < (long)s->n_fds; fd++) /* before Linux 5.9 */
        (void)syscall(SYS_close, fd);
}

/* Keeps the end of the output. Has it the line that says "ready"? */
BARE static bool take_words(struct shared *s, const char *text, size_t size)
{
    static const char ready[] = READY;
    for (size_t i = 0; i < size; i++) {
        if (s->n_words == sizeof s->words) {
            s->n_words = sizeof s->words / 2;
            for (size_t k = 0; k < s->n_words; k++)
                s->words[k] = s->words[k + sizeof s->words / 2];
        }
        s->words[s->n_words++] = text[i];
        if (text[i] != '\n' || s->n_words < sizeof ready - 1)
            continue;
        size_t at = s->n_words - (sizeof ready - 1);
        bool same = at == 0 || s->words[at - 1] == '\n';
        for (size_t k = 0; same && k < sizeof ready - 1; k++)
            same = s->words[at + k] == ready[k];
        if (same)
            return true;
    }
    return false;
}

/* Read what is in the pipe now. Returns 1: ready; 0: not yet; -1: no process has the other end any
 * more. */
BARE static int read_words(struct shared *s, long fd)
{
    char text[256];
    for (;;) {
        struct pollfd p = {.fd = (int)fd, .events = POLLIN};
        struct timespec now = {0};
        if (syscall(SYS_ppoll, &p, 1L, &now, NULL, 8L) <= 0)
            return 0;
        long n = syscall(SYS_read, fd, text, sizeof text);
        if (n <= 0)
            return -1;
        if (take_words(s, text, (size_t)n))
            return 1;
    }
}

BARE static bool is_late(struct shared *s)
{
    struct timespec now;
    if (atomic_load_explicit(&s->is_wanted, memory_order_relaxed) == 0)
        return true;
    if (s->forever || syscall(SYS_clock_gettime, (long)CLOCK_MONOTONIC, &now) < 0)
        return false;
    return now.tv_sec > s->deadline.tv_sec ||
           (now.tv_sec == s->deadline.tv_sec && now.tv_nsec >= s->deadline.tv_nsec);
}

/* Look for the end of the program, too: a process that it left running may hold the pipe. */
BARE static void watch(struct shared *s, long pid, long fd)
{
    const struct timespec slice = {.tv_nsec = SLICE_MS * 1000000L};
    struct pollfd p = {.fd = (int)fd, .events = POLLIN};
    for (;;) {
        struct timespec wait = slice; /* the kernel writes to it */
        (void)syscall(SYS_ppoll, &p, 1L, &wait, NULL, 8L);
        bool ended = syscall(SYS_wait4, pid, &s->start.status, (long)WNOHANG, NULL) == pid;
        int said = p.fd < 0 ? -1 : read_words(s, fd);
        if (said < 0)
            p.fd = -1; /* the program may still run */
        s->start.ready = said > 0;
        s->start.ended = ended && !s->start.ready;
        if (ended || s->start.ready)
            return;
        if (is_late(s)) {
            (void)syscall(SYS_kill, pid, (long)SIGKILL);
            (void)syscall(SYS_wait4, pid, NULL, 0L, NULL);
            (void)syscall(SYS_kill, 0L, (long)SIGKILL); /* with the program's children */
            return;
        }
    }
}

BARE static int run_starter(void *data)
{
    struct shared *s = data;
    int fds[2];
    (void)syscall(SYS_prctl, (long)PR_SET_PDEATHSIG, (long)SIGKILL, 0L, 0L, 0L);
    if (syscall(SYS_getppid) != s->caller) {
        /* The program was killed already, or its children live in another PID namespace. */
        return give_up(s, "finding the process that starts it", ESRCH);
    }
    (void)syscall(SYS_setsid);
    close_all(s);
    if (syscall(SYS_openat, (long)AT_FDCWD, "/dev/null", (long)O_RDWR, 0L) != 0 ||
        syscall(SYS_dup, 0L) != 1)
        return give_up(s, "opening /dev/null", errno);
    if (syscall(SYS_pipe2, fds, (long)(O_CLOEXEC | O_NONBLOCK)) < 0 || fds[0] != 2 || fds[1] != 3)
        return give_up(s, "making a pipe", errno);
    /* The daemon's stderr is to block as that of every program does. */
    if (syscall(SYS_fcntl, 3L, (long)F_SETFL, 0L) < 0)
        return give_up(s, "making a pipe", errno);
    long pid = clone_process(run_program, s, 1, CLONE_VFORK | SIGCHLD);
    if (pid < 0)
        return give_up(s, "starting a process", errno);
    (void)syscall(SYS_close, 3L);
    enter(s, WATCHING);
    watch(s, pid, 2);
    if (s->exec_error != 0)
        return give_up(s, "executing it", s->exec_error);
    enter(s, OVER);
    return 0;
}

/* ---- the caller ---------------------------------------------------------------------------- */

/* The end of the program's output, in one line: newlines become "; ", unprintable characters '?'.
 */
static void copy_words(const struct shared *s, char ret[DLX_START_WORDS_SIZE])
{
    size_t size = s->n_words;
    while (size > 0 && s->words[size - 1] == '\n')
        size--;
    size_t from = size > DLX_START_WORDS_SIZE / 2 ? size - DLX_START_WORDS_SIZE / 2 : 0;
    size_t n = 0;
    for (size_t i = from; i < size; i++) {
        char c = s->words[i];
        if (c == '\n')
            ret[n++] = ';';
        ret[n++] = c == '\n' ? ' ' : (c >= 0x20 && c < 0x7f) ? c : '?';
    }
    ret[n] = '\0';
}

static unsigned fd_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur > FALLBACK_FD)
        return FALLBACK_FD;
    return (unsigned)limit.rlim_cur;
}

/* The starter uses this thread's memory, and is gone when this returns. The program is asked once
 * the starter watches, and only then do handlers of signals run. */
static void await_starter(struct shared *s, pid_t pid, struct dlx_start *start, const sigset_t *old)
{
    const struct dlx_client *c = start->client;
    struct dlx_wait wait = {.deadline = UINT64_MAX};
    bool may_ask = false;
    for (;;) {
        /* Partner: enter(). */
        uint32_t phase = atomic_load_explicit(&s->phase, memory_order_acquire);
        pid_t ended = waitpid(pid, NULL, phase == OVER ? __WALL : __WALL | WNOHANG);
        if (ended < 0 && errno == EINTR)
            continue;
        if (ended != 0)
            return;
        if (phase == WATCHING && c && c->interrupt && !may_ask) {
            (void)pthread_sigmask(SIG_SETMASK, old, NULL);
            (void)dlx__wait_part(&wait, c, dlx__now_ns());
            may_ask = true;
        }
        const struct timespec slice = {.tv_nsec = SLICE_MS * 1000000L};
        bool signalled =
            syscall(SYS_futex, &s->phase, FUTEX_WAIT, phase, &slice, NULL, 0) < 0 && errno == EINTR;
        if (may_ask && !start->interrupted && dlx__wait_ask(&wait, c, NULL, signalled) < 0) {
            start->interrupted = true;
            atomic_store_explicit(&s->is_wanted, 0, memory_order_relaxed); /* partner: is_late() */
        }
    }
}

int dlx__start(struct dlx_start *start)
{
    sigset_t all, old;
    int state;
    struct shared *s =
        mmap(NULL, MAP_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (s == MAP_FAILED)
        return dlx__fail_errno("%zu bytes of memory to start %s", MAP_SIZE, start->program);
    s->start = *start;
    s->is_wanted = 1;
    s->forever = start->deadline == UINT64_MAX;
    s->deadline.tv_sec = (time_t)(start->deadline / 1000000000U);
    s->deadline.tv_nsec = (long)(start->deadline % 1000000000U);
    s->caller = getpid();
    s->n_fds = fd_limit();

    /* No handler of the caller may run in the other process, whose signals stay blocked, and no
     * cancellation may leave that process running. */
    (void)sigfillset(&all);
    (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    long pid = clone_process(run_starter, s, 0, 0);
    int err = errno;
    if (pid > 0)
        await_starter(s, (pid_t)pid, start, &old);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    (void)pthread_setcancelstate(state, NULL);

    if (pid > 0) {
        s->start.interrupted = start->interrupted;
        *start = s->start;
        copy_words(s, start->words);
    }
    munmap(s, MAP_SIZE);
    errno = err;
    return pid > 0 ? 0 : dlx__fail_errno("starting a process for %s", start->program);
}
