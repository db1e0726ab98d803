/* SPDX-License-Identifier: Apache-2.0 */

/* GPU memory that others open by descriptors: what the keeper of a real dlpackd makes, and what
 * publishers serve. */

#include "tests/gpu/harness_gpu_stream.h"

#if DLX_TEST_HAS_GPU
#include "client/control/call.h"
#include "client/publish/publisher.h"
#include "client/publish/publisher_memory.h"
#include "client/subscribe/subscription.h"
#include "gpu/lib/fetch.h"
#include "tests/harness/fds.h"
#include "tests/harness/fork.h"
#include "tests/harness/keeper.h"
#include <dirent.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#define N     16
#define LARGE ((int64_t)DLX_TEST_GPU_CHUNK / 4) /* elements: they need an arena of their own */

/* The keeper that the daemon has started; 0: none. */
static pid_t keeper_pid(void)
{
    return dlx_test_keeper_find(dlx_test_stream_daemon.path);
}

/* Which memory a tensor is in: the keeper makes that of dlx_alloc(), and the publisher serves that
 * of frameworks. */
enum memory { OF_KEEPER, OF_FRAMEWORK, MEMORIES };

static struct dlx_test_gpu_segment segment;

static void make_segment(uint32_t n_chunks)
{
    dlx_test_gpu_segment_make(&segment, n_chunks, DLX_TEST_GPU_CHUNK,
                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

/* The publisher has gone. */
static void free_segment(void)
{
    dlx_test_gpu_segment_free(&segment);
}

static DLManagedTensorVersioned *in_segment(uint32_t value)
{
    dlx_test_gpu_fill(segment.base, N * sizeof value, value);
    return dlx_test_gpu_tensor_at(segment.base, 1, N);
}

static int publish(struct dlx_publisher *p, enum memory memory, uint32_t value)
{
    DLManagedTensorVersioned *t =
        memory == OF_KEEPER ? dlx_test_gpu_alloc(p, N, value) : in_segment(value);
    int r = dlx_publish(p, t, PUBLISH(.strict = true), NULL);
    if (r < 0)
        t->deleter(t);
    return r;
}

/* A publisher of one message, which late subscribers get. */
static struct dlx_test_gpu_end begin(enum memory memory)
{
    struct dlx_test_gpu_end x = dlx_test_gpu_publisher(PUBLISHER(.history = 1, .retain = 1));
    if (memory == OF_FRAMEWORK)
        make_segment(1);
    ok(publish(x.p, memory, 7));
    return x;
}

static void finish(struct dlx_test_gpu_end *x, enum memory memory)
{
    dlx_publisher_unref(dlx_steal(x->p));
    if (memory == OF_FRAMEWORK)
        free_segment();
    dlx_test_gpu_end(x);
}

/* ---- late subscribers ------------------------------------------------------------------------ */

static void take_late(int sock)
{
    auto_gpu_end x = dlx_test_gpu_subscribe(sock, SUBSCRIBE(.history = 1));
    dlx_test_gpu_await(sock);
    auto_tensor *t = dlx_test_gpu_take_tensor(&x);
    dlx_test_gpu_check(t, N, 7);
}

/* A peer's subscriber opens the memory, while this process makes no call. */
static void newcomer_opens(struct dlx_test_gpu_peer *peer)
{
    dlx_test_gpu_turn(peer->sock);
    dlx_test_gpu_tell(peer->sock);
    dlx_test_gpu_join(peer);
}

GPU_LOOP_TEST(a_late_subscriber_needs_no_call_of_the_publisher, OF_KEEPER, MEMORIES, 0)
{
    struct dlx_test_gpu_peer peers[3];
    for (size_t i = 0; i < DLX_ARRAY_SIZE(peers); i++)
        peers[i] = dlx_test_gpu_start(take_late);
    struct dlx_test_gpu_end x = begin((enum memory)_i);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(peers); i++)
        newcomer_opens(&peers[i]);
    finish(&x, (enum memory)_i);
}

/* It goes along, and says to the new one what the new one does not know. */
GPU_LOOP_TEST(memory_can_be_opened_by_the_next_daemon_once_the_publisher_made_a_call, OF_KEEPER,
              MEMORIES, 0)
{
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(take_late);
    struct dlx_test_gpu_end x = begin((enum memory)_i);
    uint64_t id = x.p->id;
    dlx_test_stream_restart();
    eventually(dlx_publisher_wait(x.p, 0, 0) == 0 && x.p->id != id);
    newcomer_opens(&peer);
    finish(&x, (enum memory)_i);
}

/* Nothing of it was there when the daemon changed. */
GPU_TEST(memory_that_is_shared_again_with_another_daemon_can_be_opened, 0)
{
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(take_late);
    struct dlx_test_gpu_end x = begin(OF_FRAMEWORK);
    uint64_t id = x.p->id;
    dlx_test_stream_publish(x.p, 4, 1);
    dlx_test_gpu_wait_deleted(&x, 1);
    dlx_test_stream_restart();
    eventually(dlx_publisher_wait(x.p, 0, 0) == 0 && x.p->id != id);
    ok(publish(x.p, OF_FRAMEWORK, 7));
    newcomer_opens(&peer);
    finish(&x, OF_FRAMEWORK);
}

GPU_TEST(arenas_of_a_lost_keeper_can_be_opened_by_the_next_daemon, 0)
{
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(take_late);
    struct dlx_test_gpu_end x = begin(OF_KEEPER);
    uint64_t id = x.p->id;
    ck_assert_int_eq(kill(keeper_pid(), SIGKILL), 0);
    dlx_test_stream_restart();
    eventually(dlx_publisher_wait(x.p, 0, 0) == 0 && x.p->id != id);
    newcomer_opens(&peer);
    finish(&x, OF_KEEPER);
}

/* The publisher's calls do not need the daemon. */
GPU_TEST(memory_that_is_published_without_a_daemon_can_be_opened_by_the_next_one, 0)
{
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(take_late);
    struct dlx_test_gpu_end x = begin(OF_FRAMEWORK);
    uint64_t id = x.p->id;
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
    ok(publish(x.p, OF_FRAMEWORK, 7));
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
    eventually(dlx_publisher_wait(x.p, 0, 0) == 0 && x.p->id != id);
    newcomer_opens(&peer);
    finish(&x, OF_FRAMEWORK);
}

/* Its ends have no effect, and it may fetch nothing. */
static void fork_and_use(struct dlx_test_gpu_end *x)
{
    pid_t pid = dlx_test_fork();
    if (pid == 0) {
        struct dlx_gpu_handle got = {0};
        bool is_refused = dlx__gpu_fetch(x->c, 1, 0, 1, &got) == DLX_E_FORKED;
        dlx_publisher_unref(x->p);
        _exit(!is_refused);
    }
    dlx_test_fork_join(pid);
}

GPU_LOOP_TEST(a_forked_child_takes_nothing_from_its_parent, OF_KEEPER, MEMORIES, 0)
{
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(take_late);
    struct dlx_test_gpu_end x = begin((enum memory)_i);
    fork_and_use(&x);
    newcomer_opens(&peer);
    finish(&x, (enum memory)_i);
}

/* ---- publishers and keepers that stand still ------------------------------------------------- */

static void publish_foreign(int sock)
{
    dlx_test_gpu_await(sock);
    struct dlx_test_gpu_end x = begin(OF_FRAMEWORK);
    dlx_test_gpu_turn(sock);
    finish(&x, OF_FRAMEWORK);
}

static pid_t stopped;
static int n_asked;

/* Are all threads of the process stopped? */
static bool is_stopped(pid_t pid)
{
    char path[300], text[512];
    bool is_so = true;
    (void)snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *dir = opendir(path);
    ck_assert_ptr_nonnull(dir);
    for (const struct dirent *entry; (entry = readdir(dir));) {
        (void)snprintf(path, sizeof path, "/proc/%d/task/%.20s/stat", (int)pid, entry->d_name);
        FILE *f = entry->d_name[0] == '.' ? NULL : fopen(path, "re");
        if (!f)
            continue;
        const char *name_end = fgets(text, sizeof text, f) ? strrchr(text, ')') : NULL;
        is_so &= name_end && name_end[2] == 'T';
        fclose(f);
    }
    closedir(dir);
    return is_so;
}

static void stop(pid_t pid)
{
    stopped = pid;
    ck_assert_int_eq(kill(pid, SIGSTOP), 0);
    eventually(is_stopped(pid));
}

static void go_on(void)
{
    ck_assert_int_eq(kill(stopped, SIGCONT), 0);
}

/* A peer whose publisher has published and is stopped, and the message. */
static struct dlx_test_gpu_end begin_stopped(struct dlx_message **ret)
{
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(publish_foreign);
    struct dlx_test_gpu_end x = {.c = dlx_test_stream_connect(), .peer = peer, .is_awaited = true};
    (void)dlx_test_gpu_context(0);
    dlx_test_gpu_turn(peer.sock);
    ok(dlx_subscribe(x.c, "gpu/a", SUBSCRIBE(.history = 1), &x.s));
    *ret = dlx_test_stream_next(x.s);
    stop(peer.pid);
    return x;
}

GPU_TEST(a_publisher_that_is_stopped_fails_what_others_open_in_time_and_by_its_name, 0)
{
    struct dlx_message *m;
    DLManagedTensorVersioned *t = NULL;
    char pid[32];
    auto_gpu_end x = begin_stopped(&m);
    x.c->timeout_ns = INT64_C(500000000);
    (void)snprintf(pid, sizeof pid, "(pid %d)", (int)x.peer.pid);
    fails(dlx_message_tensor(m, 0, &t), DLX_E_TIMEOUT, "did not send it within 0.5 s");
    fails(dlx_message_tensor(m, 0, &t), DLX_E_TIMEOUT, pid);
    x.c->timeout_ns = PATIENCE;
    go_on();
    ok(dlx_message_tensor(m, 0, &t));
    dlx_test_gpu_check(t, N, 7);
    t->deleter(t);
    dlx_message_unref(m);
}

/* The program is asked now and then during a wait: the third time, the publisher goes on. */
static int go_on_at_third(void *unused)
{
    (void)unused;
    if (++n_asked == 3)
        go_on();
    return 0;
}

static int refuse(void *unused)
{
    (void)unused;
    return -1;
}

/* A wait that may be interrupted has parts: the end of one is not the end of the time. */
GPU_TEST(a_publisher_that_is_slow_is_waited_for_also_by_a_program_that_can_interrupt, 0)
{
    struct dlx_message *m;
    DLManagedTensorVersioned *t = NULL;
    auto_gpu_end x = begin_stopped(&m);
    n_asked = 0;
    x.c->interrupt = refuse;
    ck_assert_int_eq(dlx_message_tensor(m, 0, &t), DLX_E_INTERRUPTED);
    x.c->interrupt = go_on_at_third;
    ok(dlx_message_tensor(m, 0, &t));
    x.c->interrupt = NULL;
    ck_assert_int_ge(n_asked, 3);
    t->deleter(t);
    dlx_message_unref(m);
}

static int kill_at_third(void *unused)
{
    (void)unused;
    if (++n_asked == 3)
        ck_assert_int_eq(kill(stopped, SIGKILL), 0);
    return 0;
}

/* Its end of the reader's socket is closed, and the next request hears why. */
GPU_TEST(a_publisher_that_dies_while_it_is_asked_is_gone, 0)
{
    struct dlx_message *m;
    DLManagedTensorVersioned *t = NULL;
    struct dlx_test_gpu_end x = begin_stopped(&m);
    n_asked = 0;
    x.c->interrupt = kill_at_third;
    fails(dlx_message_tensor(m, 0, &t), DLX_E_PUBLISHER_GONE, "gone");
    x.c->interrupt = NULL;
    dlx_message_unref(m);
    dlx_test_gpu_kill(&x.peer);
    dlx_test_gpu_end(&x);
}

static int read_gpu_calls(const struct dlx_quota_info *info, void *ret)
{
    if (strcmp(info->name, "gpu-calls") == 0)
        *(uint64_t *)ret = info->used;
    return 0;
}

static uint64_t n_gpu_calls(struct dlx_client *c)
{
    uint64_t n = 0;
    ok(dlx_list_quotas(c, read_gpu_calls, &n));
    return n;
}

static int read_gpu_bytes(const struct dlx_quota_info *info, void *ret)
{
    if (strcmp(info->name, "gpu-bytes") == 0)
        *(uint64_t *)ret = info->used;
    return 0;
}

/* What the keeper has, as the daemon has heard. */
static uint64_t kept(struct dlx_client *c)
{
    uint64_t n = UINT64_MAX;
    ok(dlx_list_quotas(c, read_gpu_bytes, &n));
    return n;
}

static int alloc(struct dlx_publisher *p, int64_t n, DLManagedTensorVersioned **ret)
{
    const struct dlx_tensor_spec spec =
        dlx_test_gpu_spec(&n, 1, (DLDevice){(DLDeviceType)dlx_test_gpu_type(), 0});
    return dlx_alloc(p, &spec, ret);
}

/* The keeper's socket is full, so that packets wait in the daemon for longer than a request does.
 */
GPU_TEST(an_arena_is_freed_although_the_keeper_stood_still_for_long, 0)
{
    auto_client *c = dlx_test_stream_connect();
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    auto_tensor *t = dlx_test_gpu_alloc_empty(x.p, N);
    pid_t keeper = keeper_pid();
    ck_assert_int_eq(kill(keeper, SIGSTOP), 0);
    while (n_gpu_calls(c) == 0) /* of memory that is not there */
        (void)dlx__call_gpu_free(x.p->client, x.p->id, 1000);
    eventually(dlx__call_gpu_free(x.p->client, x.p->id, 1) == 0);
    ok(dlx__call_gpu_free(x.p->client, x.p->id, 1000));
    while (n_gpu_calls(c) < 3) /* all three wait, and no request waits for the first two */
        (void)sched_yield();
    ck_assert_int_eq(kill(keeper, SIGCONT), 0);
    eventually(kept(c) == 0);
}

/* What it made after all is freed again by a later call. */
GPU_TEST(a_keeper_that_stands_still_holds_up_allocations_alone_and_loses_nothing, 0)
{
    DLManagedTensorVersioned *t = NULL;
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    struct dlx_test_pair y = dlx_test_pair_make(NULL, NULL);
    auto_tensor *first = dlx_test_gpu_alloc(x.p, N, 1);
    stop(keeper_pid());
    x.c->timeout_ns = INT64_C(300000000);
    fails(alloc(x.p, LARGE, &t), DLX_E_TIMEOUT, "gpu/a");
    for (int i = 1; i <= 3; i++) {
        dlx_test_stream_publish(y.p, 10, i);
        dlx_test_stream_take(y.s, i);
        dlx_client_unref(dlx_test_stream_connect());
    }
    go_on();
    x.c->timeout_ns = PATIENCE;
    ok(alloc(x.p, LARGE, &t));
    eventually(kept(y.c) == 2 * DLX_TEST_GPU_CHUNK);
    t->deleter(t);
    dlx_test_pair_end(&y);
}

struct asked {
    struct dlx_publisher *p;
    DLManagedTensorVersioned *t;
    int r;
};

static void *alloc_elsewhere(void *arg)
{
    struct asked *asked = arg;
    asked->r = alloc(asked->p, LARGE, &asked->t);
    return NULL;
}

GPU_TEST(an_allocation_that_a_keeper_did_not_answer_is_for_the_next_one, 0)
{
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    struct asked asked = {.p = x.p, .r = 1};
    auto_client *c = dlx_test_stream_connect();
    auto_tensor *first = dlx_test_gpu_alloc(x.p, N, 1);
    stop(keeper_pid());
    pthread_t thread = dlx_test_stream_thread(alloc_elsewhere, &asked);
    eventually(n_gpu_calls(c) == 1); /* it was sent */
    ck_assert_int_eq(kill(stopped, SIGKILL), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ok(asked.r);
    asked.t->deleter(asked.t);
}

/* ---- what is freed --------------------------------------------------------------------------- */

GPU_TEST(memory_is_freed_with_its_publisher, 0)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_test_gpu_end x = dlx_test_gpu_publisher(NULL);
    ok(publish(x.p, OF_KEEPER, 7));
    ck_assert_uint_eq(kept(c), DLX_TEST_GPU_CHUNK);
    finish(&x, OF_KEEPER);
    eventually(kept(c) == 0);
}

/* What the publisher served it with, too. */
GPU_TEST(a_publisher_that_ends_leaves_no_descriptor, 0)
{
    struct dlx_test_gpu_end x = dlx_test_gpu_publisher(NULL);
    make_segment(1);
    x.p = dlx_publisher_unref(x.p);
    size_t n_fds = dlx_test_fds_count();
    x.p = dlx_test_stream_publisher(x.c, "gpu/a", NULL);
    ok(publish(x.p, OF_FRAMEWORK, 7));
    x.p = dlx_publisher_unref(x.p);
    ck_assert_uint_eq(dlx_test_fds_count(), n_fds);
    finish(&x, OF_FRAMEWORK);
}

/* Two arenas, of which one is empty. */
static DLManagedTensorVersioned *alloc_two(struct dlx_publisher *p)
{
    DLManagedTensorVersioned *stays = dlx_test_gpu_alloc(p, N, 1),
                             *goes = dlx_test_gpu_alloc_empty(p, LARGE);
    goes->deleter(goes);
    return stays;
}

/* Messages enough that arenas in which nothing is are given back by the next allocation. */
static void let_trim(struct dlx_publisher *p)
{
    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < DLX_TRIM_EVERY * p->args.depth; i++)
            dlx_test_stream_publish(p, 4, 1);
        DLManagedTensorVersioned *t = dlx_test_gpu_alloc_empty(p, N);
        t->deleter(t);
    }
    ck_assert_uint_eq(dlx_test_stream_stats(p).gpu_arena_bytes, DLX_TEST_GPU_CHUNK);
}

GPU_TEST(an_arena_that_a_publisher_gives_back_is_freed, 0)
{
    auto_client *c = dlx_test_stream_connect();
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    auto_tensor *stays = alloc_two(x.p);
    ck_assert_uint_eq(kept(c), 2 * DLX_TEST_GPU_CHUNK);
    let_trim(x.p);
    eventually(kept(c) == DLX_TEST_GPU_CHUNK);
}

static void allow_three_arenas(void *userdata)
{
    static char path[300];
    char config[200];
    (void)userdata;
    (void)snprintf(path, sizeof path, "%s/conf", dlx_test_stream_daemon.dir);
    (void)snprintf(config, sizeof config, "[quota default]\ngpu-bytes = %zu\n",
                   3 * DLX_TEST_GPU_CHUNK);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, config, strlen(config)) != (ssize_t)strlen(config))
        _exit(125);
    dlx_test_daemon_exec(&dlx_test_stream_daemon, DLX_TEST_WORDS("--config", path));
}

/* What is not used makes room, as on a GPU that is full. */
GPU_TEST(an_allocation_beyond_the_quota_gives_back_what_is_not_used_first, 0)
{
    char path[300];
    DLManagedTensorVersioned *t = NULL;
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
    dlx_test_daemon_start_prepared(&dlx_test_stream_daemon, allow_three_arenas, NULL);
    auto_client *c = dlx_test_stream_connect();
    struct dlx_test_gpu_end x = dlx_test_gpu_publisher(NULL);
    DLManagedTensorVersioned *stays = alloc_two(x.p);
    ck_assert_uint_eq(kept(c), 2 * DLX_TEST_GPU_CHUNK);
    ok(alloc(x.p, 2 * LARGE, &t));
    eventually(kept(c) == 3 * DLX_TEST_GPU_CHUNK);
    t->deleter(t);
    fails(alloc(x.p, 4 * LARGE, &t), DLX_E_LIMIT, "gpu-bytes");
    stays->deleter(stays);
    dlx_test_gpu_end(&x);
    (void)snprintf(path, sizeof path, "%s/conf", dlx_test_stream_daemon.dir);
    ck_assert_int_eq(unlink(path), 0);
}

/* The keeper has it until the publisher can say so. */
GPU_TEST(an_arena_that_is_given_back_without_a_daemon_is_freed_by_the_next_one, 0)
{
    auto_gpu_end x = dlx_test_gpu_publisher(NULL);
    auto_tensor *stays = alloc_two(x.p);
    uint64_t id = x.p->id;
    dlx_test_stream_publish(x.p, 4, 1); /* it has memory on the CPU */
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
    let_trim(x.p);
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
    eventually(dlx_publisher_wait(x.p, 0, 0) == 0 && x.p->id != id);
    auto_client *c = dlx_test_stream_connect();
    eventually(kept(c) == DLX_TEST_GPU_CHUNK);
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void without_keeper(void *userdata)
{
    (void)userdata;
    (void)setenv("DLX_KEEPER", "/no/such/program", 1);
}

/* What publishers serve needs none. */
GPU_TEST(a_keeper_that_is_not_installed_is_a_clear_error_of_allocations_alone, 0)
{
    DLManagedTensorVersioned *t = NULL;
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(take_late);
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
    dlx_test_daemon_start_prepared(&dlx_test_stream_daemon, without_keeper, NULL);
    struct dlx_test_gpu_end x = begin(OF_FRAMEWORK);
    for (int i = 0; i < 2; i++)
        fails(alloc(x.p, N, &t), DLX_E_NO_DAEMON, "/no/such/program");
    newcomer_opens(&peer);
    finish(&x, OF_FRAMEWORK);
}

GPU_TEST(an_older_daemon_is_not_asked, 0)
{
    DLManagedTensorVersioned *t = NULL;
    struct dlx_test_gpu_end x = dlx_test_gpu_publisher(NULL);
    make_segment(1);
    x.c->minor = DLX_GPU_SINCE - 1;
    fails(alloc(x.p, N, &t), DLX_E_VERSION, "2.8");
    fails(publish(x.p, OF_FRAMEWORK, 7), DLX_E_VERSION, "2.8");
    finish(&x, OF_FRAMEWORK);
}

/* The link to the only publisher that there is. */
static struct dlx_subscriber_link *link_of(struct dlx_subscription *s)
{
    struct dlx_subscriber_link *found = NULL;
    for (uint32_t i = 0; i < s->n_links; i++)
        if (s->links[i]->publisher != 0)
            found = s->links[i];
    ck_assert_ptr_nonnull(found);
    return found;
}

GPU_TEST(another_publisher_or_link_is_refused, 0)
{
    struct dlx_new_gpu_memory memory;
    const uint8_t uuid[16] = {1};
    int sock;
    struct dlx_test_pair x = dlx_test_pair_make(NULL, NULL);
    auto_client *other = dlx_test_stream_connect();
    dlx_test_stream_publish(x.p, 10, 1);
    dlx_test_stream_take(x.s, 1);
    uint64_t link = link_of(x.s)->id;
    fails(dlx__call_gpu_serve(other, x.p->id, PATIENCE, &sock), DLX_E_NOT_FOUND, "publisher");
    fails(dlx__call_gpu_allocate(other, x.p->id, 1, 1, dlx_test_gpu_type(), uuid, &memory),
          DLX_E_NOT_FOUND, "publisher");
    fails(dlx__call_gpu_get(other, link, 0, 7, &memory, &sock), DLX_E_NOT_FOUND, "link");
    fails(dlx__call_gpu_get(x.c, link, 0, 0, &memory, &sock), DLX_E_INVALID, "allocation 0");
    ck_assert_int_eq(keeper_pid(), 0); /* no client needed it */
    dlx_test_pair_end(&x);
}

#define FILES 1024

static void few_files(void *userdata)
{
    const struct rlimit files = {FILES, FILES};
    (void)userdata;
    (void)setrlimit(RLIMIT_NOFILE, &files);
    /* Root's processes have no limit by these. */
    (void)prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE);
    (void)prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN);
}

/* Descriptors that lie unread count for users: they may not keep the daemon from sending, nor
 * honest readers from being served. */
GPU_TEST(readers_that_never_read_keep_nobody_out, DLX_TEST_GPU_CHUNKS)
{
    enum { READERS = 300 };
    static int socks[READERS];
    struct dlx_new_gpu_memory memory;
    struct dlx_test_gpu_peer peer = dlx_test_gpu_start(take_late);
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
    dlx_test_daemon_start_prepared(&dlx_test_stream_daemon, few_files, NULL);
    struct dlx_test_gpu_end x = dlx_test_gpu_both(PUBLISHER(.history = 1));
    make_segment(60);
    dlx_test_gpu_fill(segment.base, N * sizeof(uint32_t), 7);
    ok(dlx_publish(x.p, dlx_test_gpu_tensor_at(segment.base, 60, LARGE), NULL, NULL));
    dlx_message_unref(dlx_test_stream_next(x.s));
    uint64_t link = link_of(x.s)->id;
    for (int i = 0; i < READERS; i++) {
        int r = dlx__call_gpu_get(x.c, link, 0, 1, &memory, &socks[i]);
        if (r != 1) {
            fails(r, DLX_E_LIMIT, "asked for GPU memory before");
            socks[i] = -1;
        }
    }
    /* Publishers, subscriptions and links need descriptors from the daemon. */
    for (int i = 0; i < 50; i++) {
        struct dlx_test_pair y = dlx_test_pair_make(NULL, NULL);
        dlx_test_pair_end(&y);
    }
    for (int i = 0; i < READERS; i++)
        dlx__close(socks[i]);
    /* The publisher's thread has seen that they are gone. */
    eventually(dlx__call_gpu_get(x.c, link, 0, 1, &memory, &socks[0]) == 1);
    dlx__close(socks[0]);
    newcomer_opens(&peer);
    dlx_subscription_unref(dlx_steal(x.s));
    finish(&x, OF_FRAMEWORK);
}

GPU_TEST(the_keeper_ends_after_the_last_daemon, 0)
{
    char path[300];
    struct stat st;
    struct dlx_test_gpu_end x = dlx_test_gpu_publisher(NULL);
    ok(publish(x.p, OF_KEEPER, 7));
    ck_assert_int_ne(keeper_pid(), 0);
    finish(&x, OF_KEEPER);
    ck_assert_int_eq(dlx_test_daemon_stop(&dlx_test_stream_daemon), 0);
    dlx_test_keeper_wait_gone(dlx_test_stream_daemon.path);
    (void)snprintf(path, sizeof path, "%s" DLX_KEEPER_SUFFIX, dlx_test_stream_daemon.path);
    ck_assert_int_eq(lstat(path, &st), -1);
    (void)snprintf(path, sizeof path, "%s" DLX_KEEPER_SUFFIX ".lock", dlx_test_stream_daemon.path);
    ck_assert_int_eq(lstat(path, &st), -1);
    dlx_test_daemon_start(&dlx_test_stream_daemon, NULL);
}

#endif

GPU_MAIN(dlx_test_gpu_stream_case("keep"))
