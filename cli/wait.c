/* SPDX-License-Identifier: Apache-2.0 */

/* Time, and signals that end a wait at once or are kept until a file is complete. */

#include "cli/wait.h"
#include <dlx/error.h>
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <time.h>

static volatile sig_atomic_t caught;
static bool catches;
static void (*at_second)(int number); /* NULL: the default */
static sigset_t held;                 /* none, before and between times */

static void handle_signals(void (*handler)(int));

static void on_signal(int number)
{
    caught = number;
    if (at_second)
        handle_signals(at_second);
}

int64_t wait_now(void)
{
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts); /* cannot fail for this clock */
    return ts.tv_sec * INT64_C(1000000000) + ts.tv_nsec;
}

int64_t wait_deadline(int64_t delay_ns)
{
    int64_t deadline;
    return __builtin_add_overflow(wait_now(), delay_ns, &deadline) ? WAIT_FOREVER : deadline;
}

static bool is_ignored(int number)
{
    struct sigaction action;
    return sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

static void handle_signals(void (*handler)(int))
{
    /* SA_RESTART: only the waits below care about signals, other calls go on */
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART | (int)SA_RESETHAND};
    static const int numbers[] = {SIGINT, SIGTERM};
    (void)sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (!is_ignored(numbers[i])) /* by the parent (a job in the background) */
            (void)sigaction(numbers[i], &action, NULL);
}

void wait_at_second_signal(void (*handler)(int number))
{
    at_second = handler;
}

void wait_catch_signals(void)
{
    catches = true;
    handle_signals(on_signal);
}

int wait_begin_blocking(void)
{
    if (catches)
        handle_signals(SIG_DFL);
    return caught ? DLX_E_INTERRUPTED : 0;
}

void wait_end_blocking(void)
{
    if (catches && !caught)
        handle_signals(on_signal);
}

void wait_hold_signals(sigset_t *before)
{
    static const int numbers[] = {SIGHUP,  SIGINT,  SIGQUIT, SIGALRM,
                                  SIGUSR1, SIGUSR2, SIGTERM, SIGXCPU};
    (void)sigprocmask(SIG_BLOCK, NULL, before);
    (void)sigemptyset(&held);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        /* one that is ignored would be pending all the same */
        if (!is_ignored(numbers[i]) && !sigismember(before, numbers[i]))
            (void)sigaddset(&held, numbers[i]);
    (void)sigprocmask(SIG_BLOCK, &held, NULL);
}

void wait_release_signals(const sigset_t *before)
{
    (void)sigemptyset(&held);
    (void)sigprocmask(SIG_SETMASK, before, NULL);
}

bool wait_holds_signal(void)
{
    sigset_t came;
    return sigpending(&came) == 0 && sigandset(&came, &came, &held) == 0 && !sigisemptyset(&came);
}

int wait_signal(void)
{
    return caught;
}

int wait_until(int fd, int64_t deadline)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    struct timespec timeout = {0};
    sigset_t blocked, before;
    int64_t left = deadline == WAIT_FOREVER ? 0 : deadline - wait_now();
    if (left > 0) {
        timeout.tv_sec = left / 1000000000;
        timeout.tv_nsec = left % 1000000000;
    }
    (void)sigemptyset(&blocked);
    (void)sigaddset(&blocked, SIGINT);
    (void)sigaddset(&blocked, SIGTERM);
    if (sigprocmask(SIG_BLOCK, &blocked, &before) < 0)
        return DLX_E_SYSTEM;
    int r = -1, error = EINTR;
    if (!caught) {
        r = ppoll(&p, fd >= 0, deadline == WAIT_FOREVER ? NULL : &timeout, &before);
        error = errno;
    }
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    if (r > 0)
        return 0;
    if (r == 0)
        return DLX_E_TIMEOUT;
    if (error != EINTR)
        return DLX_E_SYSTEM;
    return DLX_E_INTERRUPTED;
}
