/* SPDX-License-Identifier: Apache-2.0 */

/*
 * In which order the threads of a subscription do what others wait for. No GPU is needed: calls
 * that these threads make are replaced here, and note what could be seen at that moment.
 */

#include "gpu/lib/receive.h"
#include "tests/harness/stream.h"
#include "tests/harness/run.h"
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct dlx_subscriber_link subscriber_link = {.topic = "cam/front", .bell = -1};
static struct dlx_gpu_receiver *receiver;

static void setup(void)
{
    ok(dlx__fork_init(&subscriber_link.generation));
    const struct dlx_subscribe_args pinned = {.size = sizeof pinned, .pin = {kDLCUDA, 0}};
    ok(dlx__gpu_receive_table.begin(&pinned, &receiver));
    ok(dlx__gpu_receive_table.link_begin(&subscriber_link, receiver));
}

static void teardown(void)
{
    dlx__gpu_receive_table.end(receiver);
    dlx__gpu_receive_table.link_end(&subscriber_link);
}

/* ---- the calls ------------------------------------------------------------------------------- */

int __wrap_dlx__gpu_gate_shut(int32_t device_type, int32_t device, void *stream,
                              bool are_kernels_loaded, const struct dlx_gpu_word *shared,
                              struct dlx_gpu_gate *ret);
int __wrap_dlx__gpu_gate_shut(int32_t device_type, int32_t device, void *stream,
                              bool are_kernels_loaded, const struct dlx_gpu_word *shared,
                              struct dlx_gpu_gate *ret)
{
    (void)device_type, (void)device, (void)stream, (void)are_kernels_loaded, (void)shared,
        (void)ret;
    return 0;
}

static struct dlx_gpu_wait *wait_;
static int result_at_gate; /* of the wait, when the stream was let go on */

void __wrap_dlx__gpu_gate_open(struct dlx_gpu_gate *gate);
void __wrap_dlx__gpu_gate_open(struct dlx_gpu_gate *gate)
{
    (void)gate;
    if (wait_)
        result_at_gate = dlx__gpu_wait_result(wait_);
}

static pthread_t caller;              /* the test's own thread */
static atomic_uint n_polls;           /* of threads of the subscription */
static atomic_bool has_polled_locked; /* a caller could not have added a wait meanwhile */

/* The caller itself has it for moments only. */
static bool is_lock_free(void)
{
    uint64_t end = dlx__now_ns() + UINT64_C(1000000000);
    while (pthread_mutex_trylock(&receiver->lock) != 0) {
        if (dlx__now_ns() >= end)
            return false;
        (void)sched_yield();
    }
    (void)pthread_mutex_unlock(&receiver->lock);
    return true;
}

int __real_poll(struct pollfd *fds, nfds_t n, int timeout);
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout);
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout)
{
    if (!pthread_equal(pthread_self(), caller)) {
        atomic_fetch_add(&n_polls, 1);
        if (!atomic_load(&has_polled_locked) && !is_lock_free())
            atomic_store(&has_polled_locked, true);
    }
    return __real_poll(fds, n, timeout);
}

int __wrap_dlx__gpu_event_record(int32_t device_type, int32_t device, void *stream,
                                 struct dlx_gpu_event *ret, bool *ret_waited);
int __wrap_dlx__gpu_event_record(int32_t device_type, int32_t device, void *stream,
                                 struct dlx_gpu_event *ret, bool *ret_waited)
{
    (void)device_type, (void)device, (void)stream, (void)ret, (void)ret_waited;
    return 1;
}

#define LOST 9 /* a device whose work has failed */

int __wrap_dlx__gpu_event_wait(const struct dlx_gpu_event *event);
int __wrap_dlx__gpu_event_wait(const struct dlx_gpu_event *event)
{
    return event->device == LOST ? DLX_E_DEVICE : 0;
}

static int n_ended; /* events */

void __wrap_dlx__gpu_event_end(struct dlx_gpu_event *event);
void __wrap_dlx__gpu_event_end(struct dlx_gpu_event *event)
{
    (void)event;
    n_ended++;
}

int __wrap_dlx__gpu_retain(int32_t device_type, int32_t device);
int __wrap_dlx__gpu_retain(int32_t device_type, int32_t device)
{
    (void)device_type, (void)device;
    return 0;
}

void __wrap_dlx__gpu_release(int32_t device_type, int32_t device);
void __wrap_dlx__gpu_release(int32_t device_type, int32_t device)
{
    (void)device_type, (void)device;
}

static uint32_t n_done_at_abandon; /* how many releases were said to be done */

void __wrap_dlx__message_abandon(struct dlx_export *e);
void __wrap_dlx__message_abandon(struct dlx_export *e)
{
    (void)e;
    n_done_at_abandon = dlx__gpu_receive_table.n_released(receiver);
}

static struct dlx_message set; /* with a table of its tensors */
static bool had_table_when_free;

/* The hold word is clear: another thread may take the next message into the same struct. */
void __wrap_dlx__reader_made_room(struct dlx_reader *r);
void __wrap_dlx__reader_made_room(struct dlx_reader *r)
{
    ck_assert_uint_eq(dlx_load64_acquire(&r->page->hold[set.hold]), 0);
    had_table_when_free = set.table != NULL;
}

/* ---- the order ------------------------------------------------------------------------------- */

/* 0: the publisher has written the tensor; 1: its GPU failed. */
LOOP_TEST(a_stream_goes_on_when_its_result_is_known, 0, 2)
{
    dlx_atomic_u32 word = _i == 0 ? DLX_GPU_READY : DLX_GPU_FAILED;
    struct dlx_message m = {.link = &subscriber_link};
    const struct dlx_gpu_wait_args args = {
        .m = &m, .word = &word, .limit = {.ns = DLX_FOREVER}, .ending_ns = PATIENCE};
    result_at_gate = DLX_GPU_WAITING;
    ok(dlx__gpu_wait_add(receiver, &args, &wait_));
    dlx__gpu_receive_table.stop(receiver); /* ends the thread */
    ck_assert_int_eq(result_at_gate, _i == 0 ? 0 : DLX_E_DEVICE);
    wait_ = dlx__gpu_wait_unref(wait_);
}

static void check_limit(int64_t asked, int64_t of_link, int64_t ns, enum dlx_gpu_limit_of of)
{
    const struct dlx_gpu_receiver subscription = {.stream_timeout_ns = asked};
    const struct dlx_subscriber_link link = {.stream_wait_ns = of_link};
    struct dlx_gpu_limit limit = dlx__gpu_stream_limit(&subscription, &link);
    ck_assert_int_eq(limit.of, of);
    ck_assert_int_eq(limit.ns, ns);
}

TEST(a_stream_has_the_limit_that_was_asked_for_or_that_of_other_users)
{
    static const int64_t of_links[] = {DLX_FOREVER, DLX_STREAM_OTHER_USER_NS};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(of_links); i++) {
        check_limit(0, of_links[i], of_links[i], DLX_GPU_LIMIT_OTHER_USER);
        check_limit(7, of_links[i], 7, DLX_GPU_LIMIT_ASKED);
        check_limit(DLX_FOREVER, of_links[i], DLX_FOREVER, DLX_GPU_LIMIT_ASKED);
    }
}

#define N_WAITS 100U
#define LOOK_NS UINT64_C(20000000) /* how often the thread looks at its publishers */

static struct dlx_gpu_wait *waits[N_WAITS];
static dlx_atomic_u32 words[N_WAITS];

static void add_waits(uint32_t word)
{
    static struct dlx_message m;
    m = (struct dlx_message){.link = &subscriber_link};
    caller = pthread_self();
    atomic_store(&n_polls, 0);
    atomic_store(&has_polled_locked, false);
    wait_ = NULL;
    for (uint32_t i = 0; i < N_WAITS; i++) {
        const struct dlx_gpu_wait_args args = {
            .m = &m, .word = &words[i], .limit = {.ns = DLX_FOREVER}, .ending_ns = PATIENCE};
        dlx_store32_release(&words[i], word);
        ok(dlx__gpu_wait_add(receiver, &args, &waits[i]));
    }
}

static void end_waits(void)
{
    dlx__gpu_receive_table.stop(receiver);
    for (uint32_t i = 0; i < N_WAITS; i++) {
        ck_assert_int_eq(dlx__gpu_wait_result(waits[i]), 0);
        waits[i] = dlx__gpu_wait_unref(waits[i]);
    }
}

TEST(a_tensor_that_is_ready_costs_no_look_at_its_publisher)
{
    add_waits(DLX_GPU_READY);
    end_waits();
    ck_assert_uint_eq(atomic_load(&n_polls), 0);
}

/* Tensors get ready one after the other, which the thread notices each time. */
TEST(all_publishers_are_looked_at_by_one_system_call_that_holds_no_caller_up)
{
    uint64_t begin = dlx__now_ns();
    add_waits(DLX_GPU_PENDING);
    for (uint32_t i = 0; i < N_WAITS; i++) {
        dlx_store32_release(&words[i], DLX_GPU_READY);
        (void)syscall(SYS_futex, &words[i], FUTEX_WAKE, 1, NULL, NULL, 0);
        eventually(dlx__gpu_wait_result(waits[i]) == 0);
    }
    end_waits();
    uint64_t n_looks = 1 + (dlx__now_ns() - begin) / LOOK_NS;
    ck_assert_uint_gt(atomic_load(&n_polls), 0);
    ck_assert_uint_le(atomic_load(&n_polls), n_looks);
    ck_assert(!atomic_load(&has_polled_locked));
}

/* A caller that waits for a release takes a message then, and would find no room to hold it. */
TEST(a_release_is_done_when_its_message_has_been_let_go)
{
    DLTensor tensor = {.device = {kDLCPU, 0}};
    struct dlx_message m = {.link = &subscriber_link, .n_tensors = 1, .tensors = &tensor};
    struct dlx_export e = {.message = &m};
    ok(dlx__gpu_use_on(&e, (void *)(uintptr_t)8));
    ck_assert(dlx__gpu_receive_table.release(&e)); /* a thread does it */
    ok(dlx__gpu_receive_table.wait_released(receiver, 0, dlx__deadline(PATIENCE)));
    ck_assert_uint_eq(dlx__gpu_receive_table.n_released(receiver), 1);
    ck_assert_uint_eq(n_done_at_abandon, 0);
}

/* Of two GPUs with tensors of a message, one is lost: the other one is waited for, too. */
LOOP_TEST(the_loss_of_one_of_its_gpus_fails_a_job, 0, 2)
{
    struct dlx_gpu_event events[2] = {{.device = 0}, {.device = 0}};
    struct dlx_gpu_job job = {.events = events, .n_events = 2};
    events[_i].device = LOST;
    n_ended = 0;
    ck_assert_int_eq(dlx__gpu_job_wait(&job), DLX_E_DEVICE);
    ck_assert_int_eq(n_ended, 2);
}

TEST(a_set_has_no_table_when_its_struct_may_be_used_again)
{
    struct dlx_shm_link *page = calloc(1, sizeof *page + sizeof(uint64_t));
    struct dlx_subscriber_link of_set = {.generation = subscriber_link.generation,
                                         .core = {.page = page, .rings = true, .is_told = true}};
    atomic_init(&of_set.refs, DLX_SUBSCRIBER_LINK_ALIVE);
    set = (struct dlx_message){.link = &of_set, .table = calloc(1, 4096)};
    atomic_init(&set.refs, 1);
    dlx_store64_relaxed(&page->hold[0], 1);
    had_table_when_free = true;
    dlx_message_unref(&set);
    ck_assert(!had_table_when_free);
    free(page);
}

static sem_t has_begun;
static atomic_bool is_settled, is_done;

/* If who settles the job does not wait for its end, that is seen here. */
static void take_a_while(struct dlx_gpu_job *job, int result)
{
    (void)job;
    ck_assert_int_eq(result, 0);
    ck_assert_int_eq(sem_post(&has_begun), 0);
    for (uint64_t until = dlx__now_ns() + 20000000; dlx__now_ns() < until && !is_settled;)
        (void)sched_yield();
    is_done = true;
}

TEST(a_job_that_has_begun_is_settled_when_it_is_done)
{
    struct dlx_gpu_order order = {.has_thread = false};
    struct dlx_gpu_job job = {.done = take_a_while};
    ck_assert_int_eq(sem_init(&has_begun, 0, 0), 0);
    is_settled = is_done = false;
    ck_assert(dlx__gpu_order_try(&order, &job));
    ck_assert_int_eq(sem_wait(&has_begun), 0);
    ck_assert(!dlx__gpu_order_settle(&order, &job, 0));
    ck_assert(dlx__gpu_order_settle(&order, &job, UINT64_MAX));
    bool was_done = is_done;
    is_settled = true;
    dlx__gpu_order_end(&order);
    ck_assert(was_done);
}

int main(void)
{
    TCase *tc = tcase_create("gpu_threads");
    tcase_add_checked_fixture(tc, setup, teardown);
    return dlx_test_run_case(tc);
}
