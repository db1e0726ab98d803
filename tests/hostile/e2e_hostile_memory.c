/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Writers that do with their regions what only a writer can: they hold the lock of the file, or
 * have pages in it that they can take away. No other client waits, and no such region is announced.
 */

#include "ring/layout.h"
#include "tests/harness/fork.h"
#include "tests/harness/memory.h"
#include "tests/harness/stream.h"
#include <sys/sysinfo.h>

#define BODY(name) DLX__WIRE__PACKET__BODY_##name

/* Another client is served: it asks, and has a publisher and a subscription that are joined. */
static void others_are_served(void)
{
    struct dlx_test_pair pair = dlx_test_pair_make(NULL, NULL);
    dlx_test_stream_publish(pair.p, 10, 1);
    dlx_test_stream_take(pair.s, 1);
    dlx_test_pair_end(&pair);
}

enum kind { CONTROL_BLOCK, ARENA, LINK_PAGE, N_KINDS };

/* A region that its client has not allocated yet, and what says that it has. */
struct region {
    enum kind kind;
    int control, link_sock;
    struct dlx_test_publisher publisher;
    struct dlx_test_subscription subscription;
    uint64_t size;
    int fd; /* the writer's */
    Dlx__Wire__PublisherReady publisher_ready;
    Dlx__Wire__ArenaReady arena_ready;
    Dlx__Wire__LinkReady link_ready;
};

static void make_control_block(struct region *r)
{
    Dlx__Wire__PublisherNew request = dlx_test_publisher_request("test/b");
    const Dlx__Wire__PublisherNewReply *reply =
        dlx_test_call_for(r->control, BODY(PUBLISHER_NEW), &request, BODY(PUBLISHER_NEW_REPLY))
            ->publisher_new_reply;
    r->publisher_ready.publisher = reply->publisher;
    r->size = reply->control_size;
    r->link_sock = dlx_test_take_fd(2);
}

static void make_arena(struct region *r, uint64_t size)
{
    r->arena_ready.publisher = r->publisher.id;
    r->arena_ready.arena = dlx_test_arena_new(&r->publisher, size);
    r->size = size;
}

static void make_link_page(struct region *r)
{
    dlx_test_subscribe(&r->subscription, r->control, "test/b", false);
    const Dlx__Wire__Packet *offer = dlx_test_expect(r->subscription.fd, BODY(LINK_OFFER));
    r->link_ready.link = offer->link_offer->link;
    r->size = offer->link_offer->page_size;
    dlx_test_ack(&r->subscription);
}

static struct region make(enum kind kind, uint64_t arena_size)
{
    struct region r = {.kind = kind, .link_sock = -1, .subscription = {.fd = -1}};
    dlx__wire__publisher_ready__init(&r.publisher_ready);
    dlx__wire__arena_ready__init(&r.arena_ready);
    dlx__wire__link_ready__init(&r.link_ready);
    r.control = dlx_test_hello(&dlx_test_stream_daemon, 4);
    if (kind != CONTROL_BLOCK) {
        dlx_test_publisher_new(&r.publisher, r.control, "test/b", 0);
        dlx_test_publisher_ready(&r.publisher);
    }
    if (kind == CONTROL_BLOCK)
        make_control_block(&r);
    else if (kind == ARENA)
        make_arena(&r, arena_size);
    else
        make_link_page(&r);
    r.fd = dlx_test_take_fd(0);
    return r;
}

/* Say that it is ready: it is refused, and why. */
static void is_refused(struct region *r, const char *why)
{
    const Dlx__Wire__LinkFailed *failed;
    const char *text = "";
    if (r->kind == CONTROL_BLOCK) {
        text = dlx_test_call_error(r->control, BODY(PUBLISHER_READY), &r->publisher_ready,
                                   DLX_E_BAD_PEER);
    } else if (r->kind == ARENA) {
        text = dlx_test_call_error(r->control, BODY(ARENA_READY), &r->arena_ready, DLX_E_BAD_PEER);
    } else {
        dlx_test_send(r->subscription.fd, BODY(LINK_READY), &r->link_ready, 0);
        failed = dlx_test_expect(r->subscription.fd, BODY(LINK_FAILED))->link_failed;
        ck_assert_int_eq(failed->code, DLX_E_BAD_PEER);
        text = failed->text;
    }
    ck_assert_msg(strstr(text, why), "%s", text);
}

static void forget(struct region *r)
{
    dlx_test_recv_done();
    if (r->publisher.id)
        dlx_test_publisher_deinit(&r->publisher);
    dlx_test_subscription_deinit(&r->subscription);
    dlx__close(r->link_sock);
    dlx__close(r->fd);
    close(r->control);
}
#define auto_region DLX_TEST_AUTO(forget) struct region

/* A daemon that sealed the memory would wait as long as the lock is held. */
LOOP_TEST(a_client_that_holds_the_lock_of_its_memory_holds_nobody_up, 0, N_KINDS)
{
    struct dlx_test_lock lock;
    auto_region r = make((enum kind)_i, DLX_PAGE);
    dlx_test_memory_fill(r.fd, r.size);
    if (!dlx_test_memory_lock(&lock, r.fd))
        return;
    is_refused(&r, "sealed");
    others_are_served();
    close(dlx_test_hello(&dlx_test_stream_daemon, 1));
    ck_assert_int_eq(waitpid(lock.pid, NULL, WNOHANG), 0); /* it has it yet */
    dlx_test_memory_unlock(&lock);
}

LOOP_TEST(pages_that_nobody_has_touched_are_refused, 0, N_KINDS)
{
    auto_region r = make((enum kind)_i, UINT64_C(1) << 20);
    ck_assert_int_eq(fallocate(r.fd, 0, 0, (off_t)r.size), 0);
    dlx_test_memory_seal(r.fd);
    is_refused(&r, "page at 0 of");
    others_are_served();
}

static bool has_all_blocks(int fd, uint64_t size)
{
    struct stat st;
    ck_assert_int_eq(fstat(fd, &st), 0);
    return (uint64_t)st.st_blocks * 512 >= size;
}

/* All pages but the first are there for good. A process allocates that one, and all blocks count;
 * when it is killed before it has come to the end, the page is gone. */
TEST(an_allocation_that_has_not_ended_is_no_memory)
{
    auto_region r = make(ARENA, UINT64_C(512) << 20);
    dlx_test_memory_fill(r.fd, r.size);
    ck_assert_int_eq(fallocate(r.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, DLX_PAGE), 0);
    dlx_test_memory_seal(r.fd);
    pid_t pid = dlx_test_fork();
    if (pid == 0)
        _exit(fallocate(r.fd, 0, 0, (off_t)r.size) != 0);
    while (!has_all_blocks(r.fd, r.size))
        continue;
    is_refused(&r, "page at 0 of");
    dlx_test_fork_kill(pid);
}

static uint64_t shared_bytes(int control)
{
    Dlx__Wire__DaemonInfo request = DLX__WIRE__DAEMON_INFO__INIT;
    return dlx_test_call(control, BODY(DAEMON_INFO), &request)->daemon_info_reply->shared_bytes;
}

TEST(memory_that_is_reserved_and_not_populated_comes_back)
{
    auto_region r = make(ARENA, UINT64_C(64) << 20);
    ck_assert_uint_gt(shared_bytes(r.control), r.size);
    while (shared_bytes(r.control) > r.size)
        continue;
    const char *text =
        dlx_test_call_error(r.control, BODY(ARENA_READY), &r.arena_ready, DLX_E_NOT_FOUND);
    ck_assert_msg(strstr(text, "returned since its pages did not grow"), "%s", text);
    others_are_served();
}

/* A process that has a message of this size allocated. */
#define MESSAGE (UINT64_C(256) << 20)

static void allocate(void)
{
    struct dlx_client *c = dlx_test_stream_connect();
    struct dlx_publisher *p = NULL;
    DLManagedTensorVersioned *tensor;
    const int64_t shape[] = {(int64_t)MESSAGE};
    const struct dlx_tensor_spec spec = {
        .size = sizeof spec, .dtype = {kDLUInt, 8, 1}, .ndim = 1, .shape = shape};
    if (dlx_publisher_new(c, "test/stopped", NULL, &p) < 0)
        _exit(2);
    _exit(dlx_alloc(p, &spec, &tensor) != 0);
}

static int count_arenas(const struct dlx_publisher_info *info, void *userdata)
{
    *(uint32_t *)userdata += info->n_arenas;
    return 0;
}

/* Stopped between ArenaNew and ArenaReady; or it was too fast: false. */
static bool stop_while_it_populates(pid_t pid, int control, struct dlx_client *c)
{
    uint32_t n_arenas = 0;
    while (shared_bytes(control) < MESSAGE) /* no other client has that much */
        continue;
    ck_assert_int_eq(kill(pid, SIGSTOP), 0);
    ck_assert_int_eq(waitpid(pid, NULL, WUNTRACED), pid);
    ck_assert_int_eq(0, dlx_list_publishers(c, "test/stopped", count_arenas, &n_arenas));
    return n_arenas == 0;
}

TEST(a_publisher_that_was_stopped_while_it_populated_memory_asks_again)
{
    int control = dlx_test_hello(&dlx_test_stream_daemon, 4);
    auto_client *c = dlx_test_stream_connect();
    pid_t pid;
    for (bool stopped = false; !stopped;) {
        pid = dlx_test_fork();
        if (pid == 0)
            allocate();
        stopped = stop_while_it_populates(pid, control, c);
        if (!stopped)
            dlx_test_fork_kill(pid);
    }
    while (shared_bytes(control) > MESSAGE)
        continue;
    ck_assert_int_eq(kill(pid, SIGCONT), 0);
    dlx_test_fork_join(pid);
    dlx_test_recv_done();
    close(control);
}

#define DROPPED (UINT64_C(16) << 20)

/* The kernel's word for what the daemon takes as the machine's memory. */
static uint64_t limit_of_user(void)
{
    struct sysinfo info;
    ck_assert_int_eq(sysinfo(&info), 0);
    return (uint64_t)info.totalram * info.mem_unit / 2;
}

static void drop(const struct dlx_test_publisher *publisher, uint32_t arena)
{
    Dlx__Wire__ArenaDrop request = DLX__WIRE__ARENA_DROP__INIT;
    request.publisher = publisher->id;
    request.arena = arena;
    dlx_test_call_ok(publisher->control, BODY(ARENA_DROP), &request);
}

TEST(dropped_memory_is_on_a_subscriber_that_does_not_read)
{
    struct dlx_test_publisher publisher;
    struct dlx_test_subscription subscription;
    Dlx__Wire__ArenaNew all = DLX__WIRE__ARENA_NEW__INIT;
    int control = dlx_test_hello(&dlx_test_stream_daemon, 4);
    dlx_test_publisher_new(&publisher, control, "test/b", 0);
    dlx_test_publisher_ready(&publisher);
    dlx_test_subscribe(&subscription, control, "test/b", false);
    (void)dlx_test_join(&subscription);
    uint64_t before = shared_bytes(control);
    all.publisher = publisher.id;
    all.arena_size = (limit_of_user() - before) / DLX_PAGE * DLX_PAGE;
    for (uint32_t i = 1; i <= 3; i++) {
        ck_assert_uint_eq(dlx_test_arena(&publisher, DROPPED), i);
        (void)dlx_test_expect(subscription.fd, BODY(ARENA_ADDED));
        dlx_test_ack(&subscription);
    }
    for (uint32_t i = 1; i <= 3; i++)
        drop(&publisher, i);
    ck_assert(!dlx_test_is_silent(subscription.fd)); /* it was told */
    ck_assert_uint_eq(shared_bytes(control), before + 3 * DROPPED);
    const char *text = dlx_test_call_error(control, BODY(ARENA_NEW), &all, DLX_E_LIMIT);
    ck_assert_msg(strstr(text, "of shared memory"), "%s", text);
    for (uint32_t i = 1; i <= 3; i++)
        (void)dlx_test_expect(subscription.fd, BODY(ARENA_DROPPED));
    while (shared_bytes(control) > before)
        continue;
    (void)dlx_test_call_for(control, BODY(ARENA_NEW), &all, BODY(ARENA_NEW_REPLY));
    dlx_test_publisher_deinit(&publisher);
    dlx_test_subscription_deinit(&subscription);
    dlx_test_recv_done();
    close(control);
}

int main(void)
{
    return dlx_test_run_case(dlx_test_stream_case("hostile_memory"));
}
