/* SPDX-License-Identifier: Apache-2.0 */
/* E7, E4: what a handle needs of the process that opens it, and of the one that made it. */
#include "tests/gpu/facts/facts.h"

#if DLX_TEST_HAS_GPU
#include <grp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>

#define LAZY CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS

struct handles {
    CUipcMemHandle memory, interior, small;
    int64_t to_neighbour; /* bytes from the small allocation to the next one, which has NEIGHBOUR */
    CUipcEventHandle event;
    int32_t interior_result, own_result;
};

#define NEIGHBOUR 0x5eedU

static void export_small(struct handles *ret)
{
    CUdeviceptr small, next;
    CU_OK(cu.cuMemAlloc(&small, 4096));
    CU_OK(cu.cuMemAlloc(&next, 4096));
    dlx_test_gpu_fill(next, 4096, NEIGHBOUR);
    ret->to_neighbour = (int64_t)(next - small);
    CU_OK(cu.cuIpcGetMemHandle(&ret->small, small));
}

/* Sends all kinds of handles: the descriptor is of VMM memory. */
static void export_all(int sock)
{
    struct facts_memory vmm;
    struct handles h;
    CUdeviceptr at, again;
    CUevent event;
    memset(&h, 0, sizeof h);
    dlx_test_gpu_context(0);
    int fd = facts_make(&vmm, FACTS_SIZE);
    CU_OK(cu.cuMemAlloc(&at, FACTS_SIZE));
    dlx_test_gpu_store(NULL, at, FACTS_SIZE / 4, 1);
    CU_OK(cu.cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    CU_OK(cu.cuEventRecord(event, NULL));
    CU_OK(cu.cuCtxSynchronize());
    CU_OK(cu.cuIpcGetMemHandle(&h.memory, at));
    CU_OK(cu.cuIpcGetEventHandle(&h.event, event));
    export_small(&h);
    h.interior_result = (int32_t)cu.cuIpcGetMemHandle(&h.interior, at + DLX_TEST_GPU_MIB);
    h.own_result = (int32_t)cu.cuIpcOpenMemHandle(&again, h.memory, LAZY);
    dlx_test_gpu_send(sock, &h, sizeof h, fd);
    (void)close(fd);
    facts_serve(sock, at, FACTS_SIZE);
}

enum { NEW_PID = 1, NOBODY = 2, NEW_SHM = 4, NEW_PROC = 8 };
static const struct {
    const char *name;
    unsigned flags;
} places[] = {
    {"as the exporter", 0},
    {"in another pid namespace", NEW_PID | NEW_PROC},
    {"in another pid namespace with the exporter's /proc", NEW_PID},
    {"as user 65534", NOBODY},
    {"with another /dev/shm", NEW_SHM},
    {"with all of that", NEW_PID | NEW_PROC | NOBODY | NEW_SHM},
};
static unsigned place;

static bool mount_new(const char *type, const char *at, const char *options)
{
    return unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount(type, at, type, 0, options) == 0;
}

/* 0 in a process that is there; else the errno of what was refused. */
static int go_there(void)
{
    const uid_t nobody = 65534;
    if ((place & NEW_SHM) && !mount_new("tmpfs", "/dev/shm", "mode=1777"))
        return errno;
    if (place & NEW_PID) {
        if (unshare(CLONE_NEWPID) != 0)
            return errno;
        pid_t pid = fork();
        int status = 0;
        if (pid < 0)
            return errno;
        if (pid > 0) {
            (void)waitpid(pid, &status, 0);
            _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
        }
    }
    if ((place & NEW_PROC) && !mount_new("proc", "/proc", NULL))
        return errno;
    if ((place & NOBODY) && (setgroups(0, NULL) != 0 || setresgid(nobody, nobody, nobody) != 0 ||
                             setresuid(nobody, nobody, nobody) != 0))
        return errno;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    return 0;
}

/* Answers result: of cuInit and a context; a to d: of VMM, older interface, event, waiting. */
static void open_there(int sock)
{
    struct handles h;
    struct facts_memory vmm;
    struct facts_word w = {0};
    CUcontext context;
    CUdeviceptr at;
    CUevent event;
    int refused = go_there();
    facts_say(sock, (struct facts_word){.result = refused}, -1);
    if (refused)
        return;
    int fd = dlx_test_gpu_receive(sock, &h, sizeof h);
    CUresult r = cu.cuInit(0);
    if (r == CUDA_SUCCESS)
        r = cu.cuDevicePrimaryCtxRetain(&context, 0);
    if (r == CUDA_SUCCESS)
        r = cu.cuCtxSetCurrent(context);
    w.result = (int32_t)r;
    if (r == CUDA_SUCCESS) {
        w.a = facts_open(&vmm, fd, FACTS_SIZE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        w.b = cu.cuIpcOpenMemHandle(&at, h.memory, LAZY);
        w.c = cu.cuIpcOpenEventHandle(&event, h.event);
        w.d = w.c == CUDA_SUCCESS ? cu.cuStreamWaitEvent(NULL, event, 0) : w.c;
    }
    facts_say(sock, w, -1);
    if (place & NEW_PID)
        _exit(0); /* LeakSanitizer would look for its threads in the /proc of another namespace */
}

TEST(E7_importers_in_other_namespaces)
{
    char text[1100];
    size_t n = 0;
    struct handles h;
    struct dlx_test_gpu_peer exporter = dlx_test_gpu_start(export_all);
    int fd = dlx_test_gpu_receive(exporter.sock, &h, sizeof h);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        place = places[i].flags;
        struct dlx_test_gpu_peer peer = dlx_test_gpu_start(open_there);
        struct facts_word w = facts_hear(peer.sock, NULL);
        n += (size_t)snprintf(text + n, sizeof text - n, "; %s: ", places[i].name);
        if (w.result) {
            n += (size_t)snprintf(text + n, sizeof text - n, "not tried (%s)", strerror(w.result));
        } else {
            dlx_test_gpu_send(peer.sock, &h, sizeof h, fd);
            w = facts_hear(peer.sock, NULL);
            n += w.result ? (size_t)snprintf(text + n, sizeof text - n, "no GPU (%s)",
                                             facts_code(w.result))
                          : (size_t)snprintf(text + n, sizeof text - n,
                                             "VMM %s, cuIpc memory %s, event %s",
                                             facts_code((int64_t)w.a), facts_code((int64_t)w.b),
                                             facts_code((int64_t)w.d));
        }
        dlx_test_gpu_join(&peer);
    }
    facts_answer("E7 handles opened%s", text + 1);
    (void)close(fd);
    facts_end(&exporter);
}

/* Can a process that opens an allocation read the one beside it, which was not shared? */
static bool reads_neighbour(const struct handles *h)
{
    CUdeviceptr small;
    uint32_t word = 0;
    return cu.cuIpcOpenMemHandle(&small, h->small, LAZY) == CUDA_SUCCESS &&
           cu.cuMemcpyDtoH(&word, small + (uint64_t)h->to_neighbour, sizeof word) == CUDA_SUCCESS &&
           word == NEIGHBOUR;
}

/* Answers result: of the open; then whether a second one gives the same pointer. */
static void open_twice(int sock)
{
    struct handles h;
    CUdeviceptr at = 0, again = 0;
    struct facts_word w = {0};
    (void)dlx_test_gpu_receive(sock, &h, sizeof h);
    dlx_test_gpu_context(0);
    w.result = (int32_t)cu.cuIpcOpenMemHandle(&at, h.memory, LAZY);
    if (w.result == 0) {
        w.a = cu.cuIpcOpenMemHandle(&again, h.memory, LAZY);
        w.b = again == at;
        w.c = w.a == CUDA_SUCCESS ? cu.cuIpcCloseMemHandle(again) : w.a;
        w.d = reads_neighbour(&h);
    }
    facts_say(sock, w, -1);
    facts_serve(sock, at, FACTS_SIZE);
}

static struct facts_word start_opener(struct dlx_test_gpu_peer *ret, const struct handles *h)
{
    *ret = dlx_test_gpu_start(open_twice);
    dlx_test_gpu_send(ret->sock, h, sizeof *h, -1);
    return facts_hear(ret->sock, NULL);
}

TEST(E4_older_handles_after_the_exporter)
{
    struct handles h;
    struct dlx_test_gpu_peer importer, late, later;
    struct dlx_test_gpu_peer exporter = dlx_test_gpu_start(export_all);
    int fd = dlx_test_gpu_receive(exporter.sock, &h, sizeof h);
    (void)close(fd);
    struct facts_word opened = start_opener(&importer, &h);
    ck_assert_int_eq(opened.result, 0);
    struct facts_word alive = facts_ask(&importer, FACTS_WRONG, 1);
    dlx_test_gpu_kill(&exporter);
    struct facts_word dead = facts_ask(&importer, FACTS_WRONG, 1);
    struct facts_word health = facts_ask(&importer, FACTS_HEALTH, 0);
    struct facts_word second = start_opener(&late, &h);
    dlx_test_gpu_kill(&late);
    dlx_test_gpu_kill(&importer);
    struct facts_word third = start_opener(&later, &h);
    dlx_test_gpu_kill(&later);
    facts_answer(
        "E4 cuIpc memory of a killed exporter: what is open is read: %s, %lld words wrong (before: "
        "%lld), context %s; opened while another importer has it: %s; when none has: %s; an "
        "interior pointer's handle: %s, %s the base's; opened by the exporter itself: %s; opened "
        "twice: %s, %s pointer, one close: %s; an allocation of 4 KiB, %lld bytes after one that "
        "is "
        "shared, can be read: %s",
        facts_code(dead.result), (long long)dead.a, (long long)alive.a, facts_code(health.result),
        facts_code(second.result), facts_code(third.result), facts_code(h.interior_result),
        memcmp(&h.memory, &h.interior, sizeof h.memory) == 0 ? "equals" : "differs from",
        facts_code(h.own_result), facts_code((int64_t)opened.a), opened.b ? "same" : "another",
        facts_code((int64_t)opened.c), (long long)h.to_neighbour, facts_yes(opened.d));
}

#endif
