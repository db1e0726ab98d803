/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/trace.h"

#ifdef DLX_NO_BPF

int trace_new(struct trace **ret, bool wants_messages, trace_event_fn fn, void *userdata,
              struct cli_error *e)
{
    (void)ret;
    (void)wants_messages;
    (void)fn;
    (void)userdata;
    return cli_fail(e, DLX_E_KERNEL,
                    "this dlxctl was built without libbpf, clang or bpftool, which traces need: "
                    "install libbpf-dev, clang and bpftool, and build again");
}

struct trace *trace_free(struct trace *t)
{
    return t;
}

int trace_attach(struct trace *t, int borrow_fd, const char *name, struct cli_error *e)
{
    (void)t;
    (void)borrow_fd;
    return cli_fail(e, DLX_E_KERNEL, "%s: built without libbpf", name);
}

void trace_watch(struct trace *t, uint32_t pid)
{
    (void)t;
    (void)pid;
}

bool trace_is_watched(const struct trace *t, uint32_t pid)
{
    (void)t;
    (void)pid;
    return false;
}

bool trace_has_taken(const struct trace *t, uint32_t pid)
{
    (void)t;
    (void)pid;
    return false;
}

void trace_forget(struct trace *t, uint32_t pid)
{
    (void)t;
    (void)pid;
}

int trace_fd(const struct trace *t)
{
    (void)t;
    return -1;
}

bool trace_read(struct trace *t)
{
    (void)t;
    return false;
}

int trace_each(const struct trace *t, enum trace_map map, trace_entry_fn fn, void *userdata)
{
    (void)t;
    (void)map;
    (void)fn;
    (void)userdata;
    return 0;
}

void trace_forget_hold(struct trace *t, const struct trace_hold_key *key)
{
    (void)t;
    (void)key;
}

void trace_lacks(const struct trace *t, uint64_t ret[TRACE_N_LACKS])
{
    (void)t;
    for (int i = 0; i < TRACE_N_LACKS; i++)
        ret[i] = 0;
}

#else

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Generated code is not held to our warnings. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"
#include "cli/trace.skel.h"
#pragma GCC diagnostic pop

/* Events of messages: 16 MiB are 150,000 of them. */
#define RING_SIZE_MESSAGES (16U * 1024 * 1024)

/* Entries of a map, and events, that are read at once. */
enum { BATCH = 256, EVENTS_AT_ONCE = 256 };

/* From <linux/capability.h>, whose older copies lack the first two. */
enum { PERFMON = 38, BPF = 39, SYS_ADMIN = 21 };

struct trace {
    struct trace_bpf *bpf;
    struct ring_buffer *ring;
    struct bpf_link **links; /* one for each probe of each file */
    size_t n_links;
    trace_event_fn fn;
    void *userdata;
    uint32_t n_left; /* events to pass on before others have their turn */
};

/* ---- what is missing ------------------------------------------------------------------------- */

static uint64_t effective_capabilities(void)
{
    char line[256];
    uint64_t set = 0;
    FILE *file = fopen("/proc/self/status", "re");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "CapEff: %" SCNx64, &set) == 1)
            break;
    if (file)
        (void)fclose(file);
    return set;
}

static bool has(uint64_t set, int capability)
{
    return set >> capability & 1;
}

static int check_privileges(struct cli_error *e)
{
    uint64_t set = effective_capabilities();
    bool bpf = has(set, BPF), perfmon = has(set, PERFMON);
    if (has(set, SYS_ADMIN) || (bpf && perfmon))
        return 0;
    return cli_fail(e, DLX_E_ACCESS,
                    "this process lacks %s%s%s, which the kernel asks for to look into programs: "
                    "run it as root, or give it CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE "
                    "(setpriv --inh-caps, AmbientCapabilities=)",
                    bpf ? "" : "CAP_BPF", bpf || perfmon ? "" : " and ",
                    perfmon ? "" : "CAP_PERFMON");
}

static int check_kernel(struct cli_error *e)
{
    /* An invalid command: only a kernel without BPF says ENOSYS. */
    errno = 0;
    (void)bpf_prog_get_fd_by_id(0);
    if (errno == ENOSYS)
        return cli_fail(e, DLX_E_KERNEL,
                        "this kernel has no BPF: traces need one that was built with "
                        "CONFIG_BPF_SYSCALL");
    if (access("/sys/kernel/btf/vmlinux", R_OK) != 0)
        return cli_fail(e, DLX_E_KERNEL,
                        "/sys/kernel/btf/vmlinux cannot be read (%s): traces need a kernel that "
                        "was built with CONFIG_DEBUG_INFO_BTF, and sysfs",
                        strerror(errno));
    if (access("/sys/bus/event_source/devices/uprobe/type", R_OK) != 0)
        return cli_fail(e, DLX_E_KERNEL,
                        "this kernel has no uprobes: traces need one that was built with "
                        "CONFIG_UPROBE_EVENTS, and sysfs");
    return 0;
}

static int fail_kernel(struct cli_error *e, const char *what, int error)
{
    bool refused = error == EPERM || error == EACCES;
    return cli_fail(e, refused ? DLX_E_ACCESS : DLX_E_SYSTEM, "the kernel %s %s: %s%s",
                    refused ? "does not let this process" : "cannot", what, strerror(error),
                    refused ? ": in a container, or under kernel lockdown, the host's root has to "
                              "do it"
                            : "");
}

/* ---- life ------------------------------------------------------------------------------------ */

/* Its words are for people who write BPF programs: the errors here are enough. */
static int say_nothing(enum libbpf_print_level level, const char *format, va_list args)
{
    (void)level;
    (void)format;
    (void)args;
    return 0;
}

static int pass_event(void *userdata, void *data, size_t size)
{
    struct trace *t = userdata;
    const struct trace_event *event = data;
    if (size >= (event->kind == TRACE_ATTACH ? sizeof(struct trace_attach) : sizeof *event))
        t->fn(event, t->userdata);
    return --t->n_left == 0 ? -EAGAIN : 0;
}

static int trace_load(struct trace *t, bool wants_messages, struct cli_error *e)
{
    t->bpf = trace_bpf__open();
    if (!t->bpf)
        return fail_kernel(e, "open the BPF program", errno);
    t->bpf->rodata->wants_messages = wants_messages;
    if (wants_messages)
        (void)bpf_map__set_max_entries(t->bpf->maps.events, RING_SIZE_MESSAGES);
    int r = trace_bpf__load(t->bpf);
    if (r < 0)
        return fail_kernel(e, "load a BPF program", -r);
    t->bpf->links.on_exit = bpf_program__attach(t->bpf->progs.on_exit);
    if (!t->bpf->links.on_exit)
        return fail_kernel(e, "tell of processes that end", errno);
    t->bpf->links.on_exec = bpf_program__attach(t->bpf->progs.on_exec);
    if (!t->bpf->links.on_exec)
        return fail_kernel(e, "tell of processes that execute another program", errno);
    t->ring = ring_buffer__new(bpf_map__fd(t->bpf->maps.events), pass_event, t, NULL);
    return t->ring ? 0 : fail_kernel(e, "map the ring of events", errno);
}

int trace_new(struct trace **ret, bool wants_messages, trace_event_fn fn, void *userdata,
              struct cli_error *e)
{
    int r = check_privileges(e);
    if (r == 0)
        r = check_kernel(e);
    if (r < 0)
        return r;
    struct trace *t = calloc(1, sizeof *t);
    if (!t)
        return cli_fail(e, DLX_E_NO_MEMORY, "out of memory");
    t->fn = fn;
    t->userdata = userdata;
    (void)libbpf_set_print(say_nothing);
    r = trace_load(t, wants_messages, e);
    if (r < 0)
        trace_free(t);
    else
        *ret = t;
    return r;
}

struct trace *trace_free(struct trace *t)
{
    if (!t)
        return NULL;
    for (size_t i = 0; i < t->n_links; i++)
        (void)bpf_link__destroy(t->links[i]);
    free(t->links);
    ring_buffer__free(t->ring);
    trace_bpf__destroy(t->bpf);
    free(t);
    return NULL;
}

/* ---- files ----------------------------------------------------------------------------------- */

int trace_attach(struct trace *t, int borrow_fd, const char *name, struct cli_error *e)
{
    const struct {
        const struct bpf_program *program;
        const char *probe;
    } probes[] = {
        /* First what ends, then what begins: else a message that is taken before the probe of its
         * release counts would seem to be held for ever. */
        {t->bpf->progs.on_release, "release"}, {t->bpf->progs.on_bell, "bell"},
        {t->bpf->progs.on_attach, "attach"},   {t->bpf->progs.on_publish, "publish"},
        {t->bpf->progs.on_take, "take"},
    };
    const size_t n = sizeof probes / sizeof probes[0];
    char path[64];
    struct bpf_link **links = reallocarray(t->links, t->n_links + n, sizeof(struct bpf_link *));
    if (!links)
        return cli_fail(e, DLX_E_NO_MEMORY, "out of memory");
    t->links = links;
    /* What was opened and looked at, whatever is at its path now. */
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", borrow_fd);
    const size_t before = t->n_links;
    for (size_t i = 0; i < n; i++) {
        errno = 0;
        struct bpf_link *link =
            bpf_program__attach_usdt(probes[i].program, -1, path, "libdlx", probes[i].probe, NULL);
        if (!link && i == 0 && errno == ENOENT)
            return 0;
        if (!link) {
            const int error = errno;
            while (t->n_links > before) /* some probes without the others would count wrongly */
                (void)bpf_link__destroy(t->links[--t->n_links]);
            return cli_fail(e, DLX_E_SYSTEM, "%s: the kernel does not take its probe %s: %s", name,
                            probes[i].probe, strerror(error));
        }
        t->links[t->n_links++] = link;
    }
    return 1;
}

/* ---- processes ------------------------------------------------------------------------------- */

void trace_watch(struct trace *t, uint32_t pid)
{
    const struct trace_program none = {0};
    (void)bpf_map__update_elem(t->bpf->maps.programs, &pid, sizeof pid, &none, sizeof none,
                               BPF_NOEXIST);
}

static bool trace_find_program(const struct trace *t, uint32_t pid, struct trace_program *ret)
{
    return bpf_map__lookup_elem(t->bpf->maps.programs, &pid, sizeof pid, ret, sizeof *ret, 0) == 0;
}

bool trace_is_watched(const struct trace *t, uint32_t pid)
{
    struct trace_program program;
    return trace_find_program(t, pid, &program);
}

bool trace_has_taken(const struct trace *t, uint32_t pid)
{
    struct trace_program program;
    return trace_find_program(t, pid, &program) && program.taken > 0;
}

void trace_forget(struct trace *t, uint32_t pid)
{
    (void)bpf_map__delete_elem(t->bpf->maps.programs, &pid, sizeof pid, 0);
}

/* ---- what was counted ------------------------------------------------------------------------ */

int trace_fd(const struct trace *t)
{
    return ring_buffer__epoll_fd(t->ring);
}

bool trace_read(struct trace *t)
{
    t->n_left = EVENTS_AT_ONCE;
    (void)ring_buffer__consume(t->ring);
    return t->n_left == 0;
}

int trace_each(const struct trace *t, enum trace_map map, trace_entry_fn fn, void *userdata)
{
    static const size_t key_sizes[] = {
        [TRACE_HOLDS] = sizeof(struct trace_hold_key),
        [TRACE_PUBLISHERS] = sizeof(uint64_t),
        [TRACE_BELLS] = sizeof(struct trace_bell_key),
    };
    const struct bpf_map *maps[] = {
        [TRACE_HOLDS] = t->bpf->maps.holds,
        [TRACE_PUBLISHERS] = t->bpf->maps.publishers,
        [TRACE_BELLS] = t->bpf->maps.bells,
    };
    /* By batches, since the next key of one that was deleted meanwhile is the first one again. */
    const size_t value_size = bpf_map__value_size(maps[map]);
    char *keys = malloc(BATCH * key_sizes[map]), *values = malloc(BATCH * value_size);
    uint32_t at, n = BATCH, *before = NULL;
    int r = keys && values ? 0 : -ENOMEM;
    for (; r == 0; before = &at, n = BATCH) {
        r = bpf_map_lookup_batch(bpf_map__fd(maps[map]), before, &at, keys, values, &n, NULL);
        for (uint32_t i = 0; (r == 0 || r == -ENOENT) && i < n; i++)
            fn(keys + i * key_sizes[map], values + i * value_size, userdata);
    }
    free(keys);
    free(values);
    errno = -r;
    if (r == -ENOENT) /* the end */
        return 0;
    return r == -ENOMEM ? DLX_E_NO_MEMORY : DLX_E_SYSTEM;
}

void trace_forget_hold(struct trace *t, const struct trace_hold_key *key)
{
    (void)bpf_map__delete_elem(t->bpf->maps.holds, key, sizeof *key, 0);
}

void trace_lacks(const struct trace *t, uint64_t ret[TRACE_N_LACKS])
{
    for (uint32_t i = 0; i < TRACE_N_LACKS; i++)
        if (bpf_map__lookup_elem(t->bpf->maps.lacks, &i, sizeof i, &ret[i], sizeof ret[i], 0) != 0)
            ret[i] = 0;
}

#endif
