/* SPDX-License-Identifier: Apache-2.0 */
/* E1, E5, E2: what a killed exporter leaves, when a killed consumer's kernel has stored for the
 * last time, and what read-only means. */
#include "tests/gpu/facts/facts.h"

#if DLX_TEST_HAS_GPU

#define MIB ((double)DLX_TEST_GPU_MIB)

/* A role is ready, and opens the memory whose descriptor it is then sent. */
static CUresult open_sent(struct facts_memory *ret, int sock, CUmemAccess_flags flags)
{
    int fd;
    facts_say(sock, (struct facts_word){0}, -1);
    (void)facts_hear(sock, &fd);
    CUresult r = facts_open(ret, fd, FACTS_SIZE, flags);
    (void)close(fd);
    return r;
}

/* Starts such a role, and returns the first word that follows. */
static struct facts_word start_and_send(struct dlx_test_gpu_peer *ret, void (*role)(int sock),
                                        int borrow_fd)
{
    *ret = dlx_test_gpu_start(role);
    (void)facts_hear(ret->sock, NULL);
    facts_say(ret->sock, (struct facts_word){.op = FACTS_GO}, borrow_fd);
    return facts_hear(ret->sock, NULL);
}

static void import(int sock)
{
    struct facts_memory memory;
    dlx_test_gpu_context(0);
    CUresult r = open_sent(&memory, sock, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    facts_say(sock, (struct facts_word){.result = (int32_t)r}, -1);
    facts_serve(sock, memory.at, r == CUDA_SUCCESS ? FACTS_SIZE : 0);
}

/* The code of what failed, or of the memory that was read. */
static struct facts_word import_and_read(struct dlx_test_gpu_peer *peer, int fd)
{
    struct facts_word w = start_and_send(peer, import, fd);
    return w.result ? w : facts_ask(peer, FACTS_WRONG, 1);
}

/* 0: another process has the device open; 1: none has, which may end the device's instance. */
LOOP_TEST(E1_exporter_killed, 0, 2)
{
    struct dlx_test_gpu_peer observer = {0}, importer;
    uint64_t before = 0, held = 0, after = 0;
    double back_ms = -1;
    int fd;
    if (_i == 0) {
        observer = facts_observer();
        before = facts_ask(&observer, FACTS_FREE, 0).a;
    }
    struct dlx_test_gpu_peer exporter = facts_start_exporter(&fd);
    dlx_test_gpu_kill(&exporter);
    if (_i == 0) /* nearly all: the exporter's context has to go */
        held = facts_ask(&observer, FACTS_AWAIT_FREE, before - FACTS_SIZE - DLX_TEST_GPU_SLACK).b;
    struct facts_word read = import_and_read(&importer, fd);
    (void)close(fd);
    struct facts_word again = read.result ? read : facts_ask(&importer, FACTS_WRONG, 1);
    facts_end(&importer);
    uint64_t start = dlx__now_ns();
    if (_i == 0) {
        after = facts_ask(&observer, FACTS_AWAIT_FREE, before - DLX_TEST_GPU_SLACK).a;
        back_ms = after ? facts_ms(start, after) : -1;
        facts_end(&observer);
    }
    bool survives = read.result == 0 && read.a == 0;
    facts_answer("E1 exporter killed while a process without CUDA holds the descriptor, %s: memory "
                 "survives: %s (import %s, %lld words wrong); the mapping outlives the "
                 "descriptor: %s%s",
                 _i ? "no process has the device open" : "another process has the device open",
                 facts_yes(survives), facts_code(read.result), (long long)read.a,
                 facts_yes(again.result == 0 && again.a == 0), _i ? "" : "; see the next line");
    if (_i == 0)
        facts_answer("E1 memory: the descriptor alone held %.1f MiB; free again after the last "
                     "process: %s (%.1f ms)",
                     ((double)before - (double)held) / MIB, facts_yes(after != 0), back_ms);
}

static void spin_in_imported(int sock)
{
    struct facts_memory m;
    CUstream stream;
    dlx_test_gpu_context(0);
    dlx_test_gpu_kernels_load();
    CU_OK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CU_OK(open_sent(&m, sock, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    dlx_test_gpu_spin(stream, m.at, UINT64_C(3000000000));
    facts_say(sock, (struct facts_word){0}, -1);
    (void)facts_hear(sock, NULL);
}

TEST(E5_consumer_killed_in_a_kernel)
{
    int fd;
    struct dlx_test_gpu_peer observer = facts_observer();
    struct dlx_test_gpu_peer exporter = facts_start_exporter(&fd);
    uint64_t before = facts_ask(&observer, FACTS_FREE, 0).a;
    struct dlx_test_gpu_peer consumer;
    (void)start_and_send(&consumer, spin_in_imported, fd);
    ck_assert_uint_gt(facts_ask(&exporter, FACTS_WATCH, 0).b, 0);
    facts_say(observer.sock,
              (struct facts_word){.op = FACTS_AWAIT_FREE, .a = before - DLX_TEST_GPU_SLACK}, -1);
    uint64_t start = dlx__now_ns();
    dlx_test_gpu_kill(&consumer);
    uint64_t reaped = dlx__now_ns();
    struct facts_word last = facts_hear(exporter.sock, NULL);
    struct facts_word freed = facts_hear(observer.sock, NULL);
    double last_ms = last.b ? facts_ms(start, last.a) : -1;
    facts_answer("E5 consumer killed inside a kernel: its death is seen after %.1f ms, the last "
                 "store of its kernel after %.1f ms (%llu seen), so a store can follow the death: "
                 "%s; its memory is free after %.1f ms; the exporter's context: %s",
                 facts_ms(start, reaped), last_ms, (unsigned long long)last.b,
                 last.b && last.a > reaped ? "YES" : "not seen",
                 freed.a ? facts_ms(start, freed.a) : -1,
                 facts_code(facts_ask(&exporter, FACTS_HEALTH, 0).result));
    (void)close(fd);
    facts_end(&exporter);
    facts_end(&observer);
}

enum { BY_MEMSET, BY_COPY, BY_KERNEL, BY_RAISED_ACCESS, N_WAYS };
static const char *const ways[] = {"memset", "copy", "kernel", "kernel after raising the access"};
static int way;

static void write_read_only(int sock)
{
    static const uint32_t words[1024];
    struct facts_memory m;
    CUmemAccessDesc write = dlx_test_gpu_access(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CUresult call = CUDA_SUCCESS, read;
    dlx_test_gpu_context(0);
    dlx_test_gpu_kernels_load();
    CU_OK(open_sent(&m, sock, CU_MEM_ACCESS_FLAGS_PROT_READ));
    uint64_t n_wrong = facts_count_wrong(m.at, m.size, 1, &read);
    if (way == BY_RAISED_ACCESS)
        call = cu.cuMemSetAccess(m.at, m.size, &write, 1);
    if (way == BY_MEMSET)
        call = cu.cuMemsetD32(m.at, 0xdeadbeef, 1024);
    else if (way == BY_COPY)
        call = cu.cuMemcpyHtoD(m.at, words, sizeof words);
    else if (call == CUDA_SUCCESS)
        dlx_test_gpu_store(NULL, m.at, 1024, 99);
    CUresult done = cu.cuCtxSynchronize();
    facts_say(
        sock,
        (struct facts_word){.result = (int32_t)call, .a = done, .b = facts_health(), .c = n_wrong},
        -1);
    (void)facts_hear(sock, NULL);
}

TEST(E2_writes_through_a_read_only_mapping)
{
    char text[900];
    size_t n = 0;
    int fd;
    uint64_t n_changed = 0;
    struct dlx_test_gpu_peer exporter = facts_start_exporter(&fd);
    for (way = 0; way < N_WAYS; way++) {
        struct dlx_test_gpu_peer peer;
        struct facts_word w = start_and_send(&peer, write_read_only, fd);
        uint64_t now = facts_ask(&exporter, FACTS_WRONG, 1).a;
        n += (size_t)snprintf(text + n, sizeof text - n,
                              "; %s: call %s, then %s, context %s, read before: %s, memory %s",
                              ways[way], facts_code(w.result), facts_code((int64_t)w.a),
                              w.b ? "dead" : "sound", facts_yes(w.c == n_changed),
                              now == n_changed ? "unchanged" : "CHANGED");
        n_changed = now;
        dlx_test_gpu_kill(&peer);
    }
    facts_answer("E2 a mapping with PROT_READ keeps its importer from writing: see each%s; the "
                 "exporter's context afterwards: %s",
                 text, facts_code(facts_ask(&exporter, FACTS_HEALTH, 0).result));
    (void)close(fd);
    dlx_test_gpu_kill(&exporter);
}

#endif
