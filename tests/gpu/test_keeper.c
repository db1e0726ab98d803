/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU keeper on the stand-in driver, spoken to as the daemon does. */
#include "tests/gpu/harness_gpu_machine.h"
#include "tests/harness/daemon.h"
#include "tests/harness/fork.h"
#include "tests/harness/keeper.h"
#include "tests/harness/patience.h"
#include "tests/harness/user.h"
#include <dlpack/dlpack.h>
#include <sys/resource.h>

#if DLX_TEST_HAS_GPU

#define AN_HOUR UINT64_C(3600000000000)
#define MIB     DLX_TEST_GPU_MIB
#define CHUNK   ((uint64_t)DLX_TEST_GPU_CHUNK)
#define ALICE   UINT64_C(1000)
#define BOB     UINT64_C(1001)
#define CAROL   UINT64_C(1002)
#define DAVE    UINT64_C(1003)

static struct dlx_test_keeper keeper;
static struct dlxk_options options;
static struct dlx_gpu_handle made, got;
/* Publishers' processes, by the last digit of their origins. */
static struct dlx_test_keeper_process processes[10];

/* With other options, limits or environment. The test itself has not called the driver yet. */
static void restart(void)
{
    dlx_test_keeper_kill(&keeper);
    dlx_test_keeper_start(&keeper, &options);
}

/* The first calls of that name fail. */
static void restart_failing(const char *call, uint64_t n, CUresult code)
{
    ck_assert(standin.standin_fail(call, 1, n, code));
    restart();
    (void)standin.standin_fail_clear(); /* in this process */
}

static void setup(void)
{
    const char *uuids =
        "GPU-00112233-4455-6677-8899-aabbccddee00,GPU-00112233-4455-6677-8899-aabbccddee01";
    ck_assert_int_eq(setenv("STANDIN_UUIDS", uuids, 1), 0);
    ck_assert_int_eq(unsetenv("CUDA_VISIBLE_DEVICES"), 0);
    dlx_test_gpu_machine(2);
    dlx_test_gpu_load();
    keeper.device =
        (struct dlx_keeper_device){.type = dlx_test_gpu_type(),
                                   .uuid = {0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88,
                                            0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0x00}};
    options = (struct dlxk_options){.grace_ns = AN_HOUR};
    restart();
}

static void teardown(void)
{
    dlx_test_keeper_kill(&keeper);
    dlx__gpu_handle_deinit(&made);
    dlx__gpu_handle_deinit(&got);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(processes); i++)
        if (processes[i].pid > 0)
            dlx_test_keeper_process_end(&processes[i]);
    dlx_test_gpu_machine_end();
}

static int process_of(uint64_t origin)
{
    struct dlx_test_keeper_process *process = &processes[origin % DLX_ARRAY_SIZE(processes)];
    if (process->pid == 0)
        *process = dlx_test_keeper_process();
    return process->fd;
}

static void end_process(uint64_t origin)
{
    struct dlx_test_keeper_process *process = &processes[origin % DLX_ARRAY_SIZE(processes)];
    dlx_test_keeper_process_end(process);
    process->pid = 0;
}

static int allocate(uint64_t origin, uint64_t user, uint64_t id, uint64_t n_bytes)
{
    return dlx_test_keeper_allocate(&keeper, origin, user, id, n_bytes, process_of(origin), &made);
}

static int get(uint64_t origin, uint64_t user, uint64_t id)
{
    return dlx_test_keeper_get(&keeper, origin, user, id, &got);
}

#define answers(call) ck_assert_msg((call) == 0, "%s: %s", #call, keeper.text)
#define refuses(call, code, words)                                                                 \
    do {                                                                                           \
        ck_assert_int_eq(call, code);                                                              \
        contains(keeper.text, words);                                                              \
    } while (0)

static void is_cut_off(int sock)
{
    struct pollfd end = {.fd = sock, .events = POLLRDHUP};
    ck_assert_int_eq(poll(&end, 1, PATIENCE_MS), 1);
    ck_assert(end.revents & (POLLHUP | POLLRDHUP));
}

/* How many files the keeper has open, when it has done all that was said before. */
static size_t n_files(void)
{
    const struct dlx_test_daemon process = {.pid = keeper.pid, .path = ""};
    ck_assert_int_eq(get(9999, ALICE, 1), DLX_E_NOT_FOUND);
    return dlx_test_daemon_n_fds(&process);
}

/* ---- allocations ----------------------------------------------------------------------------- */

static CUdeviceptr map(const struct dlx_gpu_handle *handle)
{
    CUmemGenericAllocationHandle imported;
    CU_OK(cu.cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)handle->chunks[0].fd,
                                            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    CUdeviceptr at = dlx_test_gpu_map(imported, handle->size, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CU_OK(cu.cuMemRelease(imported));
    return at;
}

TEST(memory_is_made_without_a_context_and_given_to_all_who_ask)
{
    answers(allocate(1, ALICE, 7, 3 * MIB));
    ck_assert_uint_eq(made.id, 7);
    ck_assert_uint_eq(made.size, 2 * CHUNK);
    ck_assert_int_eq(memcmp(made.device.bytes, keeper.device.uuid, 16), 0);
    ck_assert_uint_eq(keeper.n_kept, 1); /* before the answer */
    ck_assert_uint_eq(keeper.kept.origin, 1);
    ck_assert_uint_eq(keeper.kept.user, ALICE);
    ck_assert_uint_eq(keeper.kept.number, 2 * CHUNK);
    answers(get(1, ALICE, 7));
    ck_assert(dlx_test_keeper_same(&made, &got));
    ck_assert_uint_eq(keeper.n_kept, 1);

    (void)dlx_test_gpu_context(0);
    ck_assert_uint_eq(standin.standin_count_of(keeper.pid, STANDIN_CONTEXTS_MADE), 0);
    ck_assert_uint_eq(standin.standin_count_of(keeper.pid, STANDIN_HANDLES), 0);
    CUdeviceptr publisher = map(&made), reader = map(&got);
    dlx_test_keeper_kill(&keeper); /* whoever has the memory open keeps it */
    dlx_test_gpu_fill(publisher, 2 * CHUNK, 42);
    ck_assert_uint_eq(dlx_test_gpu_word(reader + 2 * CHUNK - 4), 42);
    dlx_test_gpu_unmap(publisher, 2 * CHUNK);
    dlx_test_gpu_unmap(reader, 2 * CHUNK);
    dlx__gpu_handle_deinit(&made);
    dlx__gpu_handle_deinit(&got);
    dlx_test_gpu_end_context(0);
}

TEST(the_gpu_is_chosen_by_its_uuid)
{
    CUmemGenericAllocationHandle imported;
    ck_assert_int_eq(setenv("CUDA_VISIBLE_DEVICES", "1,0", 1), 0);
    restart();
    answers(allocate(1, ALICE, 1, CHUNK));
    keeper.device.uuid[15] = 1;
    answers(dlx_test_keeper_allocate(&keeper, 1, ALICE, 2, CHUNK, process_of(1), &got));
    ck_assert_int_eq(setenv("CUDA_VISIBLE_DEVICES", "1", 1), 0);
    CU_OK(cu.cuInit(0));
    const struct dlx_gpu_handle *handles[] = {&made, &got};
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(
            cu.cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)handles[i]->chunks[0].fd,
                                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            i == 0 ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS);
    CU_OK(cu.cuMemRelease(imported));
}

/* A wrong origin reaches what is one's own. */
TEST(each_publisher_has_memory_of_its_own)
{
    const uint64_t pods_alice = UINT64_C(5) << 32 | ALICE; /* by another socket of the daemon */
    static const struct {
        uint64_t origin, user, n_chunks;
    } rows[] = {{1, ALICE, 1}, {1, BOB, 2}, {1, UINT64_C(5) << 32 | ALICE, 3}, {2, ALICE, 4}};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(rows); i++) {
        answers(allocate(rows[i].origin, rows[i].user, 7, rows[i].n_chunks * CHUNK));
        ck_assert_uint_eq(keeper.kept.number, rows[i].n_chunks * CHUNK);
    }
    for (size_t i = 0; i < DLX_ARRAY_SIZE(rows); i++) {
        answers(get(rows[i].origin, rows[i].user, 7));
        ck_assert_uint_eq(got.size, rows[i].n_chunks * CHUNK);
    }
    refuses(get(2, BOB, 7), DLX_E_NOT_FOUND, "does not have allocation 7 of this publisher");
    refuses(get(2, pods_alice, 7), DLX_E_NOT_FOUND, "allocation 7");
    refuses(get(1, ALICE, 8), DLX_E_NOT_FOUND, "allocation 8");
}

TEST(freed_memory_is_gone)
{
    size_t before = n_files();
    answers(allocate(2, ALICE, 1, CHUNK));
    size_t driver_and_one = n_files();    /* the driver has opened files of its own */
    for (uint64_t id = 1; id <= 20; id++) /* in whatever order */
        answers(allocate(1, ALICE, id * 7 % 20 + 1, id * CHUNK));
    ck_assert_uint_eq(keeper.kept.number, 210 * CHUNK);
    ck_assert_uint_eq(n_files(), driver_and_one + 21);
    for (uint64_t id = 1; id <= 20; id++)
        answers(get(1, ALICE, id * 7 % 20 + 1));
    ck_assert_uint_eq(got.size, 20 * CHUNK);
    dlx_test_keeper_free(&keeper, 1, ALICE, 20 * 7 % 20 + 1);
    dlx_test_keeper_is_kept(&keeper, 1, ALICE, 190 * CHUNK);
    refuses(get(1, ALICE, 20 * 7 % 20 + 1), DLX_E_NOT_FOUND, "it was freed");
    dlx_test_keeper_free(&keeper, 1, ALICE, 21); /* nobody has these, and nothing is said */
    dlx_test_keeper_free(&keeper, 1, BOB, 1);
    dlx_test_keeper_free(&keeper, 1, BOB, 0);
    ck_assert_uint_eq(n_files(), driver_and_one + 20);
    dlx_test_keeper_free(&keeper, 1, ALICE, 0);
    dlx_test_keeper_is_kept(&keeper, 1, ALICE, 0);
    refuses(get(1, ALICE, 1), DLX_E_NOT_FOUND, "allocation 1");
    ck_assert_uint_eq(n_files(), driver_and_one);
    answers(allocate(1, ALICE, 1, CHUNK)); /* it begins anew */
    ck_assert_uint_eq(keeper.kept.number, CHUNK);
    dlx_test_keeper_free(&keeper, 1, ALICE, 1);
    dlx_test_keeper_is_kept(&keeper, 1, ALICE, 0);
    ck_assert_uint_eq(n_files(), driver_and_one);
    answers(get(2, ALICE, 1));
    ck_assert_uint_lt(before, driver_and_one);
}

TEST(an_id_is_used_once)
{
    answers(allocate(1, ALICE, 7, CHUNK));
    answers(get(1, ALICE, 7));
    refuses(dlx_test_keeper_allocate(&keeper, 1, ALICE, 7, CHUNK, process_of(1), &made),
            DLX_E_INVALID, "has allocation 7 of this publisher already");
    ck_assert_uint_eq(keeper.n_kept, 1);
    answers(get(1, ALICE, 7));
}

TEST(a_keeper_has_a_number_of_its_own)
{
    answers(allocate(1, ALICE, 7, CHUNK));
    uint64_t number = keeper.number;
    answers(get(1, ALICE, 7));
    ck_assert_uint_eq(keeper.number, number);
    restart();
    answers(allocate(1, ALICE, 7, CHUNK));
    ck_assert_uint_ne(keeper.number, number);
}

/* ---- how long -------------------------------------------------------------------------------- */

TEST(memory_that_the_daemon_claims_outlives_its_publisher_and_no_other)
{
    for (uint64_t origin = 1; origin <= 3; origin++)
        answers(allocate(origin, ALICE, 7, origin * CHUNK));
    end_process(1);
    end_process(2);
    answers(get(1, ALICE, 7));
    answers(get(2, ALICE, 7));
    dlx_test_keeper_connect(&keeper); /* another daemon, which has one of the two that are gone */
    answers(get(2, ALICE, 7));
    dlx_test_keeper_claim(&keeper, 1, ALICE);
    dlx_test_keeper_is_kept(&keeper, 1, ALICE, CHUNK); /* in answer to the claim */
    dlx_test_keeper_is_kept(&keeper, 2, ALICE, 0);
    answers(get(1, ALICE, 7));
    refuses(get(2, ALICE, 7), DLX_E_NOT_FOUND, "allocation 7");
    answers(get(3, ALICE, 7)); /* not claimed: it goes with its process now */
    end_process(3);
    dlx_test_keeper_is_kept(&keeper, 3, ALICE, 0);
    refuses(get(3, ALICE, 7), DLX_E_NOT_FOUND, "allocation 7");
    dlx_test_keeper_claim(&keeper, 1, BOB); /* of another user: nothing */
    answers(get(1, ALICE, 7));
    ck_assert_uint_eq(got.size, CHUNK);
}

/* The claims of the last daemon say nothing of those of the next one. */
TEST(a_publisher_that_ends_before_the_next_daemon_has_claimed_it_is_kept_for_it)
{
    answers(allocate(1, ALICE, 7, CHUNK));
    dlx_test_keeper_claim(&keeper, 1, ALICE);
    answers(get(1, ALICE, 7));
    dlx_test_keeper_connect(&keeper);
    answers(get(1, ALICE, 7));
    end_process(1);
    for (int i = 0; i < 3; i++)
        answers(get(1, ALICE, 7));
    dlx_test_keeper_claim(&keeper, 1, ALICE);
    dlx_test_keeper_is_kept(&keeper, 1, ALICE, CHUNK);
    answers(get(1, ALICE, 7));
}

/* It announces itself to the new daemon, perhaps in another process, and needs more memory. */
TEST(a_publisher_that_allocates_again_is_the_daemons_again)
{
    answers(allocate(1, ALICE, 7, CHUNK));
    dlx_test_keeper_connect(&keeper);
    dlx_test_keeper_claim(&keeper, 0, 0);
    answers(dlx_test_keeper_allocate(&keeper, 1, ALICE, 8, CHUNK, process_of(2), &made));
    ck_assert_uint_eq(keeper.kept.number, 2 * CHUNK);
    end_process(1);
    end_process(2);
    answers(get(1, ALICE, 7));
    dlx_test_keeper_connect(&keeper);
    dlx_test_keeper_claim(&keeper, 0, 0);
    dlx_test_keeper_is_kept(&keeper, 1, ALICE, 0);
}

TEST(without_a_daemon_memory_of_processes_that_ended_goes_after_a_while)
{
    options.grace_ns = 100000000;
    restart();
    answers(allocate(2, ALICE, 7, CHUNK));
    size_t n_two = n_files();
    answers(allocate(1, ALICE, 7, CHUNK));
    end_process(1);
    keeper.daemon = dlx__close(keeper.daemon);
    /* Publisher 2 is still there: it has two files, and the daemon's connection is gone. */
    const struct dlx_test_daemon process = {.pid = keeper.pid, .path = ""};
    dlx_test_daemon_wait_n_fds(&process, n_two - 1);
    dlx_test_keeper_connect(&keeper);
    dlx_test_keeper_claim(&keeper, 2, ALICE);
    answers(get(2, ALICE, 7));
    refuses(get(1, ALICE, 7), DLX_E_NOT_FOUND, "allocation 7");
    keeper.daemon = dlx__close(keeper.daemon);
    end_process(2);
    ck_assert_int_eq(dlx_test_keeper_wait(&keeper), 0);
}

TEST(a_keeper_does_not_end_while_a_daemon_or_memory_is_there)
{
    options.grace_ns = 1000000;
    restart();
    for (int i = 0; i < 20; i++) {
        ck_assert_int_eq(poll(NULL, 0, 1), 0);
        ck_assert_int_eq(get(1, ALICE, 7), DLX_E_NOT_FOUND);
    }
    answers(allocate(1, ALICE, 7, CHUNK));
    size_t n = n_files();
    keeper.daemon = dlx__close(keeper.daemon);
    const struct dlx_test_daemon process = {.pid = keeper.pid, .path = ""};
    dlx_test_daemon_wait_n_fds(&process, n - 1);
    for (int i = 0; i < 20; i++)
        ck_assert_int_eq(poll(NULL, 0, 1), 0);
    dlx_test_keeper_connect(&keeper);
    answers(get(1, ALICE, 7));
    dlx_test_keeper_free(&keeper, 1, ALICE, 0);
    keeper.daemon = dlx__close(keeper.daemon);
    ck_assert_int_eq(dlx_test_keeper_wait(&keeper), 0); /* the publisher's process lives */
}

/* ---- the daemon's connection ----------------------------------------------------------------- */

TEST(another_daemon_takes_the_place_of_the_first_whose_last_words_count)
{
    answers(allocate(1, ALICE, 7, CHUNK));
    answers(allocate(2, ALICE, 7, CHUNK));
    for (int i = 0; i < 20; i++) {
        const uint64_t id = 100 + (uint64_t)i;
        answers(allocate(1, ALICE, id, CHUNK));
        auto_fd first = fcntl(keeper.daemon, F_DUPFD_CLOEXEC, 3);
        dlx_test_keeper_free(&keeper, 1, ALICE, id);
        dlx_test_keeper_connect(&keeper);
        is_cut_off(first);
        ck_assert_int_eq(get(1, ALICE, id), DLX_E_NOT_FOUND);
        answers(get(1, ALICE, 7));
    }
}

/* GETs without reading the answers, until there was no room for another one for a while that is
 * long enough for an idle keeper to read. Returns how many there are. */
static uint32_t ask_until_full(void)
{
    struct dlx_keeper_packet ask = {
        .kind = DLX_KEEPER_GET, .origin = 1, .user = ALICE, .allocation = 7};
    struct pollfd room = {.fd = keeper.daemon, .events = POLLOUT};
    uint32_t n = 0;
    do {
        ask.serial = keeper.serial + n + 1;
        int r = dlx__keeper_send(keeper.daemon, &ask, NULL, 0);
        n += r == 0;
        ck_assert_msg(r == 0 || r == DLX_E_FULL, "%s", dlx__error_message());
        ck_assert_uint_lt(n, 100000);
    } while (poll(&room, 1, 200) == 1);
    return n;
}

/* It hears everything in order, however late it listens, and the keeper takes no more from it
 * meanwhile. */
TEST(a_daemon_that_does_not_read_is_not_read_from)
{
    answers(allocate(1, ALICE, 7, CHUNK));
    answers(allocate(2, ALICE, 7, CHUNK));
    uint32_t n = ask_until_full();
    while (n-- > 0) {
        ck_assert_int_eq(dlx_test_keeper_answer(&keeper, ++keeper.serial, &got), 0);
        ck_assert_uint_eq(got.id, 7);
    }
    dlx_test_keeper_free(&keeper, 1, ALICE, 7);
    dlx_test_keeper_is_kept(&keeper, 1, ALICE, 0);
    answers(get(2, ALICE, 7));
}

/* Of a user, as many as a process of it may have open. Nothing tells the keeper when one was
 * received. */
TEST(answers_wait_while_too_many_descriptors_are_on_their_way)
{
    enum { N = 100 };
    struct dlx_keeper_packet ask = {
        .kind = DLX_KEEPER_GET, .origin = 1, .user = ALICE, .allocation = 7};
    struct rlimit few;
    answers(allocate(1, ALICE, 7, CHUNK));
    ck_assert_int_eq(prlimit(keeper.pid, RLIMIT_NOFILE, NULL, &few), 0);
    few.rlim_cur = 10;
    ck_assert_int_eq(prlimit(keeper.pid, RLIMIT_NOFILE, &few, NULL), 0);
    for (uint32_t i = 0; i < N; i++) {
        ask.serial = keeper.serial + 1 + i;
        dlx_test_keeper_send(&keeper, &ask, -1);
    }
    for (uint32_t i = 0; i < N; i++)
        ck_assert_int_eq(dlx_test_keeper_answer(&keeper, ++keeper.serial, &got), 0);
}

TEST(last_words_of_a_daemon_that_does_not_read_count_when_the_next_one_comes)
{
    const int more = 1 << 20;
    answers(allocate(1, ALICE, 7, CHUNK));
    answers(allocate(2, ALICE, 7, CHUNK));
    (void)ask_until_full();
    ck_assert_int_eq(setsockopt(keeper.daemon, SOL_SOCKET, SO_SNDBUF, &more, sizeof more), 0);
    dlx_test_keeper_free(&keeper, 1, ALICE, 0);
    auto_fd first = fcntl(keeper.daemon, F_DUPFD_CLOEXEC, 3); /* it has not ended yet */
    dlx_test_keeper_connect(&keeper);
    ck_assert_int_eq(get(1, ALICE, 7), DLX_E_NOT_FOUND);
    answers(get(2, ALICE, 7));
    is_cut_off(first);
}

/* Nobody would learn of the memory. */
TEST(no_memory_is_made_for_a_daemon_that_has_ended)
{
    uint8_t device[DLX_KEEPER_DEVICE_SIZE];
    const struct dlx_keeper_packet late = {.kind = DLX_KEEPER_ALLOCATE,
                                           .serial = 99,
                                           .origin = 1,
                                           .user = ALICE,
                                           .allocation = 8,
                                           .number = CHUNK,
                                           .body = device,
                                           .body_size = sizeof device};
    dlx__keeper_put_device(device, &keeper.device);
    answers(allocate(1, ALICE, 7, CHUNK));
    ck_assert_int_eq(kill(keeper.pid, SIGSTOP), 0);
    dlx_test_keeper_send(&keeper, &late, process_of(1));
    dlx_test_keeper_connect(&keeper);
    ck_assert_int_eq(kill(keeper.pid, SIGCONT), 0);
    ck_assert_int_eq(get(1, ALICE, 8), DLX_E_NOT_FOUND);
    answers(get(1, ALICE, 7));
}

TEST(a_daemon_that_breaks_the_protocol_is_cut_off)
{
    static const struct dlx_keeper_packet wrong[] = {
        {.kind = DLX_KEEPER_KEPT, .origin = 1},
        {.kind = DLX_KEEPER_ASK, .allocation = 1},
        {.kind = DLX_KEEPER_ALLOCATE, .origin = 1, .allocation = 8, .number = 1},
        {.kind = DLX_KEEPER_GET, .origin = 1},
        {.kind = (enum dlx_keeper_kind)77, .origin = 1},
    };
    answers(allocate(1, ALICE, 7, CHUNK));
    for (size_t i = 0; i <= DLX_ARRAY_SIZE(wrong); i++) {
        if (i == 0)
            ck_assert_int_eq(dlx__packet_send(keeper.daemon, "what?", 5, NULL, 0), 0);
        else
            dlx_test_keeper_send(&keeper, &wrong[i - 1], i % 2 ? process_of(1) : -1);
        is_cut_off(keeper.daemon);
        dlx_test_keeper_connect(&keeper);
        answers(get(1, ALICE, 7));
    }
}

/* From the folder of the socket: the user may not search those above it. */
static void knock(const void *userdata)
{
    struct dlx_test_keeper other = {.daemon = -1};
    char folder[sizeof keeper.path];
    char *name = strrchr(memcpy(folder, keeper.path, sizeof folder), '/');
    struct stat st;
    (void)userdata;
    *name++ = '\0';
    ck_assert_int_eq(chdir(folder), 0);
    ck_assert_int_eq(stat(".", &st), 0);
    ck_assert_int_eq(chmod(".", st.st_mode | S_IXGRP | S_IXOTH), 0);
    memcpy(other.path, name, strlen(name) + 1);
    ck_assert_int_eq(setuid(65534), 0);
    dlx_test_keeper_connect(&other);
    is_cut_off(other.daemon);
}

TEST(another_user_is_no_daemon)
{
    char said[512];
    if (!dlx_test_user_may())
        return;
    ck_assert_int_eq(chmod(keeper.path, 0666), 0);
    answers(allocate(1, ALICE, 7, CHUNK));
    ck_assert_int_eq(dlx_test_fork_said(knock, NULL, said, sizeof said), 0);
    answers(get(1, ALICE, 7)); /* by the connection that there was */
}

/* ---- what cannot be had ---------------------------------------------------------------------- */

TEST(a_gpu_that_the_keeper_cannot_use_is_told_with_what_to_do)
{
    char who[64];
    (void)snprintf(who, sizeof who, "(process %d, uid %u) cannot use GPU-0011", (int)keeper.pid,
                   geteuid());
    keeper.device.uuid[15] = 9;
    refuses(allocate(1, ALICE, 7, CHUNK), DLX_E_DEVICE, who);
    contains(keeper.text, "device files");
    contains(keeper.text, "it sees 2");
    keeper.device.uuid[15] = 0;
    answers(allocate(1, ALICE, 7, CHUNK)); /* others can be used */
    restart_failing("cuInit", 1, CUDA_ERROR_NO_DEVICE);
    for (int i = 0; i < 2; i++)
        refuses(allocate(1, ALICE, 7, CHUNK), DLX_E_DEVICE, "does not start");
    contains(keeper.text, "and restart it");
    ck_assert_uint_eq(keeper.n_kept, 0);
}

TEST(requests_for_what_there_is_not_are_refused)
{
    auto_fd memfd = memfd_create("dlx-test", MFD_CLOEXEC);
    answers(allocate(2, ALICE, 7, CHUNK));
    size_t before = n_files();
    refuses(allocate(1, ALICE, 7, 0), DLX_E_INVALID, "no bytes");
    refuses(allocate(1, ALICE, 7, UINT64_MAX), DLX_E_NO_MEMORY, "cannot make memory on GPU-0011");
    refuses(allocate(1, ALICE, 7, UINT64_C(1) << 40), DLX_E_NO_MEMORY, "1.0 TiB");
    refuses(dlx_test_keeper_allocate(&keeper, 1, ALICE, 7, CHUNK, memfd, &made), DLX_E_ACCESS,
            "cannot watch the publisher's process");
    keeper.device.type = kDLMetal;
    refuses(allocate(1, ALICE, 7, CHUNK), DLX_E_DEVICE, "device type 8 is no GPU");
    ck_assert_uint_eq(n_files(), before);
    ck_assert_uint_eq(keeper.n_kept, 1);
}

static void check_failing_call(const char *call)
{
    int n = 0;
    restart_failing(call, 2, CUDA_ERROR_UNKNOWN);
    size_t before = n_files();
    while (allocate(1, ALICE, 7, CHUNK) != 0) {
        contains(keeper.text, "the GPU keeper cannot make memory on GPU-0011");
        ck_assert_uint_eq(keeper.n_kept, 0);
        n++;
    }
    ck_assert_int_ge(n, 1);
    ck_assert_int_le(n, 2);
    dlx_test_keeper_free(&keeper, 1, ALICE, 7);
    dlx_test_keeper_is_kept(&keeper, 1, ALICE, 0);
    size_t after = n_files();
    answers(allocate(1, ALICE, 7, CHUNK));
    dlx_test_keeper_free(&keeper, 1, ALICE, 7);
    ck_assert_uint_ge(after, before); /* the driver's own files */
    keeper.n_kept = 0;
    dlx_test_keeper_is_kept(&keeper, 1, ALICE, 0);
    ck_assert_uint_eq(n_files(), after);
    CU_OK(cu.cuInit(0));
    ck_assert_uint_eq(standin.standin_count_of(keeper.pid, STANDIN_HANDLES), 0);
}

LOOP_TEST(a_call_of_the_driver_that_fails_leaves_nothing, 0, 4)
{
    static const char *const calls[] = {"cuDeviceGetUuid", "cuMemGetAllocationGranularity",
                                        "cuMemCreate", "cuMemExportToShareableHandle"};
    check_failing_call(calls[_i]);
}

/* The stand-in for HIP's runtime makes them when that starts, or not at all. */
GPU_LOOP_TEST(a_call_that_looks_for_a_gpu_and_fails_leaves_nothing, 0, 2, DLX_TEST_GPU_FLAGS)
{
    static const char *const calls[] = {"cuDeviceGetCount", "cuDeviceGet"};
    check_failing_call(calls[_i]);
}

/* One for each publisher and one for each allocation. */
TEST(a_user_may_have_three_times_the_descriptors_that_are_left)
{
    struct rlimit before, few;
    uint64_t n = 0;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = (struct rlimit){.rlim_cur = 64, .rlim_max = before.rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    restart();
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    while (allocate(1, ALICE, n + 1, CHUNK) == 0)
        n++;
    ck_assert_uint_eq(n, 35); /* and the process, of 48: a quarter of 64 is the driver's */
    contains(keeper.text, "has 36 descriptors of allocations and publishers (limit 48), 36 of them "
                          "of uid 1000, which may have 3 times what is left");
    for (uint64_t id = 1; id <= 7; id++)
        answers(allocate(2, BOB, id, CHUNK));
    answers(allocate(3, CAROL, 1, CHUNK));
    refuses(allocate(4, DAVE, 1, CHUNK), DLX_E_LIMIT, "has 46 descriptors"); /* needs two */
    answers(get(1, ALICE, n));
    dlx_test_keeper_free(&keeper, 1, ALICE, 0);
    answers(allocate(3, ALICE, 1, CHUNK));
}

/* Of one for the pidfd of a request, and of one for the memory that is made. */
TEST(a_keeper_without_free_descriptors_says_so_and_goes_on)
{
    const struct dlx_test_daemon process = {.pid = keeper.pid, .path = ""};
    answers(allocate(1, ALICE, 7, CHUNK));
    size_t n = n_files();
    const struct rlimit before = dlx_test_daemon_leave_fds(&process, 0);
    refuses(allocate(2, ALICE, 7, CHUNK), DLX_E_FD_LIMIT, "the GPU keeper: too many open files");
    (void)dlx_test_daemon_leave_fds(&process, 1);
    ck_assert_int_lt(allocate(2, ALICE, 7, CHUNK), 0);
    contains(keeper.text, "the GPU keeper cannot make memory on GPU-0011");
    answers(get(1, ALICE, 7));
    ck_assert_int_eq(prlimit(keeper.pid, RLIMIT_NOFILE, &before, NULL), 0);
    ck_assert_uint_eq(n_files(), n);
    ck_assert_uint_eq(keeper.n_kept, 1);
    answers(allocate(2, ALICE, 7, CHUNK));
}

TEST(a_keeper_without_free_descriptors_is_found_by_the_next_daemon)
{
    const struct dlx_test_daemon process = {.pid = keeper.pid, .path = ""};
    answers(allocate(1, ALICE, 7, CHUNK));
    (void)n_files();
    (void)dlx_test_daemon_leave_fds(&process, 0);
    auto_fd first = fcntl(keeper.daemon, F_DUPFD_CLOEXEC, 3); /* it has not ended yet */
    dlx_test_keeper_connect(&keeper);
    answers(get(1, ALICE, 7));
    is_cut_off(first);
}

static TCase *keeper_case(void)
{
    TCase *tcase = tcase_create("keeper");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_set_timeout(tcase, 2 * PATIENCE_S);
    return tcase;
}

#endif

GPU_MAIN(keeper_case())
