/* SPDX-License-Identifier: Apache-2.0 */
/* dlxctl serve: the text of metrics, which topics have series, and what opens it. */
#include "cli/http.h"
#include "cli/metrics.h"
#include "cli/serve_listen.h"
#include "cli/serve_token.h"
#include "tests/harness/run.h"

#define SECOND INT64_C(1000000000)

static struct board board;
static struct dlx_daemon_info dlpackd;
static struct metrics metrics;
static const char *open_topic; /* NULL: there is none that every user may observe */
static int64_t now_s;

static void set_up(void)
{
    dlpackd = (struct dlx_daemon_info){.size = sizeof dlpackd, .version = "1.2.3"};
    open_topic = NULL;
    metrics = (struct metrics){.board = &board, .daemon = &dlpackd, .up = true, .n_topics_max = 2};
}

static void tear_down(void)
{
    metrics_deinit(&metrics);
    board_deinit(&board);
}

/* One publisher for each topic, in the order of names. */
static void look(size_t n, const char *const *topics, const uint64_t *published)
{
    board_begin(&board, ++now_s * SECOND, true);
    for (size_t i = 0; i < n; i++) {
        struct dlx_publisher_info info = {.size = sizeof info,
                                          .publisher = 100 + (uint64_t)topics[i][0],
                                          .published = published[i]};
        info.for_everybody = open_topic && strcmp(topics[i], open_topic) == 0;
        (void)snprintf(info.topic, sizeof info.topic, "%s", topics[i]);
        ok(board_add(&board, &info));
    }
    ok(board_end(&board));
    board_sum(&board);
    metrics_name_topics(&metrics);
}

#define LOOK(topics, ...)                                                                          \
    look(sizeof(topics) / sizeof *(topics), topics, (const uint64_t[]){__VA_ARGS__})

/* Has the text this line? The text of all metrics is freed. */
static bool has_line(bool all, const char *line)
{
    char wanted[512];
    size_t size;
    char *text = metrics_text(&metrics, all, &size);
    ck_assert_ptr_nonnull(text);
    ck_assert_uint_eq(strlen(text), size);
    (void)snprintf(wanted, sizeof wanted, "\n%s\n", line);
    bool has = strstr(text, wanted) != NULL;
    free(text);
    return has;
}

#define PUBLISHED(topic) "dlx_published_messages_total{topic=\"" topic "\"} "

TEST(topics_beyond_the_limit_share_a_series)
{
    static const char *const topics[] = {"a", "b", "c", "d"};
    LOOK(topics, 1, 2, 4, 8);
    ck_assert(has_line(true, PUBLISHED("a") "1"));
    ck_assert(has_line(true, PUBLISHED("b") "2"));
    ck_assert(has_line(true, PUBLISHED("(other)") "12"));
    ck_assert(!has_line(true, PUBLISHED("c") "4"));
    ck_assert(has_line(true, "dlx_named_topics 2"));
}

/* A topic that comes later, and is before the others by name, takes no series from them. */
TEST(a_topic_keeps_its_series_when_others_come_and_its_publisher_ends)
{
    static const char *const first[] = {"m", "n"}, *const then[] = {"a", "n"};
    LOOK(first, 5, 6);
    LOOK(then, 3, 7);
    ck_assert(has_line(true, PUBLISHED("m") "5"));
    ck_assert(has_line(true, PUBLISHED("n") "7"));
    ck_assert(has_line(true, PUBLISHED("(other)") "3"));
    ck_assert(has_line(true, "dlx_topic_publishers{topic=\"m\"} 0"));
}

TEST(figures_that_the_daemon_does_not_know_count_as_0)
{
    struct dlx_publisher_info info = {
        .topic = "a", .publisher = 1, .copied_bytes = DLX_FIGURE_UNKNOWN, .blocked_ns = 1500000000};
    board_begin(&board, ++now_s * SECOND, true);
    ok(board_add(&board, &info));
    ok(board_end(&board));
    metrics_name_topics(&metrics);
    ck_assert(has_line(true, "dlx_copied_bytes_total{topic=\"a\"} 0"));
    ck_assert(has_line(true, "dlx_blocked_seconds_total{topic=\"a\"} 1.5"));
}

TEST(the_age_of_the_oldest_hold_is_that_of_the_slowest_subscriber)
{
    static const char *const topics[] = {"a"};
    const struct dlx_link_info links[] = {
        {.link = 1, .held_ns = 8 * SECOND}, {.link = 2, .held_ns = 5 * SECOND}, {.link = 3}};
    LOOK(topics, 1);
    ok(board_set_links(&board, 0, links, 3, 10 * SECOND));
    board_sum(&board);
    ck_assert(has_line(true, "dlx_topic_oldest_hold_seconds{topic=\"a\"} 5"));
}

TEST(held_bytes_are_messages_of_the_mean_size_of_their_publisher)
{
    const struct dlx_publisher_info infos[] = {
        {.topic = "a", .publisher = 1, .published = 4, .published_bytes = 400},
        {.topic = "a", .publisher = 2, .published = 1, .published_bytes = 7},
        {.topic = "b", .publisher = 3}};
    const struct dlx_link_info links[] = {{.link = 1, .n_held = 2}, {.link = 2, .n_held = 1}};
    board_begin(&board, ++now_s * SECOND, true);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(infos); i++)
        ok(board_add(&board, &infos[i]));
    ok(board_end(&board));
    for (size_t i = 0; i < DLX_ARRAY_SIZE(infos); i++)
        ok(board_set_links(&board, i, links, 2, now_s * SECOND));
    board_sum(&board);
    metrics_name_topics(&metrics);
    ck_assert(has_line(true, "dlx_held_bytes{topic=\"a\"} 321"));
    ck_assert(has_line(true, "dlx_held_bytes{topic=\"b\"} 0")); /* nothing was published */
}

TEST(without_the_right_to_all_no_topic_and_no_user_is_named)
{
    static const char *const topics[] = {"secret"};
    struct dlx_quota_info quota = {.uid = 1000, .name = "bytes", .used = 5, .max = 10};
    LOOK(topics, 1);
    metrics.quotas = (struct metrics_quota){malloc(sizeof quota), 1};
    ck_assert_ptr_nonnull(metrics.quotas.items);
    *metrics.quotas.items = quota;
    size_t size;
    char *text = metrics_text(&metrics, false, &size);
    ck_assert_ptr_null(strstr(text, "secret"));
    ck_assert_ptr_null(strstr(text, "uid="));
    contains(text, "dlx_up 1\n");
    contains(text, "dlx_daemon_info{version=\"1.2.3\",protocol=\"0.0\"} 1\n");
    free(text);
    ck_assert(has_line(true, "dlx_quota_used{uid=\"1000\",socket=\"\",quota=\"bytes\"} 5"));
    ck_assert(has_line(true, "dlx_quota_limit{uid=\"1000\",socket=\"\",quota=\"bytes\"} 10"));
}

TEST(topics_that_every_user_may_observe_need_no_token)
{
    static const char *const topics[] = {"a", "b", "c"}, *const then[] = {"a", "c"};
    open_topic = "b";
    LOOK(topics, 1, 2, 3);
    ck_assert(has_line(false, PUBLISHED("b") "2"));
    ck_assert(has_line(true, PUBLISHED("a") "1"));
    size_t size;
    char *text = metrics_text(&metrics, false, &size);
    ck_assert_ptr_null(strstr(text, "topic=\"a\""));
    ck_assert_ptr_null(strstr(text, METRICS_OTHER)); /* a sum that has others */
    free(text);
    /* Whether a topic without a publisher is still for everybody is not known. */
    LOOK(then, 1, 3);
    ck_assert(!has_line(false, PUBLISHED("b") "2"));
    ck_assert(has_line(true, PUBLISHED("b") "2"));
}

TEST(a_quota_without_a_limit_has_none_in_the_metrics)
{
    LOOK(((const char *const[]){"a"}), 1);
    struct dlx_quota_info quota = {.name = "bytes", .max = DLX_QUOTA_UNLIMITED};
    metrics.quotas = (struct metrics_quota){malloc(sizeof quota), 1};
    ck_assert_ptr_nonnull(metrics.quotas.items);
    *metrics.quotas.items = quota;
    ck_assert(has_line(true, "dlx_quota_used{uid=\"0\",socket=\"\",quota=\"bytes\"} 0"));
    size_t size;
    char *text = metrics_text(&metrics, true, &size);
    ck_assert_ptr_null(strstr(text, "dlx_quota_limit{"));
    free(text);
}

TEST(names_that_others_chose_are_escaped_in_labels)
{
    LOOK(((const char *const[]){"a"}), 1);
    (void)snprintf(dlpackd.version, sizeof dlpackd.version, "1\"} 7\nx\\");
    ck_assert(has_line(true, "dlx_daemon_info{version=\"1\\\"} 7\\nx\\\\\",protocol=\"0.0\"} 1"));
}

TEST(before_the_first_look_there_is_only_dlx_up)
{
    size_t size;
    metrics.up = false;
    char *text = metrics_text(&metrics, true, &size);
    contains(text, "\ndlx_up 0\n");
    ck_assert_ptr_null(strstr(text, "dlx_daemon_info"));
    free(text);
}

TEST(only_names_of_loopback_pass_the_check_of_hosts)
{
    static const char *const good[] = {"localhost", "localhost:1", "127.0.0.1:9464", "[::1]",
                                       "[::1]:80"};
    static const char *const bad[] = {"",           "localhost.evil", "localhost:", "localhost:a",
                                      "127.0.0.11", "[::1]x",         "evil:80"};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(good); i++)
        ck_assert_msg(http_is_loopback(good[i]), "%s", good[i]);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(bad); i++)
        ck_assert_msg(!http_is_loopback(bad[i]), "%s", bad[i]);
}

TEST(a_token_is_matched_as_a_whole)
{
    ck_assert(serve_token_matches("0123456789abcdef", "Bearer 0123456789abcdef"));
    ck_assert(serve_token_matches("0123456789abcdef", "bearer 0123456789abcdef"));
    ck_assert(!serve_token_matches("0123456789abcdef", "Bearer 0123456789abcde"));
    ck_assert(!serve_token_matches("0123456789abcdef", "Bearer 0123456789abcdeff"));
    ck_assert(!serve_token_matches("0123456789abcdef", "Bearer 0123456789abcdeF"));
    ck_assert(!serve_token_matches("0123456789abcdef", "Basic 0123456789abcdef"));
    ck_assert(!serve_token_matches("0123456789abcdef", ""));
}

TEST(a_free_port_is_named_where_the_port_is_0)
{
    struct serve_listen l;
    struct cli_error e;
    ok(serve_listen_open(&l, "127.0.0.1:0", &e));
    ck_assert_int_eq(strncmp(l.address, "127.0.0.1:", 10), 0);
    ck_assert_str_ne(l.address, "127.0.0.1:0");
    struct serve_listen other;
    ck_assert_int_eq(serve_listen_open(&other, l.address, &e), DLX_E_IN_USE);
    contains(e.text, "another program listens on 127.0.0.1:");
    serve_listen_close(&l);
}

int main(void)
{
    TCase *tcase = tcase_create("metrics");
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    return dlx_test_run_case(tcase);
}
