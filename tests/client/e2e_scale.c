/* SPDX-License-Identifier: Apache-2.0 */

/* A queue of a thousand workers, and a service of many callers: nothing is lost, nothing is done
 * twice without a mark, and nothing is left. With DLX_SCALE=10000 (`make scale`) so many callers,
 * or as many as a limit allows, which the refusal has to name. */

#include "tests/harness/fork.h"
#include "tests/harness/stream.h"
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define N          10 /* elements of a message, which has its number as its value */
#define GROUPS     .groups = (const char *const[]){"g"}, .n_groups = 1
#define PROCS_MAX  32
#define N_MESSAGES 4000

/* What the processes tell each other. */
struct board {
    atomic_uint first[N_MESSAGES + 1];  /* done in the first delivery */
    atomic_uint marked[N_MESSAGES + 1]; /* done in a later one */
    atomic_bool stops;
    atomic_uint n_callers, n_answered, n_refused;
    atomic_uint n_unlinked; /* refusals of links by a worker */
    atomic_uint n_texts;
    char text[DLX_ERROR_TEXT_SIZE]; /* of the first refusal */
    char late[DLX_ERROR_TEXT_SIZE]; /* of the last call that failed */
    int64_t timeout_ns;             /* of calls */
};
static struct board *board;

/* How many callers there are to be, beyond what always runs; 0: none. */
static uint32_t n_more(void)
{
    const char *n = getenv("DLX_SCALE");
    return n ? (uint32_t)strtoul(n, NULL, 10) : 0;
}

static void begin_board(void)
{
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(board, MAP_FAILED);
    board->timeout_ns = PATIENCE;
}

static void end_board(void)
{
    ck_assert_int_eq(munmap(board, sizeof *board), 0);
}

/* As many open files as this machine lets a program have, also for the daemon of the test. */
static void raise_files(pid_t pid)
{
    struct rlimit limit;
    ck_assert_int_eq(prlimit(pid, RLIMIT_NOFILE, NULL, &limit), 0);
    limit.rlim_cur = limit.rlim_max;
    ck_assert_int_eq(prlimit(pid, RLIMIT_NOFILE, &limit, NULL), 0);
}

/* Nothing of the others is left in the daemon, and it has as many descriptors as before. */
static void await_nothing(struct dlx_client *c, const struct dlx_daemon_info *before, size_t n_fds)
{
    struct dlx_daemon_info info;
    eventually((info = dlx_test_stream_daemon_info(c)).n_publishers == 0 && info.n_links == 0 &&
               info.n_clients == before->n_clients && info.shared_bytes == before->shared_bytes);
    dlx_test_daemon_wait_n_fds(&dlx_test_stream_daemon, n_fds);
}

/* ---- workers ------------------------------------------------------------------------------- */

static bool work_once(struct dlx_subscription *s, int64_t timeout_ns)
{
    struct dlx_message *m = NULL;
    int r = dlx_take(s, timeout_ns, &m);
    ck_assert_msg(r == 0 || r == DLX_E_EMPTY || r == DLX_E_TIMEOUT, "%d %s", r, dlx_errmsg());
    if (r != 0)
        return false;
    uint64_t n = dlx_message_seq(m);
    ck_assert_uint_le(n, N_MESSAGES);
    dlx_test_stream_check(m, N, (int64_t)n);
    atomic_fetch_add(dlx_message_attempt(m) == 1 ? &board->first[n] : &board->marked[n], 1);
    ok(dlx_message_done(m));
    dlx_message_unref(m);
    return true;
}

/* So many workers, whose thread goes from one to the next. */
static void work_as(int sock, const void *userdata)
{
    uint32_t n = *(const uint32_t *)userdata;
    struct dlx_client *c = dlx_test_stream_connect();
    struct dlx_subscription **s = calloc(n, sizeof *s);
    for (uint32_t i = 0; i < n; i++)
        s[i] = dlx_test_stream_subscribe(c, "test/work", SUBSCRIBE(.group = "g"));
    dlx_test_say(sock);
    for (uint32_t at = 0; !atomic_load(&board->stops); at = (at + 1) % n) {
        bool any = false;
        for (uint32_t i = 0; i < n; i++)
            any |= work_once(s[i], 0);
        if (!any)
            (void)work_once(s[at], SECOND / 100);
    }
    for (uint32_t i = 0; i < n; i++)
        dlx_subscription_unref(s[i]);
    free(s);
    dlx_client_unref(c);
}

/* One process of them is killed in the midst of it, with all of its workers. */
TEST(a_thousand_workers_share_a_queue)
{
    struct dlx_test_part parts[4];
    const uint32_t n_workers = dlx_test_valgrind() ? 40 : 1000;
    const uint32_t n_each = n_workers / DLX_ARRAY_SIZE(parts);
    uint32_t n_marked = 0;
    begin_board();
    raise_files(0);
    raise_files(dlx_test_stream_daemon.pid);
    auto_client *c = dlx_test_stream_connect();
    struct dlx_daemon_info before = dlx_test_stream_daemon_info(c);
    size_t n_fds = dlx_test_daemon_n_fds(&dlx_test_stream_daemon);
    auto_publisher *p = dlx_test_stream_publisher(c, "test/work", PUBLISHER(GROUPS));
    for (size_t i = 0; i < DLX_ARRAY_SIZE(parts); i++)
        parts[i] = dlx_test_part_begin(work_as, &n_each);
    ok(dlx_publisher_wait(p, n_workers, PATIENCE));
    for (size_t i = 0; i < DLX_ARRAY_SIZE(parts); i++)
        dlx_test_hear(parts[i].sock);
    if (n_more())
        printf("%u workers, %zu descriptors of dlpackd\n", n_workers,
               dlx_test_daemon_n_fds(&dlx_test_stream_daemon));
    dlx_test_stream_publish_all(p, N, 1, N_MESSAGES / 2);
    dlx_test_part_kill(&parts[0]);
    dlx_test_stream_publish_all(p, N, N_MESSAGES / 2 + 1, N_MESSAGES);
    ok(dlx_publisher_drain(p, PATIENCE));
    atomic_store(&board->stops, true);
    for (size_t i = 1; i < DLX_ARRAY_SIZE(parts); i++)
        dlx_test_part_join(&parts[i]);
    for (uint32_t n = 1; n <= N_MESSAGES; n++) {
        uint32_t first = atomic_load(&board->first[n]), marked = atomic_load(&board->marked[n]);
        ck_assert_msg(first <= 1 && first + marked >= 1, "message %u: %u, %u", n, first, marked);
        n_marked += marked;
    }
    ck_assert_uint_le(n_marked, n_each); /* each worker that was killed had one, at most */
    dlx_publisher_unref(p);
    p = NULL;
    await_nothing(c, &before, n_fds);
    end_board();
}

/* ---- callers ------------------------------------------------------------------------------- */

#define CALLER(...)                                                                                \
    (&(const struct dlx_caller_args){.size = sizeof(struct dlx_caller_args), __VA_ARGS__})

static void note_refusal(void)
{
    atomic_fetch_add(&board->n_refused, 1);
    if (atomic_fetch_add(&board->n_texts, 1) == 0)
        (void)snprintf(board->text, sizeof board->text, "%s", dlx_errmsg());
}

/* A reply needs memory, which a limit may refuse. */
static void answer(struct dlx_request *request)
{
    const int64_t n = N;
    const struct dlx_tensor_spec spec = INT64_SPEC(&n);
    struct dlx_item item = {.name = "x"};
    char why[DLX_ERROR_TEXT_SIZE];
    if (dlx_request_alloc(request, &spec, &item.tensor) == 0) {
        memset(item.tensor->dl_tensor.data, 0, N * sizeof(int64_t));
        ok(dlx_reply(request, &item, 1, NULL));
        return;
    }
    (void)snprintf(why, sizeof why, "%s", dlx_errmsg());
    note_refusal();
    (void)dlx_reply_error(request, 1, why); /* which needs memory, too: else it is let go */
}

/* A worker that may have so many links; NULL: as many as its open files allow. */
static void serve(int sock, const void *n_links)
{
    struct dlx_client *c = n_links ? dlx_test_stream_connect_with_links(*(const uint32_t *)n_links)
                                   : dlx_test_stream_connect();
    struct dlx_service *s = NULL;
    struct dlx_request *request = NULL;
    ok(dlx_service_new(c, "test/svc", NULL, &s));
    dlx_test_say(sock);
    while (!atomic_load(&board->stops)) {
        int r = dlx_service_take(s, SECOND / 100, &request);
        ck_assert_msg(r == 0 || r == DLX_E_EMPTY || r == DLX_E_TIMEOUT || r == DLX_E_LIMIT ||
                          r == DLX_E_FD_LIMIT,
                      "%d %s", r, dlx_errmsg());
        if (r == DLX_E_LIMIT || r == DLX_E_FD_LIMIT) {
            note_refusal();
            atomic_fetch_add(&board->n_unlinked, 1);
        }
        if (r != 0)
            continue;
        answer(request);
        dlx_request_unref(request);
    }
    dlx_service_unref(s);
    dlx_client_unref(c);
}

/* Returns whether the caller has begun its call. */
static bool call_begin(struct dlx_caller *k)
{
    const int64_t n = N;
    const struct dlx_tensor_spec spec = INT64_SPEC(&n);
    const struct dlx_call_args args = {
        .size = sizeof args, .timeout_ns = board->timeout_ns, .idempotent = true};
    struct dlx_item item = {.name = "x"};
    uint64_t call;
    int r = dlx_caller_alloc(k, &spec, &item.tensor);
    if (r == 0) {
        memset(item.tensor->dl_tensor.data, 0, N * sizeof(int64_t));
        r = dlx_call_begin(k, &item, 1, &args, &call);
        if (r < 0)
            item.tensor->deleter(item.tensor);
    }
    if (r < 0)
        note_refusal();
    return r == 0;
}

/* Returns whether the call has ended. */
static bool call_end(struct dlx_caller *k, int64_t timeout_ns)
{
    struct dlx_call_result result = {.size = sizeof result};
    int r = dlx_call_take(k, timeout_ns, &result);
    if (r == DLX_E_EMPTY)
        return false;
    ck_assert_msg(r == 0, "%s", dlx_errmsg());
    atomic_fetch_add(&board->n_answered, result.code == 0);
    if (result.code < 0) {
        (void)dlx__fail(result.code, "%s", result.text);
        (void)snprintf(board->late, sizeof board->late, "%s", result.text);
        note_refusal();
    }
    dlx_message_unref(result.reply);
    return true;
}

/* So many callers, each with a call; they end when all are answered or refused. */
static void call_as(int sock, const void *userdata)
{
    uint32_t n = *(const uint32_t *)userdata, n_begun = 0;
    struct dlx_client *c = dlx_test_stream_connect();
    struct dlx_caller **k = calloc(n, sizeof *k);
    for (; n_begun < n; n_begun++) {
        if (dlx_caller_new(c, "test/svc", CALLER(.max_in_flight = 1), &k[n_begun]) < 0) {
            note_refusal();
            break;
        }
        atomic_fetch_add(&board->n_callers, 1);
        if (!call_begin(k[n_begun])) {
            dlx_caller_unref(k[n_begun]);
            break;
        }
    }
    for (uint32_t i = 0; i < n_begun; i++)
        (void)call_end(k[i], DLX_FOREVER);
    dlx_test_say(sock);
    dlx_test_hear(sock);
    for (uint32_t i = 0; i < n_begun; i++)
        dlx_caller_unref(k[i]);
    free(k);
    dlx_client_unref(c);
}

TEST(a_service_has_as_many_callers_as_its_limits_allow)
{
    struct dlx_test_part workers[2], callers[PROCS_MAX];
    const uint32_t n_procs = n_more() ? 20 : 3;
    const uint32_t n_each = dlx_test_valgrind() ? 5 : n_more() ? n_more() / n_procs : 100;
    begin_board();
    if (n_more()) /* those that are refused wait for it */
        board->timeout_ns = 20 * SECOND;
    raise_files(0);
    raise_files(dlx_test_stream_daemon.pid);
    auto_client *c = dlx_test_stream_connect();
    struct dlx_daemon_info before = dlx_test_stream_daemon_info(c);
    size_t n_fds = dlx_test_daemon_n_fds(&dlx_test_stream_daemon);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(workers); i++) {
        workers[i] = dlx_test_part_begin(serve, NULL);
        dlx_test_hear(workers[i].sock);
    }
    for (uint32_t i = 0; i < n_procs; i++)
        callers[i] = dlx_test_part_begin(call_as, &n_each);
    for (uint32_t i = 0; i < n_procs; i++)
        dlx_test_hear(callers[i].sock);
    if (n_more())
        printf("%u callers, %u answered, %zu descriptors of dlpackd, %u refusals%s%s\n",
               board->n_callers, board->n_answered, dlx_test_daemon_n_fds(&dlx_test_stream_daemon),
               board->n_refused, *board->text ? ": " : "", board->text);
    for (uint32_t i = 0; i < n_procs; i++) {
        dlx_test_say(callers[i].sock);
        dlx_test_part_join(&callers[i]);
    }
    atomic_store(&board->stops, true);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(workers); i++)
        dlx_test_part_join(&workers[i]);
    if (board->n_answered < n_procs * n_each) {
        ck_assert_uint_ge(board->n_answered, 100);
        ck_assert_uint_gt(board->n_refused, 0);
        ck_assert_uint_gt(n_more(), 0);
        ck_assert_msg(strstr(board->text, "limit") || strstr(board->text, "RLIMIT"), "%s",
                      board->text);
    }
    await_nothing(c, &before, n_fds);
    end_board();
}

/* A call of one more caller, which no worker serves: how it ends. */
static const char *call_late(struct dlx_client *c)
{
    struct dlx_caller *k = NULL;
    board->timeout_ns = SECOND / 50;
    ok(dlx_caller_new(c, "test/svc", CALLER(.max_in_flight = 1), &k));
    ck_assert(call_begin(k) && call_end(k, DLX_FOREVER));
    dlx_caller_unref(k);
    return board->late;
}

/* A link of a worker counts twice, and its way to answer once. */
TEST(a_worker_refuses_callers_beyond_its_links)
{
    const uint32_t n_links = 30;
    struct dlx_caller *k[15] = {NULL};
    if (dlx_test_valgrind()) {
        puts("SKIP: valgrind keeps RLIMIT_NOFILE to itself");
        return;
    }
    begin_board();
    struct dlx_test_part worker = dlx_test_part_begin(serve, &n_links);
    dlx_test_hear(worker.sock);
    auto_client *c = dlx_test_stream_connect();
    for (uint32_t i = 0; i < DLX_ARRAY_SIZE(k); i++) {
        uint32_t n_unlinked = atomic_load(&board->n_unlinked);
        ok(dlx_caller_new(c, "test/svc", CALLER(.max_in_flight = 1), &k[i]));
        ck_assert(call_begin(k[i]));
        eventually(call_end(k[i], 0) || atomic_load(&board->n_unlinked) > n_unlinked);
    }
    ck_assert_uint_eq(board->n_answered, n_links / 3);
    ck_assert_msg(strstr(board->text, "counted twice (limit 30, by its limits of open files and"),
                  "%s", board->text);
    eventually(strstr(call_late(c), "no worker serves it; one was refused: subscriber e2e_scale"));
    for (uint32_t i = 0; i < DLX_ARRAY_SIZE(k); i++)
        dlx_caller_unref(k[i]);
    atomic_store(&board->stops, true);
    dlx_test_part_join(&worker);
    struct dlx_daemon_info info;
    eventually((info = dlx_test_stream_daemon_info(c)).n_publishers == 0 && info.n_links == 0);
    end_board();
}

int main(void)
{
    TCase *tcase = dlx_test_stream_case("scale");
    if (n_more())
        tcase_set_timeout(tcase, 20 * PATIENCE_S);
    return dlx_test_run_case(tcase);
}
