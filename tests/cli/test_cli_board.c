/* SPDX-License-Identifier: Apache-2.0 */
/* The model of dlxctl top: counters of topics, rates, and which topics are shown in which order. */
#include "cli/board_view.h"
#include "cli/top_topic.h"
#include "tests/harness/run.h"

#define SECOND INT64_C(1000000000)

static struct board board;

static void clear(void)
{
    board_deinit(&board);
}

static struct dlx_publisher_info publisher(const char *topic, uint64_t id, uint64_t published)
{
    struct dlx_publisher_info info = {.size = sizeof info,
                                      .publisher = id,
                                      .published = published,
                                      .published_bytes = 100 * published,
                                      .arena_bytes = 4096,
                                      .control_bytes = 1024,
                                      .pid = 7,
                                      .n_subscribers = 1};
    (void)snprintf(info.topic, sizeof info.topic, "%s", topic);
    (void)snprintf(info.client_name, sizeof info.client_name, "camera");
    return info;
}

static struct dlx_link_info subscriber(uint64_t id, uint64_t taken, uint64_t lost)
{
    struct dlx_link_info info = {
        .size = sizeof info, .link = id, .pid = 8, .taken = taken, .lost = lost, .max_held = 4};
    (void)snprintf(info.client_name, sizeof info.client_name, "viewer");
    return info;
}

static void look(int64_t seconds, bool same_daemon, const struct dlx_publisher_info *infos,
                 size_t n)
{
    board_begin(&board, seconds * SECOND, same_daemon);
    for (size_t i = 0; i < n; i++)
        ck_assert_int_eq(board_add(&board, &infos[i]), 0);
    ck_assert_int_eq(board_end(&board), 0);
    board_sum(&board);
}

static void set_link(size_t i, int64_t seconds, struct dlx_link_info link)
{
    ck_assert_int_eq(board_set_links(&board, i, &link, 1, seconds * SECOND), 0);
    board_sum(&board);
}

static struct board_topic *topic(const char *name)
{
    struct board_topic *t = board_find(&board, name);
    ck_assert_ptr_nonnull(t);
    return t;
}

TEST(publishers_of_a_topic_are_summed)
{
    struct dlx_publisher_info infos[] = {publisher("a", 1, 10), publisher("a", 2, 20),
                                         publisher("b", 3, 5)};
    infos[1].n_subscribers = 3;
    look(1, false, infos, 3);
    ck_assert_uint_eq(topic("a")->n_publishers, 2);
    ck_assert_uint_eq(topic("a")->n_subscribers, 3);
    ck_assert_uint_eq(topic("a")->counters[BOARD_MESSAGES], 30);
    ck_assert_uint_eq(topic("a")->counters[BOARD_BYTES], 3000);
    ck_assert_uint_eq(topic("a")->memory_bytes, 2 * 5120);
    ck_assert_double_eq(topic("a")->messages_per_s, BOARD_UNKNOWN);
    infos[0].published += 4;
    infos[1].published += 2;
    look(3, true, infos, 3);
    ck_assert_double_eq(topic("a")->messages_per_s, 3);
    ck_assert_double_eq(topic("b")->messages_per_s, 0);
    ck_assert_ptr_null(board_find(&board, "c"));
}

TEST(counters_of_a_topic_keep_what_ended_publishers_counted)
{
    struct dlx_publisher_info first = publisher("a", 1, 10), second = publisher("a", 2, 5);
    look(1, false, &first, 1);
    set_link(0, 1, subscriber(1, 8, 2));
    look(2, true, &second, 1);
    ck_assert_uint_eq(topic("a")->counters[BOARD_MESSAGES], 15);
    ck_assert_double_eq(topic("a")->messages_per_s, 5);
    set_link(0, 2, subscriber(2, 4, 1));
    ck_assert_uint_eq(topic("a")->dropped, 3);
    look(3, true, NULL, 0);
    ck_assert_uint_eq(topic("a")->counters[BOARD_MESSAGES], 15);
    ck_assert_uint_eq(topic("a")->n_publishers, 0);
    look(4, true, &first, 1); /* as if for the first time */
    ck_assert_uint_eq(topic("a")->counters[BOARD_MESSAGES], 25);
}

TEST(publishers_that_reconnect_are_counted_once)
{
    struct dlx_publisher_info infos[] = {publisher("a", 1, 10), publisher("b", 2, 20)};
    look(1, false, infos, 2);
    set_link(0, 1, subscriber(1, 8, 2));
    /* the daemon restarts: a comes back at once, b with its next call */
    infos[0] = publisher("a", 1001, 13);
    look(2, false, infos, 1);
    ck_assert_uint_eq(topic("a")->counters[BOARD_MESSAGES], 13);
    ck_assert_double_eq(topic("a")->messages_per_s, BOARD_UNKNOWN);
    set_link(0, 2, subscriber(1001, 9, 3));
    ck_assert_uint_eq(topic("a")->dropped, 3);
    ck_assert_double_eq(topic("a")->dropped_per_s, BOARD_UNKNOWN);
    infos[1] = publisher("b", 1002, 24);
    look(3, true, infos, 2);
    ck_assert_uint_eq(topic("b")->counters[BOARD_MESSAGES], 24);
    /* another program with the same topic counts for itself */
    infos[1] = publisher("b", 1003, 30);
    infos[1].pid = 9;
    look(4, false, infos, 2);
    ck_assert_uint_eq(topic("b")->counters[BOARD_MESSAGES], 54);
    ck_assert_uint_eq(topic("a")->counters[BOARD_MESSAGES], 13);
}

TEST(rates_of_links_count_from_the_look_before_at_them)
{
    struct dlx_publisher_info info = publisher("a", 1, 10);
    look(1, false, &info, 1);
    set_link(0, 1, subscriber(1, 8, 2));
    look(2, true, &info, 1); /* not at the links */
    look(3, true, &info, 1);
    set_link(0, 3, subscriber(1, 18, 6));
    ck_assert_double_eq(board.publishers[0].links[0].taken_per_s, 5);
    ck_assert_double_eq(topic("a")->dropped_per_s, 2);
    look(4, true, &info, 1);
    ck_assert_double_eq(topic("a")->dropped_per_s, 2);
    ck_assert_uint_eq(topic("a")->dropped, 6);
}

TEST(links_tell_the_state_of_a_topic)
{
    struct dlx_publisher_info info = publisher("a", 1, 10);
    struct dlx_link_info links[] = {subscriber(1, 0, 0), subscriber(2, 0, 0), subscriber(3, 0, 0)};
    char text[BOARD_TEXT_SIZE];
    links[0].n_held = links[0].max_held;
    links[0].blocks = true;
    links[0].held_ns = 1;
    links[1].behind = 12;
    links[1].next_ns = SECOND / 4;
    links[2].behind = DLX_BEHIND_UNKNOWN;
    links[2].n_held = links[2].max_held;
    look(1, false, &info, 1);
    ck_assert_int_eq(board_set_links(&board, 0, links, 3, SECOND), 0);
    board_sum(&board);
    ck_assert_uint_eq(topic("a")->behind, 12);
    ck_assert_uint_eq(topic("a")->n_held, 8);
    ck_assert_uint_eq(topic("a")->held_age_ns, SECOND - 1);
    ck_assert_str_eq(board_text(board_column_find("oldest"), topic("a"), text), "1.00 s");
    ck_assert_uint_eq(topic("a")->next_age_ns, 3 * SECOND / 4);
    ck_assert_str_eq(board_text(board_column_find("note"), topic("a"), text), "BLOCKED, 2 FULL");
}

TEST(copies_and_waits_of_publishers_are_counted)
{
    struct dlx_publisher_info infos[] = {publisher("a", 1, 10), publisher("a", 2, 10)};
    char text[BOARD_TEXT_SIZE];
    infos[0].copied = 3;
    infos[0].copied_bytes = 3072;
    infos[0].blocked_ns = 1500 * (SECOND / 1000);
    infos[1].copied = infos[1].copied_bytes = infos[1].blocked_ns = DLX_FIGURE_UNKNOWN;
    look(1, false, infos, 2);
    ck_assert_uint_eq(topic("a")->counters[BOARD_COPIED], 3);
    ck_assert_str_eq(board_text(board_column_find("copied"), topic("a"), text), "3.00 KiB");
    ck_assert_str_eq(board_text(board_column_find("blocked"), topic("a"), text), "1.50 s");
    look(2, true, infos + 1, 1);
    ck_assert_uint_eq(topic("a")->counters[BOARD_COPIED], 3);
}

/* The wait of a publisher that was killed ends at an unknown time, and is taken back. */
TEST(a_sum_of_waits_that_is_corrected_is_not_counted_again)
{
    struct dlx_publisher_info info = publisher("a", 1, 10);
    info.blocked_ns = 900;
    look(1, false, &info, 1);
    info.blocked_ns = 600;
    info.retained = true;
    look(2, true, &info, 1);
    ck_assert_uint_eq(topic("a")->counters[BOARD_BLOCKED_NS], 900);
    info.blocked_ns = 700;
    look(3, true, &info, 1);
    ck_assert_uint_eq(topic("a")->counters[BOARD_BLOCKED_NS], 1000);
}

TEST(counters_do_not_fall_whatever_a_publisher_and_a_subscriber_say)
{
    struct dlx_publisher_info info = publisher("a", 1, 0);
    for (int i = 1; i <= 4; i++) {
        uint64_t n = i % 2 ? UINT64_MAX : 1;
        info.published = info.published_bytes = info.refused = info.copied = n;
        info.copied_bytes = info.blocked_ns = n;
        look(i, i > 1, &info, 1);
        set_link(0, i, subscriber(1, 1, n));
        ck_assert_uint_eq(topic("a")->counters[BOARD_MESSAGES], UINT64_MAX);
        ck_assert_uint_eq(topic("a")->counters[BOARD_BYTES], UINT64_MAX);
        ck_assert_uint_eq(topic("a")->counters[BOARD_LOST], UINT64_MAX);
        ck_assert_uint_eq(topic("a")->dropped, UINT64_MAX);
    }
    info.refused = info.copied = UINT64_MAX - 1; /* UINT64_MAX: unknown */
    for (int i = 5; i <= 8; i++, info.refused = info.copied = i % 2 ? UINT64_MAX - 1 : 1)
        look(i, true, &info, 1);
    ck_assert_uint_eq(topic("a")->counters[BOARD_REFUSED], UINT64_MAX);
    ck_assert_uint_eq(topic("a")->counters[BOARD_COPIED], UINT64_MAX);
}

TEST(a_look_that_fails_changes_nothing)
{
    struct dlx_publisher_info info = publisher("a", 1, 10), other = publisher("b", 2, 1);
    look(1, false, &info, 1);
    board_begin(&board, 2 * SECOND, false);
    ck_assert_int_eq(board_add(&board, &other), 0);
    board_abandon(&board);
    ck_assert_ptr_null(board_find(&board, "b"));
    info.published = 12;
    look(3, true, &info, 1);
    ck_assert_uint_eq(topic("a")->counters[BOARD_MESSAGES], 12);
    ck_assert_double_eq(topic("a")->messages_per_s, 1);
}

TEST(a_partial_look_leaves_other_topics_as_they_are)
{
    struct dlx_publisher_info infos[] = {publisher("a", 1, 10), publisher("b", 2, 20),
                                         publisher("b", 3, 5), publisher("c", 4, 7)};
    look(1, false, infos, 4);
    set_link(0, 1, subscriber(1, 8, 2));
    set_link(3, 1, subscriber(4, 7, 0));
    topic("b")->watched = true;
    board_begin_partial(&board, 2 * SECOND);
    infos[2] = publisher("b", 5, 6); /* 3 has ended, 5 begun */
    infos[1].published += 4;
    ck_assert_int_eq(board_add(&board, &infos[1]), 0);
    ck_assert_int_eq(board_add(&board, &infos[2]), 0);
    ck_assert_int_eq(board_end(&board), 0);
    board_sum(&board);
    ck_assert_uint_eq(board.n_publishers, 4);
    ck_assert_double_eq(topic("b")->messages_per_s, 10);
    ck_assert_uint_eq(topic("b")->counters[BOARD_MESSAGES], 35);
    ck_assert_uint_eq(topic("a")->dropped, 2);
    ck_assert_uint_eq(board.publishers[topic("c")->first].n_links, 1);
    /* the next rate of a is over two seconds */
    infos[0].published += 8;
    look(3, true, infos, 4);
    ck_assert_double_eq(topic("a")->messages_per_s, 4);
    ck_assert_double_eq(topic("b")->messages_per_s, 0);
    /* all publishers of a watched topic end */
    board_begin_partial(&board, 4 * SECOND);
    ck_assert_int_eq(board_end(&board), 0);
    board_sum(&board);
    ck_assert_uint_eq(topic("b")->n_publishers, 0);
    ck_assert_uint_eq(board.n_publishers, 2);
    ck_assert_uint_eq(topic("c")->first, 1);
}

TEST(topics_without_publishers_are_forgotten_when_there_are_too_many)
{
    struct dlx_publisher_info info = publisher("a", 1, 10);
    char name[32];
    board_begin(&board, SECOND, false);
    for (unsigned i = 0; i <= BOARD_TOPICS_MAX; i++) {
        (void)snprintf(name, sizeof name, "t/%08u", i);
        info = publisher(name, i + 1, 1);
        ck_assert_int_eq(board_add(&board, &info), 0);
    }
    ck_assert_int_eq(board_end(&board), 0);
    ck_assert_uint_eq(board.n_topics, BOARD_TOPICS_MAX + 1);
    topic("t/00000009")->kept = true;
    info = publisher("t/00000007", 8, 3);
    look(2, true, &info, 1);
    ck_assert_uint_eq(board.n_topics, 2);
    ck_assert_uint_eq(topic("t/00000007")->counters[BOARD_MESSAGES], 3);
    ck_assert_uint_eq(topic("t/00000009")->counters[BOARD_MESSAGES], 1);
    ck_assert_uint_eq(board.forgotten[BOARD_MESSAGES], BOARD_TOPICS_MAX - 1);
}

TEST(retained_publishers_are_told_apart)
{
    struct dlx_publisher_info info = publisher("a", 1, 10);
    char text[BOARD_TEXT_SIZE];
    info.retained = true;
    look(1, false, &info, 1);
    ck_assert_uint_eq(topic("a")->n_publishers, 0);
    ck_assert_str_eq(board_text(board_column_find("NOTE"), topic("a"), text), "RETAINED");
}

static void check_order(const struct board_view *v, const char *names)
{
    char all[4 * (DLX_TOPIC_MAX + 2)] = "";
    ck_assert_uint_le(v->n_rows, 4);
    for (size_t i = 0; i < v->n_rows; i++) {
        strcat(all, i > 0 ? " " : "");
        strcat(all, v->rows[i]->name);
    }
    ck_assert_str_eq(all, names);
}

TEST(rows_are_sorted_and_filtered)
{
    struct dlx_publisher_info infos[] = {publisher("cam/a", 1, 10), publisher("cam/b", 2, 30),
                                         publisher("cam/b/c", 3, 10), publisher("lidar", 4, 20)};
    struct board_view v = {.sort = board_column_find("messages")};
    look(1, false, infos, 4);
    ck_assert_int_eq(board_view_update(&v, &board), 0);
    check_order(&v, "cam/b lidar cam/a cam/b/c");
    v.reverse = true;
    ck_assert_int_eq(board_view_update(&v, &board), 0);
    check_order(&v, "cam/b/c cam/a lidar cam/b");
    v.sort = board_column_find("topic");
    v.reverse = false;
    v.filter = "cam/*";
    ck_assert_int_eq(board_view_update(&v, &board), 0);
    check_order(&v, "cam/a cam/b");
    ck_assert_uint_eq(v.n_topics, 4);
    look(2, true, infos, 1); /* topics without publishers are not shown */
    v.filter = NULL;
    ck_assert_int_eq(board_view_update(&v, &board), 0);
    check_order(&v, "cam/a");
    board_view_deinit(&v);
}

TEST(filters_are_parts_of_topics_or_patterns)
{
    static const struct {
        const char *filter, *topic;
        bool matches;
    } cases[] = {
        {"", "a/b", true},           {"am/f", "cam/front", true},
        {"x", "cam/front", false},   {"cam/*", "cam/front", true},
        {"cam/*", "cam/a/b", false}, {"*/b", "a/b", true},
        {"**", "a/b/c", true},       {"a/**", "a", false},
        {"a/**", "a/b", true},       {"a/**", "a/b/c", true},
        {"*/x/**", "a/x/c/d", true}, {"*/x/**", "a/y/c", false},
        {"cam*/**", "cam2/a", true}, {"cam*/**", "lidar/a", false},
    };
    for (size_t i = 0; i < DLX_ARRAY_SIZE(cases); i++)
        ck_assert_msg(board_matches(cases[i].filter, cases[i].topic) == cases[i].matches,
                      "%s and %s", cases[i].filter, cases[i].topic);
}

TEST(all_figures_are_in_json)
{
    struct dlx_publisher_info info = publisher("a", 1, 10);
    info.refused = 2;
    look(1, false, &info, 1);
    json_auto_t *json = board_json(topic("a"));
    ck_assert(json_is_null(json_object_get(json, "messages_per_s")));
    ck_assert_int_eq(json_integer_value(json_object_get(json, "refused")), 2);
    ck_assert_int_eq(json_integer_value(json_object_get(json, "published_bytes")), 1000);
    ck_assert(json_is_false(json_object_get(json, "blocked")));
    for (size_t i = 0; i < board_n_columns; i++)
        ck_assert(!board_columns[i].key || json_object_get(json, board_columns[i].key));
}

TEST(an_open_topic_shows_its_programs_without_control_characters)
{
    struct dlx_publisher_info info = publisher("a", 1, 10);
    struct dlx_link_info link = subscriber(1, 8, 2);
    char text[4096] = "";
    (void)snprintf(info.client_name, sizeof info.client_name, "evil\033[2Jname");
    (void)snprintf(link.client_name, sizeof link.client_name, "\xe5\xbd\xb1\xe5\x83\x8f\007");
    look(1, false, &info, 1);
    set_link(0, 1, link);
    FILE *file = fmemopen(text, sizeof text, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(top_topic_write(file, &board, "a", 80), 0);
    ck_assert_int_eq(top_topic_write(file, &board, "b", 80), 0);
    ck_assert_int_eq(fclose(file), 0);
    contains(text, "publisher 1: evil?[2Jname (pid 7, user root)\n");
    contains(text, "  \xe5\xbd\xb1\xe5\x83\x8f?      8  root  ");
    contains(text, "b: no publisher any more\n");
    ck_assert_ptr_null(strchr(text, '\033'));
    ck_assert_ptr_null(strchr(text, '\007'));
}

/* Times are words of other programs: none of them is older than the clock, or in the future. */
TEST(times_that_are_lies_have_no_age)
{
    struct dlx_publisher_info info = publisher("a", 1, 10);
    struct dlx_link_info link = subscriber(1, 8, 2);
    char text[4096] = "";
    info.blocked_ns = UINT64_MAX - 1;
    info.blocked_at_ns = UINT64_C(1) << 63;
    link.next_ns = (UINT64_C(1) << 63) + 1;
    link.held_ns = 9 * (uint64_t)SECOND;
    look(1, false, &info, 1);
    set_link(0, 1, link);
    FILE *file = fmemopen(text, sizeof text, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(top_topic_write(file, &board, "a", 200), 0);
    ck_assert_int_eq(fclose(file), 0);
    contains(text, "now for 0 ns");
    for (const char *at = strchr(text, '-'); at; at = strchr(at + 1, '-'))
        ck_assert_msg(!strchr("0123456789", at[1]), "%s", text);
}

int main(void)
{
    TCase *tcase = tcase_create("board");
    tcase_add_checked_fixture(tcase, NULL, clear);
    return dlx_test_run_case(tcase);
}
