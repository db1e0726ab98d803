/* SPDX-License-Identifier: Apache-2.0 */
/* The beginning of every driver call, injected failures and delays, and waiting. */
#include "tests/gpu/standin/machine.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct state state = {.lock = PTHREAD_MUTEX_INITIALIZER};
_Thread_local bool in_callback;
_Thread_local CUstreamCaptureMode thread_capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
atomic_bool waits_are_stuck;

static const struct {
    const char *name;
    unsigned flags;
} calls[N_CALLS] = {
#define X(name, since, flags) {#name, flags},
    CALLS(X) TEST_CALLS(X)
#undef X
};
static _Atomic uint64_t n_calls[N_CALLS], delays_ns[N_CALLS];

#define MAX_FAILURES 16
#define ANY_CALL     N_CALLS

static struct failure {
    enum call_id id;
    uint64_t seen, first; /* calls so far; the first that fails */
    uint64_t times;       /* how many do; 0: unused */
    CUresult code;
    bool is_of_thread; /* only calls of `thread` count */
    pthread_t thread;
} failures[MAX_FAILURES];
static uint64_t n_failed;

static enum call_id call_of(const char *name)
{
    for (int i = 0; i < N_CALLS; i++)
        if (strcmp(calls[i].name, name) == 0)
            return (enum call_id)i;
    return ANY_CALL;
}

/* Lock held. */
static CUresult injected(enum call_id id)
{
    CUresult code = CUDA_SUCCESS;
    for (struct failure *f = failures; f < failures + MAX_FAILURES; f++) {
        if (f->times == 0 || (f->id != ANY_CALL && f->id != id) ||
            (f->is_of_thread && !pthread_equal(f->thread, pthread_self())))
            continue;
        f->seen++;
        if (f->seen >= f->first && f->seen - f->first < f->times)
            code = f->code;
    }
    n_failed += code != CUDA_SUCCESS;
    return code;
}

static bool fail(const char *name, uint64_t k, uint64_t times, CUresult code, bool is_of_thread)
{
    enum call_id id = name ? call_of(name) : ANY_CALL;
    if ((name && id == ANY_CALL) || k == 0 || times == 0)
        return false;
    bool is_set = false;
    pthread_mutex_lock(&state.lock);
    for (struct failure *f = failures; f < failures + MAX_FAILURES && !is_set; f++) {
        if (f->times != 0)
            continue;
        *f = (struct failure){.id = id,
                              .first = k,
                              .times = times,
                              .code = code,
                              .is_of_thread = is_of_thread,
                              .thread = pthread_self()};
        is_set = true;
    }
    pthread_mutex_unlock(&state.lock);
    return is_set;
}

bool standin_fail(const char *name, uint64_t k, uint64_t times, CUresult code)
{
    return fail(name, k, times, code, false);
}

bool standin_fail_here(const char *name, uint64_t k, CUresult code)
{
    return fail(name, k, 1, code, true);
}

uint64_t standin_fail_clear(void)
{
    pthread_mutex_lock(&state.lock);
    uint64_t n = n_failed;
    n_failed = 0;
    memset(failures, 0, sizeof failures);
    pthread_mutex_unlock(&state.lock);
    return n;
}

/* "name:k:times:code,..." */
void configure_failures(const char *text)
{
    char *copy = strdup(text), *rest = NULL;
    for (char *one = strtok_r(copy, ",", &rest); one; one = strtok_r(NULL, ",", &rest)) {
        char *number = strchr(one, ':');
        if (!number)
            continue;
        *number++ = '\0';
        uint64_t k = strtoull(number, &number, 0);
        uint64_t times = *number == ':' ? strtoull(number + 1, &number, 0) : 1;
        long code = *number == ':' ? strtol(number + 1, NULL, 0) : CUDA_ERROR_UNKNOWN;
        (void)standin_fail(strcmp(one, "*") == 0 ? NULL : one, k, times, (CUresult)code);
    }
    free(copy);
}

bool standin_delay(const char *name, uint64_t ns)
{
    enum call_id id = call_of(name);
    if (id == ANY_CALL)
        return false;
    atomic_store(&delays_ns[id], ns);
    return true;
}

void standin_stick_waits(bool are_stuck)
{
    atomic_store(&waits_are_stuck, are_stuck);
}

uint64_t standin_calls(const char *name)
{
    enum call_id id = call_of(name);
    return id == ANY_CALL ? 0 : atomic_load(&n_calls[id]);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void pause_ns(uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    /* lint-allow: sleep: a delay that a test asked for */
    while (ns > 0 && nanosleep(&t, &t) != 0 && errno == EINTR) {
    }
}

void wait_change(void)
{
    /* Other processes signal nothing here: the thread looks this often. */
    uint64_t end = now_ns() + 200000;
    struct timespec t = {(time_t)(end / 1000000000), (long)(end % 1000000000)};
    (void)pthread_cond_timedwait(&state.changed, &state.lock, &t);
}

void signal_change(void)
{
    pthread_cond_broadcast(&state.changed);
}

static void after_fork_in_child(void)
{
    if (state.is_initialised)
        state.is_forked = true;
    /* The lock may have been held by a thread that the child does not have. */
    state.lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

__attribute__((constructor)) static void start(void)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&state.changed, &attributes);
    pthread_condattr_destroy(&attributes);
    (void)pthread_atfork(NULL, NULL, after_fork_in_child);
}

/* A call that is unsafe under capture breaks the captures that it could disturb. Lock held. */
static bool breaks_capture(bool breaks_all)
{
    bool broken = false;
    struct stream *s;
    if (state.n_capturing == 0 ||
        (!breaks_all && thread_capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED))
        return false;
    LIST_FOREACH(s, &state.streams, link)
    {
        if (s->capture == CU_STREAM_CAPTURE_STATUS_NONE ||
            (!breaks_all && s->capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED))
            continue;
        bool is_own = pthread_equal(s->capturer, pthread_self());
        if (breaks_all || s->capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL || is_own) {
            (void)capture_refuse(s, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
            broken = true;
        }
    }
    return broken;
}

/* Lock held. */
static CUresult may_enter(struct call *call, enum call_id id)
{
    unsigned flags = calls[id].flags;
    CUresult code = injected(id);
    if (code != CUDA_SUCCESS)
        return code;
    if (!state.is_initialised)
        return flags & EARLY ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
    count_add(STANDIN_CALLS_MADE, 1);
    if (flags & SYNC)
        count_add(STANDIN_SYNC_CALLS, 1);
    if (in_callback && !(flags & EARLY)) {
        count_add(STANDIN_CALLS_IN_CALLBACK, 1);
        return CUDA_ERROR_NOT_PERMITTED;
    }
    if (flags & CONTEXT) {
        call->context = context_current();
        if (!call->context)
            return CUDA_ERROR_INVALID_CONTEXT;
        if (call->context->is_destroyed)
            return CUDA_ERROR_CONTEXT_IS_DESTROYED;
        if (call->context->sticky != CUDA_SUCCESS)
            return call->context->sticky;
    }
    return flags & (UNSAFE | NEVER_CAPTURED) && breaks_capture(flags & NEVER_CAPTURED)
               ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
               : CUDA_SUCCESS;
}

CUresult call_enter(struct call *call, enum call_id id)
{
    if (state.is_forked) {
        if (process && !(calls[id].flags & EARLY))
            atomic_fetch_add(&process->counters[STANDIN_CALLS_AFTER_FORK], 1);
        return id == CALL_cuGetErrorName || id == CALL_cuGetErrorString
                   ? CUDA_SUCCESS
                   : CUDA_ERROR_NOT_INITIALIZED;
    }
    atomic_fetch_add(&n_calls[id], 1);
    pause_ns(atomic_load(&delays_ns[id]));
    pthread_mutex_lock(&state.lock);
    CUresult code = may_enter(call, id);
    call->is_locked = code == CUDA_SUCCESS;
    if (!call->is_locked)
        pthread_mutex_unlock(&state.lock);
    return code;
}

void call_leave(struct call *call)
{
    if (call->is_locked)
        pthread_mutex_unlock(&state.lock);
}
