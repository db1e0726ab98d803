/* SPDX-License-Identifier: Apache-2.0 */

/* Calls whose worker, caller or daemon ends, and many of them. */

#include "client/service/envelope.h"
#include "tests/client/harness_call.h"
#include "tests/harness/fds.h"
#include <sched.h>
#include <sys/resource.h>

/* ---- the end of workers and callers -------------------------------------------------------- */

TEST(a_caller_learns_at_once_that_its_worker_died)
{
    struct dlx_test_peer worker = dlx_test_peer_begin(dlx_call_keep_elsewhere);
    auto_client *c = dlx_test_stream_connect();
    auto_caller *k = dlx_call_caller(c, NULL);
    char words[64];
    uint64_t call = dlx_call_ask(k, 1, NULL);
    dlx_test_peer_hear(&worker);
    pid_t pid = worker.pid;
    struct dlx_call_result none = {.size = sizeof none};
    fails(dlx_call_take(k, SECOND / 100, &none), DLX_E_TIMEOUT, "no call has ended in time");
    uint64_t before = dlx__now_ns();
    dlx_test_peer_kill(&worker);
    (void)snprintf(words, sizeof words, "pid %d", (int)pid); /* its name can be seen no more */
    dlx_call_expect_failure(k, call, DLX_E_WORKER_GONE, words);
    ck_assert_uint_lt(dlx__now_ns() - before, SECOND / 2);
    ck_assert_uint_eq(dlx_call_caller_stats(k).workers_gone, 1);
    auto_service *s = dlx_call_service(c, NULL);
    dlx_call_no_request(s, SECOND / 20); /* it is done */
    call = dlx_call_ask(k, 5, NULL);
    dlx_call_answer_next(s);
    dlx_call_expect_reply(k, call, 6);
}

TEST(a_caller_learns_that_its_worker_died_also_from_a_daemon_that_hangs)
{
    struct dlx_test_peer worker = dlx_test_peer_begin(dlx_call_keep_elsewhere);
    auto_client *c = dlx_test_stream_connect();
    auto_caller *k = dlx_call_caller(c, NULL);
    struct dlx_call_result none = {.size = sizeof none};
    uint64_t call = dlx_call_ask(k, 1, NULL);
    dlx_test_peer_hear(&worker);
    fails(dlx_call_take(k, SECOND / 100, &none), DLX_E_TIMEOUT, "no call has ended in time");
    kill(dlx_test_stream_daemon.pid, SIGSTOP);
    uint64_t before = dlx__now_ns();
    dlx_test_peer_kill(&worker);
    dlx_call_expect_failure(k, call, DLX_E_WORKER_GONE, "died with the request");
    ck_assert_uint_lt(dlx__now_ns() - before, 2 * SECOND);
    kill(dlx_test_stream_daemon.pid, SIGCONT);
}

TEST(another_worker_answers_what_is_idempotent)
{
    struct dlx_test_peer worker = dlx_test_peer_begin(dlx_call_keep_elsewhere);
    auto_client *c = dlx_test_stream_connect();
    auto_caller *k = dlx_call_caller(c, NULL);
    uint64_t call = dlx_call_ask(k, 1, CALL(.idempotent = true));
    dlx_test_peer_hear(&worker);
    auto_service *s = dlx_call_service(c, NULL);
    dlx_call_no_request(s, 0);
    uint64_t before = dlx__now_ns();
    dlx_test_peer_kill(&worker);
    auto_request *request = dlx_call_next(s);
    ck_assert_uint_lt(dlx__now_ns() - before, SECOND / 2);
    ck_assert_uint_eq(dlx_message_attempt(dlx_request_message(request)), 2);
    dlx_call_answer(request);
    dlx_call_expect_reply(k, call, 2);
}

TEST(another_worker_tells_what_the_caller_does_not_see)
{
    struct dlx_test_peer worker = dlx_test_peer_begin(dlx_call_keep_elsewhere);
    auto_client *c = dlx_test_stream_connect();
    auto_caller *k = dlx_call_caller(c, NULL);
    uint64_t call = dlx_call_ask(k, 1, NULL);
    dlx_test_peer_hear(&worker);
    auto_service *s = dlx_call_service(c, NULL);
    dlx_test_peer_kill(&worker);
    eventually(({
        struct dlx_request *none = NULL;
        ck_assert_int_lt(dlx_service_take(s, SECOND / 100, &none), 0);
        dlx_call_service_stats(s).gone == 1;
    }));
    dlx_call_expect_failure(k, call, DLX_E_WORKER_GONE, "died");
}

static size_t n_publishers(struct dlx_client *c)
{
    return dlx_test_stream_list(
        c, &(struct dlx_publisher_info){.size = sizeof(struct dlx_publisher_info)});
}

TEST(a_killed_caller_leaves_nothing)
{
    auto_client *c = dlx_test_stream_connect();
    size_t n_daemon_fds = dlx_test_daemon_n_fds(&dlx_test_stream_daemon);
    auto_service *s = dlx_call_service(c, NULL);
    size_t n_fds = dlx_test_n_fds();
    struct dlx_test_peer waits = dlx_test_peer_begin(dlx_call_ask_elsewhere);
    struct dlx_test_peer served = dlx_test_peer_begin(dlx_call_ask_elsewhere);
    for (int n = 0; n < 2; n++)
        dlx_call_answer_next(s);
    dlx_test_peer_hear(&served);
    dlx_test_peer_hear(&waits);
    ck_assert_uint_eq(dlx_call_service_stats(s).n_callers, 2);
    struct dlx_daemon_info before = dlx_test_stream_daemon_info(c);
    ck_assert_uint_ge(before.n_publishers, 4);
    dlx_test_peer_kill(&waits);
    dlx_test_peer_kill(&served);
    eventually(({
        dlx_call_no_request(s, SECOND / 100);
        dlx_call_service_stats(s).n_callers == 0 && n_publishers(c) == 0;
    }));
    eventually(dlx_test_stream_daemon_info(c).n_publishers == 0);
    eventually(({
        dlx_call_no_request(s, SECOND / 100);
        dlx_test_n_fds() == n_fds;
    }));
    s = dlx_service_unref(s); /* it was given spare links for the next callers */
    dlx_test_daemon_wait_n_fds(&dlx_test_stream_daemon, n_daemon_fds);
}

/* The first workers get spare links to the inbox; the last one waits until the caller opens one. */
TEST(a_reply_waits_for_its_caller_while_another_caller_leaves)
{
    enum { WORKERS = 6 };
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    struct dlx_service *workers[WORKERS];
    uint64_t calls[WORKERS];
    for (int i = 0; i < WORKERS; i++)
        workers[i] = dlx_call_service(c, NULL);
    auto_caller *k = dlx_call_caller(other, NULL);
    for (int i = 0; i < WORKERS; i++)
        calls[i] = dlx_call_ask(k, i, NULL);
    for (int i = 0; i < WORKERS; i++)
        dlx_call_answer_next(workers[i]);
    struct dlx_caller *leaves = dlx_call_caller(c, NULL);
    dlx_caller_unref(leaves);
    for (int i = 0; i < WORKERS; i++)
        dlx_call_no_request(workers[i], SECOND / 50);
    for (int i = 0; i < WORKERS; i++)
        dlx_call_expect_reply(k, calls[i], i + 1);
    for (int i = 0; i < WORKERS; i++)
        dlx_service_unref(workers[i]);
}

/* It could not wait until the caller looked. */
TEST(a_caller_is_told_that_a_worker_left_before_its_reply_was_seen)
{
    enum { WORKERS = 6 };
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    struct dlx_service *workers[WORKERS];
    struct dlx_call_result result = {.size = sizeof result};
    int n_replies = 0;
    for (int i = 0; i < WORKERS; i++)
        workers[i] = dlx_call_service(c, NULL);
    auto_caller *k = dlx_call_caller(other, NULL);
    for (int i = 0; i < WORKERS; i++)
        dlx_call_ask(k, i, NULL);
    for (int i = 0; i < WORKERS; i++) {
        dlx_call_answer_next(workers[i]);
        dlx_service_unref(workers[i]);
    }
    for (int i = 0; i < WORKERS; i++) {
        ok(dlx_call_take(k, PATIENCE, &result));
        n_replies += result.code == 0;
        if (result.code != 0)
            contains(result.text, "no reply came: worker (pid ");
        dlx_message_unref(result.reply);
    }
    contains(result.text, "1 messages: it left before a call here");
    ck_assert(n_replies > 0 && n_replies < WORKERS);
}

TEST(requests_of_a_killed_caller_are_not_started)
{
    auto_client *c = dlx_test_stream_connect();
    struct dlx_test_peer caller = dlx_test_peer_begin(dlx_call_ask_elsewhere);
    dlx_test_peer_kill(&caller);
    eventually(n_publishers(c) == 0);
    auto_service *s = dlx_call_service(c, NULL);
    dlx_call_no_request(s, SECOND / 20);
    eventually(dlx_test_stream_daemon_info(c).n_publishers == 0);
}

TEST(a_worker_sees_that_the_caller_was_killed)
{
    auto_client *c = dlx_test_stream_connect();
    auto_service *s = dlx_call_service(c, SERVICE(.max_held = 2));
    struct dlx_test_peer caller = dlx_test_peer_begin(dlx_call_ask_elsewhere);
    auto_request *request = dlx_call_next(s);
    ck_assert(!dlx_request_cancelled(request));
    dlx_test_peer_kill(&caller);
    eventually(({
        dlx_call_no_request(s, SECOND / 100);
        dlx_request_cancelled(request);
    }));
    dlx_call_answer(request); /* in vain */
    request = dlx_request_unref(request);
    eventually(({
        dlx_call_no_request(s, SECOND / 100);
        dlx_call_service_stats(s).n_callers == 0;
    }));
    ck_assert_uint_eq(dlx_call_service_stats(s).abandoned, 1);
}

/* ---- many ---------------------------------------------------------------------------------- */

static void *call_in_thread(void *userdata)
{
    auto_client *c = dlx_test_stream_connect();
    auto_caller *k = dlx_call_caller(c, CALLER(.max_in_flight = 4));
    uint32_t n_begun = 0, n_ended = 0;
    (void)userdata;
    while (n_ended < 200) {
        bool is_full = false; /* one that waits for its worker may hold others up */
        while (!is_full && n_begun < 200 && n_begun - n_ended < 4) {
            const struct dlx_item item = {.tensor = dlx_call_question(k, N, n_begun)};
            uint64_t call;
            int r = dlx_call_begin(k, &item, 1, CALL(.timeout_ns = PATIENCE), &call);
            is_full = r == DLX_E_FULL;
            ck_assert_msg(r == 0 || is_full, "%d %s", r, dlx_errmsg());
            n_begun += r == 0;
            if (is_full)
                item.tensor->deleter(item.tensor);
        }
        if (n_begun == n_ended) { /* a worker that has replied has yet to say that it is done */
            sched_yield();
            continue;
        }
        struct dlx_call_result result = {.size = sizeof result};
        ok(dlx_call_take(k, PATIENCE, &result));
        ck_assert_msg(result.code == 0, "%d %s", result.code, result.text);
        ck_assert_int_eq(dlx_call_first_of(result.reply), (int64_t)result.call);
        dlx_message_unref(result.reply);
        n_ended++;
    }
    return NULL;
}

TEST(several_callers_and_workers)
{
    struct dlx_test_peer workers[3];
    pthread_t threads[4];
    for (int i = 0; i < 3; i++)
        workers[i] = dlx_test_peer_begin(dlx_call_serve_elsewhere);
    for (int i = 0; i < 4; i++)
        threads[i] = dlx_test_stream_thread(call_in_thread, NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 3; i++)
        dlx_test_peer_kill(&workers[i]);
}

/* What a worker and the daemon spend on a caller, by which a service of default limits has a
 * thousand of them. */
TEST(a_caller_costs_a_worker_few_descriptors)
{
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_service *s = dlx_call_service(c, NULL);
    struct dlx_caller *callers[33];
    size_t n_fds = 0, n_daemon_fds = 0;
    for (int64_t i = 0; i < 33; i++) {
        callers[i] = dlx_call_caller(other, NULL);
        uint64_t call = dlx_call_ask(callers[i], i, NULL);
        dlx_call_answer_next(s);
        dlx_call_expect_reply(callers[i], call, i + 1);
        if (i == 0) {
            n_fds = dlx_test_n_fds();
            n_daemon_fds = dlx_test_daemon_n_fds(&dlx_test_stream_daemon);
        }
    }
    ck_assert_uint_le((dlx_test_n_fds() - n_fds) / 32, 18); /* of both, in this process */
    ck_assert_uint_le((dlx_test_daemon_n_fds(&dlx_test_stream_daemon) - n_daemon_fds) / 32, 20);
    for (int i = 0; i < 33; i++)
        dlx_caller_unref(callers[i]);
}

static void call_there_and_back(struct dlx_service *s, struct dlx_caller *k, int64_t value)
{
    uint64_t call = dlx_call_ask(k, value, NULL);
    dlx_call_answer_next(s);
    dlx_call_expect_reply(k, call, value + 1);
}

TEST(a_worker_that_could_not_be_linked_to_a_caller_answers_it_later)
{
    if (dlx_test_valgrind()) {
        puts("SKIP: valgrind keeps RLIMIT_NOFILE to itself");
        return;
    }
    auto_client *c = dlx_test_stream_connect_with_links(2), *others = dlx_test_stream_connect();
    auto_publisher *p = dlx_test_stream_publisher(others, "test/other", NULL);
    auto_service *s = dlx_call_service(others, NULL);
    auto_caller *k = dlx_call_caller(c, NULL);
    struct dlx_subscription *other = dlx_test_stream_subscribe(c, "test/other", NULL);
    ok(dlx_caller_wait(k, PATIENCE));
    uint64_t call = dlx_call_ask(k, 1, NULL);
    dlx_call_answer_next(s);
    dlx_call_expect_failure(k, call, DLX_E_WORKER_GONE,
                            "has 2 links (limit 2, by its limits of open files");
    other = dlx_subscription_unref(other);
    call = dlx_call_ask(k, 2, NULL);
    dlx_call_answer_next(s);
    dlx_call_expect_reply(k, call, 3);
    ck_assert_uint_eq(dlx_call_service_stats(s).n_callers, 1);
}

/* A worker that has no descriptor for another caller: 0; or 1: the request is idempotent. */
LOOP_TEST(a_caller_that_cannot_be_answered_does_not_stop_others, 0, 2)
{
    struct rlimit limit, low;
    if (dlx_test_valgrind()) {
        puts("SKIP: valgrind keeps RLIMIT_NOFILE to itself");
        return;
    }
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_service *s = dlx_call_service(c, NULL);
    auto_caller *served = dlx_call_caller(other, NULL), *k = dlx_call_caller(other, NULL);
    call_there_and_back(s, served, 1);
    uint64_t call = dlx_call_ask(k, 4, CALL(.timeout_ns = 1));
    dlx_call_expect_failure(k, call, DLX_E_TIMEOUT, "");
    eventually(({ /* it has heard of the second one, and has answered nothing */
                  dlx_call_no_request(s, 0);
                  dlx_call_service_stats(s).expired == 1;
    }));
    call = dlx_call_ask(k, 5, CALL(.idempotent = _i == 1));
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    low = limit;
    int next = dlx_test_fds_dup(0);
    close(next);
    low.rlim_cur = (rlim_t)next;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &low), 0);
    for (int n = 0; n < (_i ? 15 : 3); n++) { /* five attempts, of three tries each */
        struct dlx_request *none = NULL;
        fails(dlx_service_take(s, 0, &none), DLX_E_FD_LIMIT, "no way to reply to caller");
    }
    dlx_call_no_request(s, 0);
    call_there_and_back(s, served, 2);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    dlx_call_expect_failure(k, call, DLX_E_WORKER_GONE, "no reply came");
    call_there_and_back(s, k, 3);
    ck_assert_uint_eq(dlx_call_service_stats(s).refused, _i ? 5 : 1);
}

TEST(as_many_replies_may_be_held_as_are_asked_for_and_some_more)
{
    auto_client *c = dlx_test_stream_connect();
    auto_service *s = dlx_call_service(c, NULL);
    auto_caller *k = dlx_call_caller(c, CALLER(.max_in_flight = 1));
    struct dlx_call_result result = {.size = sizeof result};
    struct dlx_message *held[66] = {NULL};
    uint64_t call = 0;
    for (int i = 0; i < 66; i++) {
        call = dlx_call_ask(k, i, NULL);
        dlx_call_answer_next(s);
        if (i == 65)
            fails(dlx_call_take(k, 0, &result), DLX_E_TOO_MANY_HELD,
                  "held, 65 at most: release some");
        else
            held[i] = dlx_call_result_of(k, call).reply;
    }
    dlx_test_stream_unref_messages(held, 65);
    dlx_call_expect_reply(k, call, 66);
}

/* ---- inboxes ------------------------------------------------------------------------------- */

TEST(an_inbox_is_in_no_list_and_matches_no_pattern)
{
    auto_client *c = dlx_test_stream_connect();
    auto_subscription *all = dlx_test_stream_subscribe(c, "**", NULL);
    auto_service *s = dlx_call_service(c, NULL);
    auto_caller *k = dlx_call_caller(c, NULL);
    uint64_t call = dlx_call_ask(k, 1, NULL);
    dlx_call_answer_next(s);
    dlx_call_expect_reply(k, call, 2);
    auto_message *m = dlx_test_stream_next(all);
    ck_assert_str_eq(dlx_message_topic(m), TOPIC);
    take_fails(all, SECOND / 20, DLX_E_TIMEOUT, "");
    struct dlx_publisher_info info = {.size = sizeof info};
    ck_assert_uint_eq(dlx_test_stream_list(c, &info), 1);
    ck_assert_str_eq(info.topic, TOPIC);
    struct dlx_subscription *none = NULL;
    fails(dlx_subscribe(c, "@00112233445566778899aabbccddeeff", NULL, &none), DLX_E_TOPIC, "'@'");
    struct dlx_publisher *p = NULL;
    fails(dlx_publisher_new(c, "@00112233445566778899aabbccddeeff", NULL, &p), DLX_E_TOPIC, "'@'");
}

/* ---- restarts ------------------------------------------------------------------------------ */

TEST(calls_go_on_with_another_daemon)
{
    struct dlx_test_peer worker = dlx_test_peer_begin(dlx_call_serve_elsewhere);
    auto_client *c = dlx_test_stream_connect();
    auto_caller *k = dlx_call_caller(c, NULL);
    for (int64_t round = 0; round < 3; round++) {
        for (int64_t n = 0; n < 20; n++)
            dlx_call_there_and_back(k, N, 100 * round + n);
        dlx_test_stream_restart();
    }
    for (int64_t n = 0; n < 20; n++)
        dlx_call_there_and_back(k, N, n);
    dlx_test_peer_kill(&worker);
}

TEST(a_request_outlives_a_killed_daemon)
{
    auto_client *c = dlx_test_stream_connect();
    auto_service *s = dlx_call_service(c, NULL);
    auto_caller *k = dlx_call_caller(c, NULL);
    uint64_t taken = dlx_call_ask(k, 1, NULL), waits = dlx_call_ask(k, 2, NULL);
    struct dlx_request *request = dlx_call_next(s);
    dlx_test_stream_restart();
    dlx_call_answer(request);
    dlx_request_unref(request);
    dlx_call_expect_reply(k, taken, 2);
    dlx_call_answer_next(s);
    dlx_call_expect_reply(k, waits, 3);
}

/* A process that computes makes no call. */
TEST(a_worker_that_has_yet_to_come_to_another_daemon_serves)
{
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_service *s = dlx_call_service(c, NULL);
    auto_caller *k = dlx_call_caller(other, NULL);
    char words[64];
    (void)snprintf(words, sizeof words,
                   "none of its workers has the request: e2e_call_ends (pid %d)", (int)getpid());
    dlx_test_stream_restart();
    ok(dlx_caller_wait(k, PATIENCE));
    ck_assert_uint_eq(dlx_call_caller_stats(k).n_workers, 0);
    dlx_call_expect_failure(k, dlx_call_ask(k, 1, CALL(.timeout_ns = 1)), DLX_E_TIMEOUT, words);
    uint64_t call = dlx_call_ask(k, 5, NULL);
    dlx_call_answer_next(s);
    dlx_call_expect_reply(k, call, 6);
}

/* The worker comes to the new daemon before the caller, which has yet to subscribe there. */
TEST(the_first_request_of_a_caller_outlives_a_killed_daemon)
{
    auto_client *c = dlx_test_stream_connect(), *other = dlx_test_stream_connect();
    auto_service *s = dlx_call_service(other, SERVICE(.max_held = 2));
    auto_caller *k = dlx_call_caller(c, NULL);
    uint64_t first = dlx_call_ask(k, 1, NULL), second = dlx_call_ask(k, 2, NULL);
    dlx_test_stream_restart();
    struct dlx_request *requests[] = {dlx_call_next(s), dlx_call_next(s)};
    for (int i = 0; i < 2; i++) {
        dlx_call_answer(requests[i]);
        dlx_request_unref(requests[i]);
    }
    dlx_call_expect_reply(k, first, 2);
    dlx_call_expect_reply(k, second, 3);
}
