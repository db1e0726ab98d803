/* SPDX-License-Identifier: Apache-2.0 */
/* dlxctl top --json: what it tells of publishers and subscribers, and of thousands of topics. */
#include "tests/cli/harness_cli_case.h"
#include <sys/resource.h>

static struct dlx_client *c;

static void start(void)
{
    c = dlx_test_cli_connect("camera_driver_node");
}

static void stop(void)
{
    c = dlx_client_unref(c);
}

static double number(const json_t *topic, const char *key)
{
    const json_t *value = json_object_get(topic, key);
    ck_assert_msg(json_is_number(value), "%s is no number", key);
    return json_number_value(value);
}

/* One array a line; the caller drops the reference. */
static json_t *topic_of_line(const struct dlx_test_cli *cli, size_t n)
{
    json_auto_t *array = dlx_test_cli_json_line(cli, n);
    ck_assert_uint_eq(json_array_size(array), 1);
    return json_incref(json_array_get(array, 0));
}

TEST(figures_of_a_topic_are_told_in_each_interval)
{
    struct dlx_publisher *p = dlx_test_stream_publisher(c, "a", PUBLISHER(.depth = 4));
    struct dlx_subscription *s = dlx_test_stream_subscribe(c, "a", NULL);
    dlx_test_stream_publish_all(p, 10, 1, 1);
    struct dlx_message *held = dlx_test_stream_next(s);
    auto_cli top = dlxctl_start("top", "a", "--json", "--interval", "10ms");
    dlx_test_cli_wait_lines(&top, 1);
    dlx_test_stream_publish_all(p, 10, 2, 9); /* 4 of them are lost */
    size_t n = 0;
    json_t *topic = NULL;
    do { /* until the look that has seen all of them */
        json_decref(topic);
        dlx_test_cli_wait_lines(&top, n + 1);
        topic = topic_of_line(&top, n++);
    } while (number(topic, "published") < 9);
    /* the next one has asked for the link after that */
    json_decref(topic);
    dlx_test_cli_wait_lines(&top, n + 1);
    topic = topic_of_line(&top, n);
    ck_assert_double_eq(number(topic, "published_bytes"), 9 * 80);
    ck_assert_double_eq(number(topic, "n_publishers"), 1);
    ck_assert_double_eq(number(topic, "n_subscribers"), 1);
    ck_assert_double_eq(number(topic, "behind"), 4);
    ck_assert_double_eq(number(topic, "n_held"), 1);
    ck_assert_double_eq(number(topic, "dropped"), 4);
    ck_assert_double_eq(number(topic, "lost"), 4);
    json_decref(topic);
    ck_assert_int_eq(kill(top.pid, SIGINT), 0);
    dlx_test_cli_finish(&top, 0);
    dlx_test_stream_unref_messages(&held, 1);
    dlx_test_stream_unref_subscriptions(&s, 1);
    dlx_test_stream_unref_publishers(&p, 1);
}

enum { FDS_A_PUBLISHER = 4 };
#if defined DLX_SANITIZE
enum { TOPICS = 200 };
#else
enum { TOPICS = 5000 };
#endif

/* As many topics as open files allow. */
TEST(thousands_of_topics_are_listed_in_order)
{
    static struct dlx_publisher *p[TOPICS];
    struct rlimit files;
    char name[32];
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &files), 0);
    size_t n = DLX_MIN((size_t)files.rlim_max / FDS_A_PUBLISHER, (size_t)TOPICS);
    n = getenv("VALGRIND") ? DLX_MIN(n, (size_t)200) : n;
    for (size_t i = 0; i < n; i++) {
        (void)snprintf(name, sizeof name, "t/%04zu", i);
        p[i] = dlx_test_stream_publisher(c, name, NULL);
    }
    auto_cli top = dlxctl(0, "top", "--once", "--interval", "10ms", "--sort", "topic");
    const char *line = top.out;
    for (size_t i = 0; i < n; i++) {
        line = strchr(line, '\n') + 1;
        (void)snprintf(name, sizeof name, "t/%04zu ", i);
        ck_assert_msg(strncmp(line, name, strlen(name)) == 0, "%s is not in %.40s", name, line);
    }
    dlx_test_stream_unref_publishers(p, n);
}

int main(void)
{
    TCase *tcase = dlx_test_cli_case("top");
    tcase_add_checked_fixture(tcase, start, stop);
    return dlx_test_run_case(tcase);
}
