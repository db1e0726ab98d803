/* SPDX-License-Identifier: Apache-2.0 */
#include "debug.h"
#include "args.h"
#include "dtype.h"
#include "errors.h"
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define N_REGIONS 4096

/* Written under the GIL, read by the handler of a fault of any thread: `end` is cleared first and
 * set last. */
struct region {
    atomic_uintptr_t end; /* 0: nothing */
    uintptr_t start;
    uint64_t seq;
    unsigned generation; /* of fork: the process that has the memory */
    bool received;
    char topic[DLX_TOPIC_MAX + 1];
    char name[128];
};

static atomic_bool is_on;
static struct region *regions; /* N_REGIONS, the oldest is written over */
static uint64_t n_regions;     /* ever */
static bool is_installed;      /* this module's handler of faults, perhaps below a later one */
static struct sigaction before;

bool dlxpy_debug_is_on(void)
{
    return is_on;
}

/* ---- remembering --------------------------------------------------------------------------- */

static void remember(const char *topic, const char *name, uint64_t seq, const DLTensor *t,
                     bool received)
{
    size_t size = dlxpy_tensor_bytes(t, false);
    if (size == 0)
        return;
    struct region *r = &regions[n_regions++ % N_REGIONS];
    atomic_store(&r->end, 0);
    r->start = (uintptr_t)t->data;
    r->seq = seq;
    r->generation = dlxpy_fork_generation();
    r->received = received;
    (void)snprintf(r->topic, sizeof r->topic, "%s", topic);
    (void)snprintf(r->name, sizeof r->name, "%s", name ? name : "");
    atomic_store(&r->end, r->start + size);
}

void dlxpy_debug_received(const struct dlx_message *m)
{
    for (uint32_t i = 0; i < dlx_message_n_tensors(m); i++)
        remember(dlx_message_topic(m), dlx_message_tensor_name(m, i), dlx_message_seq(m),
                 dlx_message_tensor_peek(m, i), true);
}

void dlxpy_debug_published(const char *topic, const char *name, uint64_t seq, const DLTensor *t)
{
    remember(topic, name, seq, t, false);
}

/* ---- the fault ----------------------------------------------------------------------------- */

static void say(const char *text)
{
    (void)!write(STDERR_FILENO, text, strlen(text));
}

static void say_number(uint64_t n)
{
    char digits[24], *at = digits + sizeof digits - 1;
    *at = '\0';
    do
        *--at = (char)('0' + n % 10);
    while (n /= 10);
    say(at);
}

static const struct region *find(uintptr_t address)
{
    for (uint64_t i = n_regions; i > 0 && n_regions - i < N_REGIONS; i--) {
        const struct region *r = &regions[(i - 1) % N_REGIONS];
        if (address >= r->start && address < atomic_load(&r->end))
            return r;
    }
    return NULL;
}

/* Only what is allowed in a handler: no Python, no memory, no locks. */
static void on_fault(int signal, siginfo_t *info, void *context)
{
    bool looks = atomic_load(&is_on) && info->si_code > 0;
    const struct region *r = looks ? find((uintptr_t)info->si_addr) : NULL;
    if (r) {
        bool is_parents = r->generation != dlxpy_fork_generation();
        say("dlx: fault in ");
        say(is_parents    ? "memory of the parent process, which a forked child does not have"
            : r->received ? "a received tensor, which is read-only"
                          : "a tensor that was published");
        say(": topic ");
        say(r->topic);
        say(r->name[0] ? ", tensor \"" : ", tensor");
        say(r->name);
        say(r->name[0] ? "\", message " : ", message ");
        say_number(r->seq);
        say(is_parents    ? ": call dlx.connect() in the child, or copy the tensor before fork()\n"
            : r->received ? ": write to msg.private(name) instead, subscribe with private=True, or "
                            "copy it first\n"
                          : ": fill a tensor before it is published, or publish a copy\n");
    }
    /* With the former handler in place, the instruction faults again. */
    (void)sigaction(signal, &before, NULL);
    if (info->si_code <= 0)
        (void)raise(signal); /* a process sent the signal */
    (void)context;
}

static bool is_default(const struct sigaction *action)
{
    return !(action->sa_flags & SA_SIGINFO) && action->sa_handler == SIG_DFL;
}

static bool is_ours(const struct sigaction *action)
{
    return action->sa_flags & SA_SIGINFO && action->sa_sigaction == on_fault;
}

/* A later handler is expected to call this one, which is never installed twice: each would restore
 * the other. */
static int install(void)
{
    struct sigaction now, action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    if (!regions)
        regions = PyMem_Calloc(N_REGIONS, sizeof *regions);
    if (!regions) {
        PyErr_NoMemory();
        return -1;
    }
    (void)sigemptyset(&action.sa_mask);
    if (sigaction(SIGSEGV, NULL, &now) < 0 ||
        (!(is_installed && !is_default(&now)) && sigaction(SIGSEGV, &action, &before) < 0)) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    is_installed = true;
    return 0;
}

/* faulthandler's handler is the former one: it prints where Python was, and ends the process. */
static int set_traceback(bool on)
{
    static bool is_ours;
    PyObject *module = PyImport_ImportModule("faulthandler");
    PyObject *enabled = module ? PyObject_CallMethod(module, "is_enabled", NULL) : NULL;
    PyObject *done = NULL;
    if (enabled && on && enabled == Py_False) {
        done = PyObject_CallMethod(module, "enable", "i", STDERR_FILENO);
        is_ours = done != NULL;
    } else if (enabled && !on && is_ours) {
        done = PyObject_CallMethod(module, "disable", NULL);
        is_ours = false;
    }
    Py_XDECREF(done);
    Py_XDECREF(enabled);
    Py_XDECREF(module);
    return PyErr_Occurred() ? -1 : 0;
}

/* A handler that was installed later stays, and calls this module's and faulthandler's, which
 * cannot be removed below it; this module's then prints nothing. Returns 0, or -1 with an
 * exception. */
static int uninstall(void)
{
    struct sigaction now;
    if (sigaction(SIGSEGV, NULL, &now) < 0 || !is_ours(&now))
        return 0;
    (void)sigaction(SIGSEGV, &before, NULL);
    is_installed = false;
    return set_traceback(false);
}

const char dlxpy_debug_doc[] =
    "debug($module, /, on=True)\n"
    "--\n"
    "\n"
    "Finds code that writes to memory of a message.\n"
    "\n"
    "Publishers that are made from now on write-protect what they publish. A write to\n"
    "it, or to a received tensor, ends the process with SIGSEGV. Before that, the\n"
    "topic, tensor and message, how to get a writable tensor, and the Python traceback\n"
    "(faulthandler) are printed on stderr. This costs time.\n"
    "\n"
    "DLX_DEBUG=1 in the environment does the same when dlx is imported. Otherwise dlx\n"
    "installs no signal handler.";
PyObject *dlxpy_debug(PyObject *self, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    static const char *const names[] = {"on"};
    static const struct dlxpy_params params = {"debug", names, 1, 1, 0};
    PyObject *value[1];
    bool on = true;
    (void)self;
    if (dlxpy_parse(&params, args, n_args, kwnames, value) < 0 || dlxpy_flag(value[0], &on) < 0)
        return NULL;
    if (on && !is_on && (set_traceback(true) < 0 || install() < 0))
        return NULL;
    if (!on && is_on && uninstall() < 0)
        return NULL;
    is_on = on;
    dlx_set_debug(on);
    Py_RETURN_NONE;
}
