/* SPDX-License-Identifier: Apache-2.0 */
/* The figures that the page of `dlxctl serve` gets, and which topics are watched for it. */
#include "cli/serve_page.h"
#include "tests/harness/run.h"

#define SECOND INT64_C(1000000000)

static struct board board;
static struct dlx_daemon_info dlpackd;
static struct metrics metrics;
static struct serve_page page;
static struct serve_pictures pictures;

static void set_up(void)
{
    dlpackd = (struct dlx_daemon_info){.size = sizeof dlpackd, .version = "1.2.3"};
    metrics = (struct metrics){.board = &board, .daemon = &dlpackd, .up = true};
    pictures = (struct serve_pictures){.interval_ns = SECOND / 2};
    page = (struct serve_page){
        .metrics = &metrics, .pictures = &pictures, .trouble = "", .interval_ns = SECOND};
}

static void tear_down(void)
{
    serve_page_deinit(&page);
    metrics_deinit(&metrics);
    board_deinit(&board);
}

/* Topics t000, t001, ..., each with a publisher. */
static void look(unsigned n, int64_t now_ns)
{
    board_begin(&board, now_ns, true);
    for (unsigned i = 0; i < n; i++) {
        struct dlx_publisher_info info = {.size = sizeof info,
                                          .publisher = 100 + i,
                                          .published = 10,
                                          .published_bytes = 1000,
                                          .n_subscribers = 1};
        (void)snprintf(info.topic, sizeof info.topic, "t%03u", i);
        ok(board_add(&board, &info));
    }
    ok(board_end(&board));
    board_sum(&board);
}

/* The link holds so many messages, the oldest of which was published at that time. */
static void hold(size_t publisher, const char *program, uint32_t n, int64_t at_ns, int64_t now_ns)
{
    struct dlx_link_info link = {.size = sizeof link,
                                 .link = 500 + publisher,
                                 .n_held = n,
                                 .max_held = 16,
                                 .held_ns = (uint64_t)at_ns};
    (void)snprintf(link.client_name, sizeof link.client_name, "%s", program);
    ok(board_set_links(&board, publisher, &link, 1, now_ns));
    board_sum(&board);
}

/* What the query does not say: all topics, by name. */
static json_t *ask(struct serve_page_query query, int64_t now_ns)
{
    size_t size;
    query.filter = query.filter ? query.filter : "";
    query.sort = "TOPIC";
    query.topic = query.topic ? query.topic : "";
    query.n_topics = query.n_topics ? query.n_topics : 50;
    char *text = serve_page_state(&page, &query, now_ns, &size);
    ck_assert_ptr_nonnull(text);
    ck_assert_uint_eq(strlen(text), size);
    json_t *json = json_loads(text, 0, NULL);
    ck_assert_ptr_nonnull(json);
    free(text);
    return json;
}

static json_int_t number(const json_t *json, const char *key)
{
    ck_assert_msg(json_is_integer(json_object_get(json, key)), "%s is no integer", key);
    return json_integer_value(json_object_get(json, key));
}

static const char *text_of(const json_t *json, const char *key)
{
    return json_string_value(json_object_get(json, key));
}

static unsigned n_watched(void)
{
    unsigned n = 0;
    for (size_t i = 0; i < board.n_topics; i++)
        n += board.topics[i].watched;
    return n;
}

TEST(a_page_has_figures_before_any_look)
{
    metrics.up = false;
    page.trouble = "no daemon";
    json_t *json = ask((struct serve_page_query){0}, SECOND);
    ck_assert(json_is_false(json_object_get(json, "up")));
    ck_assert_str_eq(text_of(json, "trouble"), "no daemon");
    ck_assert_int_eq(number(json, "look_ns"), 0);
    ck_assert_uint_eq(json_array_size(json_object_get(json, "topics")), 0);
    json_decref(json);
}

TEST(a_page_gets_as_many_topics_as_it_shows)
{
    look(300, SECOND);
    json_t *json =
        ask((struct serve_page_query){.n_topics = 7, .reverse = true, .filter = "t1"}, SECOND);
    const json_t *topics = json_object_get(json, "topics");
    ck_assert_uint_eq(json_array_size(topics), 7);
    ck_assert_int_eq(number(json, "n_topics"), 300);
    ck_assert_int_eq(number(json, "n_found"), 100);
    ck_assert_str_eq(text_of(json_array_get(topics, 0), "topic"), "t199");
    json_decref(json);
}

TEST(topics_that_pages_show_are_watched_until_they_are_gone)
{
    look(300, SECOND);
    serve_page_watch(&page, SECOND);
    ck_assert_uint_eq(n_watched(), 0);
    json_decref(ask((struct serve_page_query){.topic = "t299"}, SECOND));
    serve_page_watch(&page, 2 * SECOND);
    ck_assert_uint_eq(n_watched(), 31); /* 30 of the 50 rows, and the topic that is chosen */
    ck_assert(board_find(&board, "t000")->watched);
    ck_assert(board_find(&board, "t299")->watched);
    serve_page_watch(&page, 7 * SECOND);
    ck_assert_uint_eq(n_watched(), 0);
}

TEST(many_pages_do_not_make_looks_dear)
{
    look(300, SECOND);
    for (unsigned i = 0; i < 10; i++) {
        char filter[8];
        (void)snprintf(filter, sizeof filter, "t*%u", i);
        json_decref(ask((struct serve_page_query){.filter = filter}, SECOND));
    }
    serve_page_watch(&page, SECOND);
    ck_assert_uint_eq(n_watched(), 100);
}

TEST(holds_come_with_the_oldest_first)
{
    look(60, 10 * SECOND);
    hold(1, "young", 16, 9 * SECOND, 10 * SECOND);
    hold(2, "<b>old</b>", 3, 2 * SECOND, 10 * SECOND);
    hold(3, "unknown", 5, 0, 10 * SECOND);
    hold(4, "none", 0, 0, 10 * SECOND);
    json_t *json = ask((struct serve_page_query){0}, 10 * SECOND);
    const json_t *holds = json_object_get(json, "holds"), *old = json_array_get(holds, 0);
    ck_assert_uint_eq(json_array_size(holds), 3);
    ck_assert_str_eq(text_of(old, "program"), "<b>old</b>");
    ck_assert_str_eq(text_of(old, "topic"), "t002");
    ck_assert_int_eq(number(old, "held_age_ns"), 8 * SECOND);
    ck_assert_int_eq(number(old, "bytes"), 300); /* three of 100 bytes, as the average is */
    ck_assert_str_eq(text_of(json_array_get(holds, 1), "program"), "young");
    ck_assert(json_is_null(json_object_get(json_array_get(holds, 2), "held_age_ns")));
    json_decref(json);
    for (size_t i = 0; i < 60; i++)
        hold(i, "many", 1, SECOND, 10 * SECOND);
    json = ask((struct serve_page_query){0}, 10 * SECOND);
    ck_assert_uint_eq(json_array_size(json_object_get(json, "holds")), 50);
    ck_assert_int_eq(number(json, "n_holds"), 60);
    json_decref(json);
}

/* One that takes nothing holds nothing, and is what an operator looks for. */
TEST(subscribers_that_block_come_before_the_oldest_holds)
{
    struct dlx_link_info link = {.link = 7,
                                 .client_name = "stuck",
                                 .max_held = 16,
                                 .behind = 12,
                                 .next_ns = 4 * SECOND,
                                 .blocks = true};
    look(3, 10 * SECOND);
    hold(1, "old", 3, 2 * SECOND, 10 * SECOND);
    ok(board_set_links(&board, 2, &link, 1, 10 * SECOND));
    json_t *json = ask((struct serve_page_query){0}, 10 * SECOND);
    const json_t *holds = json_object_get(json, "holds"), *stuck = json_array_get(holds, 0);
    ck_assert_int_eq(number(json, "n_holds"), 2);
    ck_assert_str_eq(text_of(stuck, "program"), "stuck");
    ck_assert(json_is_true(json_object_get(stuck, "blocks")));
    ck_assert_int_eq(number(stuck, "behind"), 12);
    ck_assert_int_eq(number(stuck, "next_age_ns"), 6 * SECOND);
    ck_assert_int_eq(number(stuck, "bytes"), 0);
    ck_assert_str_eq(text_of(json_array_get(holds, 1), "program"), "old");
    json_decref(json);
}

TEST(a_topic_that_is_chosen_comes_with_its_links)
{
    look(3, 10 * SECOND);
    hold(1, "program", 16, 9 * SECOND, 10 * SECOND);
    json_t *json = ask((struct serve_page_query){.topic = "t001"}, 10 * SECOND);
    const json_t *publishers = json_object_get(json_object_get(json, "topic"), "publishers");
    ck_assert_uint_eq(json_array_size(publishers), 1);
    const json_t *link = json_array_get(json_object_get(json_array_get(publishers, 0), "links"), 0);
    ck_assert_str_eq(text_of(link, "client_name"), "program");
    ck_assert_int_eq(number(link, "held_age_ns"), SECOND);
    json_decref(json);
    json = ask((struct serve_page_query){.topic = "none"}, 10 * SECOND);
    ck_assert(json_is_null(json_object_get(json, "topic")));
    json_decref(json);
}

TEST(quotas_without_a_limit_are_left_out)
{
    struct dlx_quota_info quotas[] = {
        {.size = sizeof quotas[0], .name = "links", .used = 3, .max = 4},
        {.size = sizeof quotas[0], .name = "bytes", .used = 3, .max = DLX_QUOTA_UNLIMITED}};
    metrics.quotas = (struct metrics_quota){.items = calloc(2, sizeof quotas[0]), .n = 2};
    ck_assert_ptr_nonnull(metrics.quotas.items);
    memcpy(metrics.quotas.items, quotas, sizeof quotas);
    json_t *json = ask((struct serve_page_query){0}, SECOND);
    const json_t *shown = json_object_get(json, "quotas");
    ck_assert_uint_eq(json_array_size(shown), 1);
    ck_assert_str_eq(text_of(json_array_get(shown, 0), "name"), "links");
    json_decref(json);
}

TEST(publishers_that_rules_hide_are_counted)
{
    look(3, SECOND);
    board.n_hidden = 2;
    json_t *json = ask((struct serve_page_query){0}, SECOND);
    ck_assert_int_eq(number(json, "n_hidden"), 2);
    json_decref(json);
}

TEST(the_page_is_three_files)
{
    const char *type;
    ck_assert_ptr_nonnull(strstr(serve_page_file("/", &type), "src=\"page.js\""));
    ck_assert_str_eq(type, "text/html; charset=utf-8");
    ck_assert_ptr_nonnull(serve_page_file("/page.css", &type));
    /* what C would read as something else: a backslash, a quote, a trigraph */
    const char *script = serve_page_file("/page.js", &type);
    ck_assert_ptr_nonnull(strstr(script, "?? \"\""));
    ck_assert_ptr_nonnull(strstr(script, "\\n${"));
    ck_assert_ptr_null(serve_page_file("/page.html", &type));
    ck_assert_ptr_null(serve_page_file("", &type));
}

TEST(pictures_are_of_the_topics_that_are_named)
{
    pictures.patterns = (struct cli_texts){.items = {"cam/*", "lidar", "deep/**"}, .n = 3};
    ck_assert(serve_picture_allowed(&pictures, "cam/front"));
    ck_assert(serve_picture_allowed(&pictures, "lidar"));
    ck_assert(serve_picture_allowed(&pictures, "deep/a/b"));
    static const char *const others[] = {"",     "cam",   "cam/front/raw", "lidar/x",   "xlidar",
                                         "deep", "cam/*", "cam/**",        "deep/*/**", "cam/f*"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        ck_assert_msg(!serve_picture_allowed(&pictures, others[i]), "'%s'", others[i]);
    json_t *json = ask((struct serve_page_query){.topic = "lidar"}, SECOND);
    ck_assert_int_eq(number(json, "picture_ns"), SECOND / 2);
    json_decref(json);
    json = ask((struct serve_page_query){.topic = "cam/**"}, SECOND);
    ck_assert(json_is_null(json_object_get(json, "picture_ns")));
    json_decref(json);
}

int main(void)
{
    TCase *tcase = tcase_create("page");
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    return dlx_test_run_case(tcase);
}
