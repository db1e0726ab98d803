/* SPDX-License-Identifier: Apache-2.0 */
/* E8, E9: two processes ordered by a word in a sealed page, and by an event; writers that die. */
#include "tests/gpu/facts/facts.h"

#if DLX_TEST_HAS_GPU
#include <sched.h>
#include <stdatomic.h>

#define PAGE     4096
#define N_ROUNDS 20
/* Waits compare cyclically: not so large that the difference changes its sign. */
#define NEVER   (UINT64_C(1) << 40)
#define WORK_NS UINT64_C(20000000)

/* For the roles: an event instead of a word; a page that its reader, too, may map for writing. */
static bool by_event, is_plain;

static CUresult sync_within(CUstream stream, uint64_t ns)
{
    uint64_t end = dlx__now_ns() + ns;
    CUresult r;
    while ((r = cu.cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY && dlx__now_ns() < end)
        (void)sched_yield();
    return r;
}

/* The page as this process may use it; 0 and the code of the call that failed. */
static CUdeviceptr register_page(int fd, bool may_write, CUresult *ret)
{
    CUdeviceptr at = 0;
    unsigned flags = CU_MEMHOSTREGISTER_DEVICEMAP;
    may_write |= is_plain;
    void *page =
        mmap(NULL, PAGE, may_write ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(page, MAP_FAILED);
    (void)close(fd);
    *ret =
        cu.cuMemHostRegister(page, PAGE, may_write ? flags : flags | CU_MEMHOSTREGISTER_READ_ONLY);
    if (*ret == CUDA_SUCCESS)
        *ret = cu.cuMemHostGetDevicePointer(&at, page, 0);
    return *ret == CUDA_SUCCESS ? at : 0;
}

/*
 * Both roles answer to FACTS_GO with a = round. The writer's: work, the pattern of that seed, then
 * the word or the event. The reader's: b = 0 enqueues a wait (for a word before it is written) and
 * a copy; b = 1 answers with what the copy has.
 */
static void write_rounds(int sock)
{
    struct facts_memory m;
    CUstream stream;
    CUevent event = NULL;
    CUipcEventHandle handle = {{0}};
    CUdeviceptr word = 0;
    CUresult r = CUDA_SUCCESS;
    int page;
    dlx_test_gpu_context(0);
    dlx_test_gpu_kernels_load();
    CU_OK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    int fd = facts_make(&m, FACTS_SIZE);
    (void)facts_hear(sock, &page);
    if (by_event) {
        CU_OK(cu.cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
        CU_OK(cu.cuIpcGetEventHandle(&handle, event));
        (void)close(page);
    } else {
        word = register_page(page, true, &r);
    }
    facts_say(sock, (struct facts_word){.result = (int32_t)r}, fd);
    dlx_test_gpu_send(sock, &handle, sizeof handle, -1);
    (void)close(fd);
    for (struct facts_word w; (w = facts_hear(sock, NULL)).op == FACTS_GO;) {
        dlx_test_gpu_spin(stream, 0, w.a < NEVER ? WORK_NS : 100 * WORK_NS);
        dlx_test_gpu_store(stream, m.at, 1024, (uint32_t)w.a);
        r = by_event ? cu.cuEventRecord(event, stream)
                     : cu.cuStreamWriteValue64(stream, word, w.a, CU_STREAM_WRITE_VALUE_DEFAULT);
        facts_say(sock, (struct facts_word){.result = (int32_t)r}, -1);
    }
}

static uint64_t wrong_words(const uint32_t *words, uint32_t seed)
{
    uint64_t n = 0;
    for (uint64_t i = 0; i < 1024; i++)
        n += words[i] != dlx_test_gpu_pattern(i, seed);
    return n;
}

struct reader {
    struct facts_memory m;
    CUstream stream, other;
    CUevent event;
    CUdeviceptr word;
    uint32_t *copy, *peek; /* the latter without waiting: shows that waiting matters */
};

static CUresult reader_open(struct reader *ret, int sock)
{
    CUipcEventHandle handle;
    CUresult r;
    int page, fd;
    CU_OK(cu.cuStreamCreate(&ret->stream, CU_STREAM_NON_BLOCKING));
    CU_OK(cu.cuStreamCreate(&ret->other, CU_STREAM_NON_BLOCKING));
    CU_OK(cu.cuMemHostAlloc((void **)&ret->copy, PAGE, 0));
    CU_OK(cu.cuMemHostAlloc((void **)&ret->peek, PAGE, 0));
    (void)facts_hear(sock, &page);
    fd = dlx_test_gpu_receive(sock, &handle, sizeof handle);
    CU_OK(facts_open(&ret->m, fd, FACTS_SIZE, CU_MEM_ACCESS_FLAGS_PROT_READ));
    (void)close(fd);
    if (!by_event) {
        ret->word = register_page(page, false, &r);
        return r;
    }
    (void)close(page);
    return cu.cuIpcOpenEventHandle(&ret->event, handle);
}

static CUresult reader_wait(struct reader *reader, uint64_t round)
{
    CUresult r = by_event ? cu.cuStreamWaitEvent(reader->stream, reader->event, 0)
                          : cu.cuStreamWaitValue64(reader->stream, reader->word, round,
                                                   CU_STREAM_WAIT_VALUE_GEQ);
    if (r == CUDA_SUCCESS)
        r = cu.cuMemcpyDtoHAsync(reader->copy, reader->m.at, PAGE, reader->stream);
    return r;
}

static void read_rounds(int sock)
{
    struct reader reader = {.word = 0};
    dlx_test_gpu_context(0);
    CUresult r = reader_open(&reader, sock);
    facts_say(sock, (struct facts_word){.result = (int32_t)r}, -1);
    for (struct facts_word w; (w = facts_hear(sock, NULL)).op == FACTS_GO;) {
        if (w.b == 0) {
            r = reader_wait(&reader, w.a);
        } else {
            CU_OK(cu.cuMemcpyDtoHAsync(reader.peek, reader.m.at, PAGE, reader.other));
            CU_OK(cu.cuStreamSynchronize(reader.other));
            w.b = wrong_words(reader.peek, (uint32_t)w.a);
            r = sync_within(reader.stream, UINT64_C(6000000000));
            w.a = wrong_words(reader.copy, (uint32_t)w.a);
        }
        w.result = (int32_t)r;
        facts_say(sock, w, -1);
    }
}

struct duet {
    struct dlx_test_gpu_peer writer, reader;
    _Atomic uint64_t *page; /* this process's mapping of it, from before it was sealed */
    int32_t writer_result, reader_result;
};

static void duet_start(struct duet *ret)
{
    CUipcEventHandle handle;
    char path[64];
    int fd = memfd_create("gpu_facts", MFD_CLOEXEC | MFD_ALLOW_SEALING), memory, read_only;
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, PAGE), 0);
    void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(page, MAP_FAILED);
    ret->page = page;
    ret->writer = dlx_test_gpu_start(write_rounds);
    ret->reader = dlx_test_gpu_start(read_rounds);
    facts_say(ret->writer.sock, (struct facts_word){.op = FACTS_GO}, fd);
    struct facts_word w = facts_hear(ret->writer.sock, &memory);
    (void)dlx_test_gpu_receive(ret->writer.sock, &handle, sizeof handle);
    ret->writer_result = w.result;
    int seals = F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, is_plain ? 0 : seals), 0);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    read_only = open(path, (is_plain ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    ck_assert_int_ge(read_only, 0);
    facts_say(ret->reader.sock, (struct facts_word){.op = FACTS_GO}, read_only);
    dlx_test_gpu_send(ret->reader.sock, &handle, sizeof handle, memory);
    (void)close(fd);
    (void)close(read_only);
    (void)close(memory);
    ret->reader_result = facts_hear(ret->reader.sock, NULL).result;
}

static struct facts_word reader_ask(struct duet *duet, uint64_t round, uint64_t is_end)
{
    facts_say(duet->reader.sock, (struct facts_word){.op = FACTS_GO, .a = round, .b = is_end}, -1);
    return facts_hear(duet->reader.sock, NULL);
}

struct order {
    int32_t result;
    unsigned n_right, n_stale;
};

/* A wait for a word comes before its write, that for an event after its record. */
static struct order duet_play(struct duet *duet)
{
    struct order order = {0};
    for (uint64_t round = 1; round <= N_ROUNDS && order.result == 0; round++) {
        if (!by_event)
            order.result = reader_ask(duet, round, 0).result;
        if (order.result == 0)
            order.result = facts_ask(&duet->writer, FACTS_GO, round).result;
        if (order.result == 0 && by_event)
            order.result = reader_ask(duet, round, 0).result;
        if (order.result != 0)
            break;
        struct facts_word w = reader_ask(duet, round, 1);
        order.result = w.result;
        order.n_right += w.result == 0 && w.a == 0;
        order.n_stale += w.b > 0;
    }
    return order;
}

static bool duet_can_wait(struct duet *duet, const char *question)
{
    if (duet->writer_result == 0 && duet->reader_result == 0)
        return true;
    facts_answer("%s: NO (writer %s, reader %s)", question, facts_code(duet->writer_result),
                 facts_code(duet->reader_result));
    dlx_test_gpu_kill(&duet->reader);
    dlx_test_gpu_kill(&duet->writer);
    return false;
}

static bool orders(const struct order *order)
{
    return order->result == 0 && order->n_right == N_ROUNDS && order->n_stale > 0;
}

/* 0: a sealed page, which the reader maps read-only; 1: neither. */
LOOP_TEST(E8_a_word_in_a_page, 0, 2)
{
    const char *question = _i ? "E8 streams wait for a word in a page that both may write"
                              : "E8 streams wait for a word in a sealed page, mapped read-only";
    struct duet duet;
    by_event = false;
    is_plain = _i == 1;
    duet_start(&duet);
    if (!duet_can_wait(&duet, question))
        return;
    struct order order = duet_play(&duet);
    struct facts_word wait = reader_ask(&duet, NEVER, 0);
    dlx_test_gpu_kill(&duet.writer);
    uint64_t start = dlx__now_ns();
    atomic_store(duet.page, NEVER);
    struct facts_word end = reader_ask(&duet, NEVER, 1);
    facts_answer("%s: %s (%u of %d copies right, %u stale without waiting, %s); another process's "
                 "store ends a dead writer's wait: %s (%s, %s, %.1f ms)",
                 question, facts_yes(orders(&order)), order.n_right, N_ROUNDS, order.n_stale,
                 facts_code(order.result), facts_yes(wait.result == 0 && end.result == 0),
                 facts_code(wait.result), facts_code(end.result), facts_ms(start, dlx__now_ns()));
    dlx_test_gpu_kill(&duet.reader);
}

TEST(E9_events_between_processes)
{
    struct duet duet;
    by_event = true;
    duet_start(&duet);
    if (!duet_can_wait(&duet, "E9 streams wait for another process's event"))
        return;
    struct order order = duet_play(&duet);
    struct facts_word record = facts_ask(&duet.writer, FACTS_GO, NEVER); /* behind 2 s of work */
    struct facts_word wait = reader_ask(&duet, NEVER, 0);
    dlx_test_gpu_kill(&duet.writer);
    uint64_t start = dlx__now_ns();
    struct facts_word end = reader_ask(&duet, NEVER, 1);
    facts_answer("E9 streams wait for another process's event: %s (%u of %d copies right, %u stale "
                 "without waiting, %s); a wait for a record that its killed process had not "
                 "reached ends: %s (%s, %s, %s, %.1f ms)",
                 facts_yes(orders(&order)), order.n_right, N_ROUNDS, order.n_stale,
                 facts_code(order.result), facts_yes(end.result == 0), facts_code(record.result),
                 facts_code(wait.result), facts_code(end.result), facts_ms(start, dlx__now_ns()));
    dlx_test_gpu_kill(&duet.reader);
}

static void count_events(int sock)
{
    enum { MOST = 4000 };
    struct facts_word w = {0};
    dlx_test_gpu_context(0);
    for (uint64_t end = dlx__now_ns() + UINT64_C(15000000000);
         w.a < MOST && w.result == 0 && dlx__now_ns() < end;) {
        CUevent event;
        CUipcEventHandle handle;
        CUresult r = cu.cuEventCreate(&event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
        if (r == CUDA_SUCCESS)
            r = cu.cuIpcGetEventHandle(&handle, event);
        w.result = (int32_t)r;
        w.a += r == CUDA_SUCCESS;
    }
    facts_say(sock, w, -1);
    (void)facts_hear(sock, NULL);
}

TEST(E9_number_of_events)
{
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(count_events);
    struct facts_word w = facts_hear(peer.sock, NULL);
    facts_answer("E9 events between processes that one process can have: %s%llu (%s)",
                 w.result ? "" : "at least ", (unsigned long long)w.a, facts_code(w.result));
    dlx_test_gpu_kill(&peer);
}

#endif
