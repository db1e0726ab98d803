/* SPDX-License-Identifier: Apache-2.0 */
/* Output for people: numbers, tables, text of others, rates; and the names and contents of saved
 * files. */
#include "cli/cli.h"
#include "cli/describe.h"
#include "cli/npy.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/rate.h"
#include "cli/rates.h"
#include "cli/save.h"
#include "tests/harness/cli.h"
#include "tests/harness/run.h"
#include <inttypes.h>
#include <math.h>
#include <sys/ioctl.h>

TEST(sizes_have_three_digits)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {
        {0, "0 B"},
        {1023, "1023 B"},
        {1024, "1.00 KiB"},
        {6220800, "5.93 MiB"},
        {1048575, "1.00 MiB"},
        {104857600, "100 MiB"},
        {UINT64_MAX, "16.0 EiB"},
        {1047552, "1023 KiB"},
    };
    char text[HUMAN_SIZE];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        human_bytes(cases[i].bytes, text);
        ck_assert_str_eq(text, cases[i].text);
    }
}

TEST(wide_characters_have_two_columns)
{
    static const struct {
        const char *text;
        size_t columns, bytes_of_3;
    } cases[] = {
        {"camera", 6, 3},
        {"na\xc3\xafve", 5, 4},
        {"\xe5\xbd\xb1\xe5\x83\x8f", 4, 3}, /* CJK */
        {"a\xcc\x81"
         "bcd",
         4, 5},                       /* a mark above the a */
        {"x\xf0\x9f\x93\xb7y", 4, 5}, /* a camera */
        {"\xff\xfe", 2, 2},           /* no UTF-8 */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ck_assert_uint_eq(output_columns(cases[i].text), cases[i].columns);
        ck_assert_uint_eq(output_bytes_of(cases[i].text, 3), cases[i].bytes_of_3);
    }
}

/* Of a long topic its end is shown, and words are cut between characters. */
TEST(a_line_of_progress_fits_into_the_terminal)
{
    static const struct {
        unsigned short columns;
        const char *topic, *words, *line;
    } cases[] = {
        {80, "cam/front", "lost 0", "cam/front: lost 0"},
        {18, "cam/front", "lost 0", "cam/front: lost 0"},
        {17, "cam/front", "lost 0", "cam/front: lost "},
        {30, "robot/arm/left/camera/depth", "lost 0", ".../left/camera/depth: lost 0"},
        {40, "robot/arm/left/camera/depth", "lost 0", "robot/arm/left/camera/depth: lost 0"},
        {27, "robot/arm/left/camera/depth", "lost 0", "...ft/camera/depth: lost 0"},
        {22, "robot/arm/left/camera/depth", "lost 0", ".../camera/depth: los"},
        {12, "cam", "na\xc3\xafve.npy", "cam: na\xc3\xafve."},
        {8, "cam", "na\xc3\xafve.npy", "cam: na"},
    };
    ck_assert_int_eq(setenv("TERM", "xterm", 1), 0);
    int terminal = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    ck_assert(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    FILE *file = fopen(ptsname(terminal), "r+e");
    ck_assert_ptr_nonnull(file);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct winsize size = {.ws_row = 24, .ws_col = cases[i].columns};
        struct progress p;
        char expected[128], line[128] = "";
        ck_assert_int_eq(ioctl(terminal, TIOCSWINSZ, &size), 0);
        progress_init(&p, cases[i].topic, file, true, 1);
        progress_show(&p, "%s", cases[i].words);
        (void)snprintf(expected, sizeof expected, "\r%s\033[K", cases[i].line);
        ck_assert_int_gt(read(terminal, line, sizeof line - 1), 0);
        ck_assert_str_eq(line, expected);
    }
    (void)fclose(file);
    (void)close(terminal);
}

/* What was written to the other end of a terminal. */
static void check_line(int terminal, const char *part)
{
    char line[256] = "";
    ck_assert_int_gt(read(terminal, line, sizeof line - 1), 0);
    contains(line, part);
}

TEST(a_long_transfer_shows_a_bar)
{
    const struct winsize size = {.ws_row = 24, .ws_col = 120};
    struct progress p, hidden;
    struct pollfd fd = {.events = POLLIN};
    ck_assert_int_eq(setenv("TERM", "xterm", 1), 0);
    fd.fd = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    ck_assert(fd.fd >= 0 && grantpt(fd.fd) == 0 && unlockpt(fd.fd) == 0);
    ck_assert_int_eq(ioctl(fd.fd, TIOCSWINSZ, &size), 0);
    FILE *file = fopen(ptsname(fd.fd), "r+e");
    ck_assert_ptr_nonnull(file);
    progress_init(&p, "weights", file, true, 1);
    progress_transfer(&p, "reading", 4096);
    progress_moved(1024);
    check_line(fd.fd, "\rweights: reading [#####               ] 25 %, 1.00 KiB of 4.00 KiB, ");
    progress_moved(3072);
    check_line(fd.fd, "[####################] 100 %, 4.00 KiB of 4.00 KiB, ");
    progress_transfer(&p, "writing", 0);
    progress_moved(512);
    check_line(fd.fd, "\rweights: writing 512 B, ");
    /* No line: after the end, too early, and without a terminal. */
    progress_transfer(NULL, NULL, 0);
    progress_moved(1024);
    progress_init(&p, "weights", file, true, INT64_C(3600000000000));
    progress_transfer(&p, "reading", 4096);
    progress_moved(1024);
    progress_init(&hidden, "weights", file, false, 1);
    progress_transfer(&hidden, "reading", 4096);
    progress_moved(1024);
    ck_assert_int_eq(poll(&fd, 1, 0), 0);
    (void)fclose(file);
    (void)close(fd.fd);
}

TEST(times_have_a_unit_that_fits)
{
    static const struct {
        int64_t ns;
        const char *text;
    } cases[] = {
        {0, "0 ns"},
        {999, "999 ns"},
        {1000, "1.00 us"},
        {999499, "999 us"},
        {999500, "1.00 ms"},
        {INT64_C(2140000), "2.14 ms"},
        {INT64_C(59990000000), "60.0 s"},
        {INT64_C(192000000000), "3 min 12 s"},
        {INT64_C(7500000000000), "2 h 5 min"},
        {INT64_C(370800000000000), "4 d 7 h"},
        {-1500, "-1.50 us"},
        {INT64_MIN, "-106751 d 23 h"},
    };
    char text[HUMAN_SIZE];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        human_ns(cases[i].ns, text);
        ck_assert_str_eq(text, cases[i].text);
    }
}

TEST(numbers_have_three_digits)
{
    static const struct {
        double n;
        const char *text;
    } cases[] = {{0, "0"},           {29.97, "30.0"}, {9.996, "10.0"}, {0.0123456, "0.0123"},
                 {12345.6, "12346"}, {1.005, "1.00"}, {INFINITY, "-"}, {NAN, "-"}};
    char text[HUMAN_SIZE];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        human_number(cases[i].n, text);
        ck_assert_str_eq(text, cases[i].text);
    }
}

/* Programs get what others wrote, whole; and nothing of it does anything to a terminal. */
TEST(text_in_json_is_exact)
{
    static const struct {
        const char *from, *to;
    } cases[] = {
        {"\x1b[31mred\n", "\x1b[31mred\n"},
        {"caf\xc3\xa9 \xf0\x9f\x98\x80 \xc2\x9b \xe2\x80\xae",
         "caf\xc3\xa9 \xf0\x9f\x98\x80 \xc2\x9b \xe2\x80\xae"},
        {"a\xff\xe2\x82", "a\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* bytes that are no UTF-8 */
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    };
    char longest[DLX_NAME_MAX + 1], *printed = NULL;
    size_t size = 0;
    memset(longest, 'n', DLX_NAME_MAX);
    longest[DLX_NAME_MAX] = '\0';
    json_t *json = output_json_text(longest);
    ck_assert_str_eq(json_string_value(json), longest);
    json_decref(json);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        FILE *file = open_memstream(&printed, &size);
        ck_assert_ptr_nonnull(file);
        ck_assert_int_eq(
            output_json(file, json_pack("[o]", output_json_text(cases[i].from)), false), 0);
        ck_assert_int_eq(fclose(file), 0);
        for (size_t k = 0; k + 1 < size; k++)
            ck_assert_msg(printed[k] >= 0x20 && printed[k] < 0x7f, "%zu: %s", i, printed);
        json = json_loads(printed, 0, NULL);
        ck_assert_str_eq(json_string_value(json_array_get(json, 0)), cases[i].to);
        json_decref(json);
        free(printed);
    }
}

TEST(text_of_others_cannot_reach_the_terminal)
{
    static const struct {
        const char *from, *to;
    } cases[] = {
        {"camera", "camera"},
        {"\x1b[31mred\x07\n", "?[31mred??"},
        {"caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"},
        {"\xff\xfe", "??"},
        {"\xc3", "?"},
        {"\xe2\x82", "??"},
        {"\xc0\xaf", "??"},           /* overlong */
        {"\xed\xa0\x80", "???"},      /* a surrogate */
        {"\xf4\x90\x80\x80", "????"}, /* beyond Unicode */
        {"\xc2\x9b"
         "31m",
         "??31m"},               /* a control sequence in one character */
        {"\xe2\x80\xae", "???"}, /* right-to-left override */
        {"\x7f", "?"},
    };
    char text[64], cut[4];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        output_printable(cases[i].from, text, sizeof text);
        ck_assert_msg(strcmp(text, cases[i].to) == 0, "%zu: %s", i, text);
    }
    output_printable("ab\xc3\xa9", cut, sizeof cut); /* does not cut a character in two */
    ck_assert_str_eq(cut, "ab");
}

static void expect_table(const struct table *t, unsigned indent, unsigned width,
                         const char *expected)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    ck_assert_int_eq(table_print(t, f, indent, width), 0);
    (void)fclose(f);
    ck_assert_str_eq(text, expected);
    free(text);
}

TEST(tables_are_aligned)
{
    static const struct table_column columns[] = {{"TOPIC", TABLE_LEFT, true, 0},
                                                  {"PID", TABLE_RIGHT, false, 0},
                                                  {"PROGRAM", TABLE_LEFT, true, 0}};
    struct table *t = NULL;
    ck_assert_int_eq(table_new(&t, columns, 3), 0);
    table_cell(t, "%s", "cam/front");
    table_cell(t, "%d", 7);
    table_cell(t, "%s", "caf\xc3\xa9");
    table_cell(t, "%s", "x");
    table_cell(t, "%d", 123456);
    table_cell(t, "%s", "viewer");
    expect_table(t, 2, 0,
                 "  TOPIC         PID  PROGRAM\n"
                 "  cam/front       7  caf\xc3\xa9\n"
                 "  x          123456  viewer\n");
    table_free(t);
}

TEST(tables_fit_the_terminal)
{
    static const struct table_column columns[] = {{"TOPIC", TABLE_LEFT, true, 0},
                                                  {"BYTES", TABLE_RIGHT, false, 0}};
    struct table *t = NULL;
    ck_assert_int_eq(table_new(&t, columns, 2), 0);
    table_cell(t, "%s", "a/very/long/name/of/a/topic");
    table_cell(t, "%s", "1234567");
    expect_table(t, 0, 20, "TOPIC          BYTES\na/very/l...  1234567\n");
    /* no narrower than what can be read */
    expect_table(t, 0, 5, "TOPIC       BYTES\na/ver...  1234567\n");
    table_free(t);
    table_free(NULL);
}

TEST(a_column_without_content_is_left_out_and_no_line_ends_in_spaces)
{
    static const struct table_column columns[] = {{"TOPIC", TABLE_LEFT, false, 0},
                                                  {"TYPE", TABLE_LEFT, false, 1},
                                                  {"NOTE", TABLE_LEFT, false, 2}};
    static const char *const cells[] = {"a", "", "BEHIND", "b", "", ""};
    struct table *t = NULL;
    ck_assert_int_eq(table_new(&t, columns, 3), 0);
    for (size_t i = 0; i < 6; i++)
        table_cell(t, "%s", cells[i]);
    expect_table(t, 0, 0, "TOPIC  NOTE\na      BEHIND\nb\n");
    /* what is left out for its width is named */
    expect_table(t, 0, 6, "TOPIC\na\nb\n(no room for NOTE; --json has all)\n");
    table_free(t);
}

/* A table first leaves out columns that it may, then cuts texts, and never topics. */
TEST(tables_leave_out_what_matters_less_and_say_so)
{
    static const struct table_column columns[] = {{"TOPIC", TABLE_LEFT, false, 0},
                                                  {"ID", TABLE_RIGHT, false, 1},
                                                  {"PROGRAM", TABLE_LEFT, true, 0},
                                                  {"BYTES", TABLE_RIGHT, false, 2}};
    static const struct {
        unsigned width;
        const char *text;
    } cases[] = {
        {0, "TOPIC                 ID  PROGRAM       BYTES\n"
            "camera/left/rgb  1234567  camera_node  20 MiB\n"},
        {42, "TOPIC                 ID  PROGRAM    BYTES\n"
             "camera/left/rgb  1234567  camer...  20 MiB\n"},
        {36, "TOPIC            PROGRAM       BYTES\n"
             "camera/left/rgb  camera_node  20 MiB\n(no room for ID; --json has all)\n"},
        {33, "TOPIC            PROGRAM    BYTES\n"
             "camera/left/rgb  camer...  20 MiB\n(no room for ID; --json has all)\n"},
        {28, "TOPIC            PROGRAM\n"
             "camera/left/rgb  camera_node\n(no room for ID, BYTES; --json has all)\n"},
        {5, "TOPIC            PROGRAM\n"
            "camera/left/rgb  camer...\n(no room for ID, BYTES; --json has all)\n"},
    };
    struct table *t = NULL;
    ck_assert_int_eq(table_new(&t, columns, 4), 0);
    table_cell(t, "camera/left/rgb");
    table_cell(t, "1234567");
    table_cell(t, "camera_node");
    table_cell(t, "20 MiB");
    for (size_t i = 0; i < DLX_ARRAY_SIZE(cases); i++)
        expect_table(t, 0, cases[i].width, cases[i].text);
    table_free(t);
}

TEST(bytes_of_others_are_escaped)
{
    static const struct {
        const char *from;
        size_t size;
        const char *to;
    } cases[] = {
        {"{\"a\": 1}", 8, "{\"a\": 1}"},
        {"a\0b", 3, "a\\x00b"},
        {"\x1b[2J\n\t\r", 7, "\\x1b[2J\\n\\t\\r"},
        {"caf\xc3\xa9", 5, "caf\xc3\xa9"},
        {"caf\xc3\xa9", 4, "caf\\xc3"}, /* it ends within a character */
        {"\xff\xe2\x80\xae", 4, "\\xff\\xe2\\x80\\xae"},
        {"", 0, ""},
    };
    char text[64];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ck_assert_uint_eq(output_escaped(cases[i].from, cases[i].size, text, sizeof text),
                          cases[i].size);
        ck_assert_msg(strcmp(text, cases[i].to) == 0, "%zu: %s", i, text);
    }
    ck_assert_uint_eq(output_escaped("ab\0c", 4, text, 6), 2); /* no half of an escape */
    ck_assert_str_eq(text, "ab");
}

TEST(json_is_one_line_or_many)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    ck_assert_int_eq(output_json(f, json_pack("{s:i}", "a", 1), false), 0);
    ck_assert_int_eq(output_json(f, json_pack("{s:i}", "a", 1), true), 0);
    ck_assert_int_lt(output_json(f, NULL, true), 0);
    (void)fclose(f);
    ck_assert_str_eq(text, "{\"a\":1}\n{\n  \"a\": 1\n}\n");
    free(text);
    json_t *big = output_json_u64(UINT64_MAX);
    ck_assert(json_is_real(big));
    json_decref(big);
}

/* An element has a value for each of its lanes. */
TEST(values_are_counted_and_not_elements)
{
    static const struct {
        uint64_t n_values;
        const char *text;
    } cases[] = {{1, "[1]"}, {3, "[1,2,3]"}, {6, "[1,2,3,4,5,6]"}, {100, "[1,2,3,4,5,6]"}};
    int32_t compact[] = {1, 2, 3, 4, 5, 6}, apart[] = {1, 2, 0, 0, 3, 4, 0, 0, 5, 6};
    int64_t shape[] = {3}, stride[] = {1}, strides[] = {2};
    const DLTensor tensors[] = {
        {.data = compact, .ndim = 1, .dtype = {kDLInt, 32, 2}, .shape = shape, .strides = stride},
        {.data = apart, .ndim = 1, .dtype = {kDLInt, 32, 2}, .shape = shape, .strides = strides}};
    for (size_t i = 0; i < 2 * DLX_ARRAY_SIZE(cases); i++) {
        DLTensor t = tensors[i % 2];
        t.device.device_type = kDLCPU;
        json_auto_t *json = describe_tensor(&t, cases[i / 2].n_values);
        char *text = json_dumps(json_object_get(json, "values"), JSON_COMPACT);
        ck_assert_str_eq(text, cases[i / 2].text);
        free(text);
    }
}

TEST(rates_come_from_the_last_messages)
{
    struct rate *r = NULL;
    ck_assert_int_eq(rate_new(&r, 5), 0);
    struct rate_summary s = rate_summarize(r, RATE_WINDOW);
    ck_assert(s.n_messages == 0 && s.mean_hz == 0);
    rate_add(r, 5, 1, 1); /* falls out of the window */
    s = rate_summarize(r, RATE_WINDOW);
    ck_assert(s.n_window == 1 && s.mean_hz == 0 && s.age_p99_ns == 1);
    ck_assert(s.n_bytes == 1 && s.bytes_min == 1 && s.bytes_max == 1 && s.bytes_mean == 1);
    static const int64_t intervals[] = {0, 10000000, 30000000, 10000000, 30000000};
    static const uint64_t sizes[] = {0, 900, 1000, 1100, 800};
    int64_t now = 1000000000;
    for (int i = 0; i < 5; i++) {
        now += intervals[i];
        rate_add(r, now, (i + 1) * 100, sizes[i]);
    }
    s = rate_summarize(r, RATE_WINDOW);
    ck_assert(s.n_messages == 6 && s.n_window == 5);
    ck_assert(fabs(s.mean_hz - 50) < 1e-9 && fabs(s.max_hz - 100) < 1e-9);
    ck_assert(fabs(s.min_hz - 1e9 / 3e7) < 1e-9 && fabs(s.jitter_ns - 1e7) < 1e-3);
    /* the first came before the measured time */
    ck_assert(fabs(s.bytes_per_s - 3800 / 0.08) < 1e-6);
    ck_assert(s.n_bytes == 3801 && s.bytes_min == 0 && s.bytes_max == 1100);
    ck_assert(fabs(s.bytes_mean - 760) < 1e-9);
    ck_assert(s.age_p50_ns == 300 && s.age_p99_ns == 500 && s.age_max_ns == 500);
    rate_free(r);
    rate_free(NULL);
}

TEST(rates_are_kept_for_each_topic)
{
    struct rates *r = NULL;
    char topic[16];
    ck_assert_int_eq(rates_new(&r, 1000), 0);
    for (int i = 0; i < 500; i++) {
        (void)snprintf(topic, sizeof topic, "t/%03d", i * 7 % 100);
        struct rates_entry *e = rates_of(r, topic);
        ck_assert_ptr_nonnull(e);
        ck_assert_int_eq(rate_add(e->rate, i, i, 10), 0);
        e->missed++;
    }
    ck_assert_uint_eq(rates_count(r), 100);
    for (size_t i = 0; i < 100; i++) {
        (void)snprintf(topic, sizeof topic, "t/%03zu", i);
        ck_assert_str_eq(rates_at(r, i)->topic, topic);
        ck_assert_uint_eq(rates_at(r, i)->missed, 5);
        ck_assert_uint_eq(rate_summarize(rates_at(r, i)->rate, RATE_WINDOW).n_bytes, 50);
    }
    rates_free(r);
    rates_free(NULL);
}

TEST(a_large_window_grows)
{
    struct rate *r = NULL;
    ck_assert_int_eq(rate_new(&r, 1000), 0);
    for (int i = 0; i < 5000; i++)
        ck_assert_int_eq(rate_add(r, i * INT64_C(1000), i, (uint64_t)i), 0);
    struct rate_summary s = rate_summarize(r, RATE_WINDOW);
    ck_assert(s.n_messages == 5000 && s.n_window == 1000);
    ck_assert(s.bytes_min == 4000 && s.bytes_max == 4999 && s.age_max_ns == 4999);
    ck_assert(fabs(s.mean_hz - 1e6) < 1e-3 && s.jitter_ns < 1e-3);
    rate_free(r);
}

/* The line of each second looks at few of a large window: the last ones, also where the ring
 * begins. */
TEST(a_summary_may_look_at_the_last_messages_alone)
{
    struct rate *r = NULL;
    ck_assert_int_eq(rate_new(&r, 8), 0);
    for (int i = 1; i <= 20; i++) {
        ck_assert_int_eq(rate_add(r, i * INT64_C(1000000), i, (uint64_t)i), 0);
        uint64_t n = i < 3 ? (uint64_t)i : 3, last = (uint64_t)i;
        struct rate_summary s = rate_summarize(r, 3);
        ck_assert_uint_eq(s.n_messages, last);
        ck_assert_uint_eq(s.n_window, n);
        ck_assert_uint_eq(s.bytes_max, last);
        ck_assert_uint_eq(s.bytes_min, last - n + 1);
        ck_assert_int_eq(s.age_max_ns, i);
    }
    ck_assert_uint_eq(rate_summarize(r, RATE_WINDOW).n_window, 8);
    rate_free(r);
}

static void check_path(const char *pattern, bool several, const char *expected)
{
    char path[SAVE_PATH_SIZE];
    struct cli_error e = {{0}};
    const struct save_name name = {pattern, 7, 1234, "cam/front", several};
    ck_assert_msg(save_path(&name, path, sizeof path, &e) == 0, "%s", e.text);
    ck_assert_str_eq(path, expected);
}

TEST(file_names_are_numbered)
{
    check_path("out.npy", false, "out.npy");
    check_path("out.npy", true, "out-000007.npy");
    check_path("out", true, "out-000007");
    check_path("a.b/out", true, "a.b/out-000007");
    check_path("a/.hidden", true, "a/.hidden-000007");
    check_path("out-%06d.npy", true, "out-000007.npy");
    check_path("out-%06d.npy", false, "out-000007.npy");
    check_path("out-%d.npy", true, "out-7.npy");
    check_path("out-{seq}.npy", true, "out-001234.npy");
    check_path("{seq}-%03d.npy", true, "001234-007.npy");
    check_path("100%%.npy", true, "100%-000007.npy");
    check_path("{topic}.npy", true, "cam+front-000007.npy");
    check_path("x/{topic}-{seq}.npy", true, "x/cam+front-001234.npy");
    check_path("{topic", false, "{topic");
    check_path("%%d-%d", true, "%d-7");
    check_path("-", true, "-");
}

TEST(file_names_of_several_topics_differ)
{
    ck_assert(save_pattern_mixes_topics("a-{seq}.npy"));
    ck_assert(save_pattern_mixes_topics("{seq}%%d"));
    ck_assert(!save_pattern_mixes_topics("a-{seq}-%d.npy"));
    ck_assert(!save_pattern_mixes_topics("{topic}-{seq}.npy"));
    ck_assert(!save_pattern_mixes_topics("a.npy")); /* gets a number */
}

TEST(file_names_are_no_format_strings)
{
    static const char *const bad[] = {"%s",    "%n.npy", "%6d", "%",   "out%",
                                      "%099d", "%d%d",   "%ld", "%0x", ""};
    struct cli_error e;
    char small[8];
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        ck_assert_msg(save_pattern_check(bad[i], &e) == DLX_E_INVALID, "'%s'", bad[i]);
    ck_assert_int_eq(
        save_path(&(struct save_name){"abcdefgh", 1, 1, "t", false}, small, sizeof small, &e),
        DLX_E_LIMIT);
    ck_assert_int_eq(
        save_path(&(struct save_name){"a%020d", 1, 1, "t", false}, small, sizeof small, &e),
        DLX_E_LIMIT);
    ck_assert_int_eq(
        save_path(&(struct save_name){"abcdefg", 1, 1, "t", false}, small, sizeof small, &e), 0);
}

TEST(tensors_are_saved_whole_or_not_at_all)
{
    const char *path = dlx_test_file("t.npy");
    int64_t shape[] = {2, 3}, column_major[] = {1, 2};
    float data[] = {0, 3, 1, 4, 2, 5};
    DLTensor t = {.data = data,
                  .device = {kDLCPU, 0},
                  .ndim = 2,
                  .dtype = {kDLFloat, 32, 1},
                  .shape = shape,
                  .strides = column_major};
    struct save_report report;
    struct cli_error e;
    ck_assert_msg(save_tensor(&t, path, &report, &e) == 0, "%s", e.text);
    ck_assert(report.exact && report.size == 128 + 24);
    ck_assert_str_eq(report.dtype, "float32");

    size_t size = 0;
    char *file = dlx_test_read_file(path, &size);
    struct npy_header h;
    ck_assert_uint_eq(size, 128 + 24);
    ck_assert_int_eq(npy_header_parse((uint8_t *)file, size, &h, &e), 0);
    ck_assert(h.ndim == 2 && h.shape[0] == 2 && h.shape[1] == 3 && !h.fortran_order);
    for (size_t i = 0; i < 6; i++) { /* compacted */
        float v;
        memcpy(&v, file + 128 + 4 * i, 4);
        ck_assert(v == (float)i);
    }
    free(file);
    ck_assert_uint_eq(dlx_test_n_files(), 1);
    (void)unlink(path);

    t.device.device_type = kDLCUDA;
    ck_assert_int_eq(save_tensor(&t, path, &report, &e), DLX_E_DEVICE);
    t.device.device_type = kDLCPU;
    path = dlx_test_file("no/such/folder.npy");
    ck_assert_int_eq(save_tensor(&t, path, &report, &e), DLX_E_SYSTEM);
    ck_assert_ptr_nonnull(strstr(e.text, "No such file"));
    ck_assert_int_eq(save_tensor(&t, "/dev/full", &report, &e), DLX_E_SYSTEM);
    ck_assert_str_eq(e.text, "/dev/full: write: No space left on device");
    shape[0] = INT64_MAX;
    ck_assert_int_eq(save_tensor(&t, path, &report, &e), DLX_E_SHAPE);
    ck_assert_uint_eq(dlx_test_n_files(), 0);
}

/* Paths and names of other users' programs are in errors, which root reads. */
TEST(no_error_has_a_control_character)
{
    const struct cli cli = {.command = "trace"};
    char text[200] = "";
    FILE *before = stderr;
    stderr = fmemopen(text, sizeof text, "w");
    ck_assert_ptr_nonnull(stderr);
    (void)cli_report(&cli, "top\033ic", "%s: no", "/lib\033[2J\007");
    ck_assert_int_eq(fclose(stderr), 0);
    stderr = before;
    ck_assert_str_eq(text, "dlxctl trace: top?ic: /lib?[2J?: no\n");
}

int main(void)
{
    TCase *tcase = tcase_create("output");
    dlx_test_files_fixture(tcase);
    return dlx_test_run_case(tcase);
}
