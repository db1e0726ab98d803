/* SPDX-License-Identifier: Apache-2.0 */

/* Names of topics: each rule, and whether the message tells which was broken where. */

#include "common/topic.h"
#include "tests/harness/run.h"

static const char *const good[] = {
    "a", "cam/front", "A/b/C/0/9", "_", "-", "...", "a.b", "..a", "a..", "x/.hidden", "a/b-c_d.e",
};

static const struct {
    const char *name, *word;
} bad[] = {
    {"", "empty"},           {"/", "begins with '/'"},   {"/a", "begins with '/'"},
    {"a/", "ends with '/'"}, {"a//b", "empty segment"},  {".", "\".\" or \"..\""},
    {"a/..", "\"..\""},      {"a/./b", "segment \".\""}, {"a b", "' ' at 1"},
    {"cam/*", "'*' at 4"},   {"a\nb", "byte 0x0a at 1"}, {"caf\xc3\xa9", "byte 0xc3 at 3"},
    {"a\\b", "'\\' at 1"},   {"a:b", "':' at 1"},        {"\x7f", "byte 0x7f at 0"},
};

TEST(names_that_keep_the_rules)
{
    for (size_t i = 0; i < DLX_ARRAY_SIZE(good); i++)
        ck_assert_msg(dlx__topic_check(good[i]) == 0, "%s: %s", good[i], dlx__error_message());
}

TEST(names_that_break_a_rule)
{
    for (size_t i = 0; i < DLX_ARRAY_SIZE(bad); i++) {
        ck_assert_int_eq(dlx__topic_check(bad[i].name), DLX_E_TOPIC);
        ck_assert_msg(strstr(dlx__error_message(), bad[i].word) != NULL, "\"%s\" lacks \"%s\"",
                      dlx__error_message(), bad[i].word);
    }
    ck_assert_int_eq(dlx__topic_check(NULL), DLX_E_TOPIC);
    ck_assert_str_eq(dlx__error_message(), "topic name is NULL");
}

TEST(every_byte_is_allowed_or_not)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
    for (int c = 1; c < 256; c++) {
        char name[] = {'x', (char)c, 'y', '\0'};
        bool expected = c == '/' || strchr(allowed, c);
        ck_assert_msg((dlx__topic_check(name) == 0) == expected, "byte %d", c);
    }
}

TEST(length_has_a_limit)
{
    char name[4096];
    memset(name, 'a', sizeof name);
    name[DLX_TOPIC_SIZE_MAX] = '\0';
    ck_assert_int_eq(dlx__topic_check(name), 0);
    name[DLX_TOPIC_SIZE_MAX] = 'a';
    name[DLX_TOPIC_SIZE_MAX + 1] = '\0';
    ck_assert_int_eq(dlx__topic_check(name), DLX_E_TOPIC);
    ck_assert_ptr_nonnull(strstr(dlx__error_message(), "longer than 255"));
    name[DLX_TOPIC_SIZE_MAX + 1] = 'a'; /* not terminated soon: not read beyond the limit */
    name[sizeof name - 1] = '\0';
    ck_assert_int_eq(dlx__topic_check(name), DLX_E_TOPIC);
}

TEST(an_inbox_has_exactly_one_form_and_no_pattern_matches_it)
{
    static const char inbox[] = "@00112233445566778899aabbccddeeff";
    static const char *const others[] = {
        "@00112233445566778899aabbccddeef",
        "@00112233445566778899aabbccddeeff0",
        "@00112233445566778899AABBCCDDEEFF",
        "@00112233445566778899aabbccddee/f",
        "00112233445566778899aabbccddeeff",
        "@*",
        "@",
        "",
    };
    ck_assert(dlx__is_inbox(inbox));
    ck_assert(!dlx__is_inbox(NULL));
    ck_assert_int_eq(dlx__topic_check(inbox), DLX_E_TOPIC);
    ck_assert_int_eq(dlx__pattern_check(inbox), DLX_E_TOPIC);
    ok(dlx__topic_check_any(inbox));
    ok(dlx__topic_check_any("a/b"));
    for (size_t i = 0; i < DLX_ARRAY_SIZE(others); i++)
        ck_assert_msg(!dlx__is_inbox(others[i]), "%s", others[i]);
    ck_assert_int_eq(dlx__topic_check_any("@0"), DLX_E_TOPIC);
    ck_assert(!dlx__pattern_matches("**", inbox));
    ck_assert(!dlx__pattern_matches("*", inbox));
    ck_assert(dlx__pattern_matches(inbox, inbox));
}

enum { MAX_TOPICS = 4 };

/* Topics that a pattern matches, and such that it does not. */
static const struct {
    const char *pattern;
    const char *yes[MAX_TOPICS], *no[MAX_TOPICS];
} patterns[] = {
    {"a/b", {"a/b"}, {"a/b/c", "a/bc"}},
    {"*", {"a"}, {"a/b"}},
    {"cam/*", {"cam/front"}, {"cam", "cam/a/b"}},
    {"cam/*/raw", {"cam/a/raw"}, {"cam/raw", "cam/a/b/raw"}},
    {"a*c", {"abc", "ac", "abcbc"}, {"abcb"}},
    {"a*b*c", {"aXbYbZc"}, {"aXcYb"}},
    {"*a*", {"bab"}, {"bbb"}},
    {"a*/b", {"ax/b"}, {"ax/c"}},
    {"*x/*y", {"ax/ay"}, {"ax/ax"}},
    {"**", {"a", "a/b/c"}, {NULL}},
    {"a/**", {"a/b", "a/b/c"}, {"a", "ab/c"}},
    {"*/b/**", {"x/b/c/d"}, {"x/c/c/d", "x/b"}},
    {"x*/**", {"x/y"}, {"yx/y"}},
};

static void check_matches(const char *pattern, const char *const topics[MAX_TOPICS], bool match)
{
    for (int i = 0; i < MAX_TOPICS && topics[i]; i++) {
        ck_assert_int_eq(dlx__topic_check(topics[i]), 0);
        ck_assert_msg(dlx__pattern_matches(pattern, topics[i]) == match, "%s and %s", pattern,
                      topics[i]);
    }
}

TEST(patterns_match_segment_by_segment)
{
    for (size_t i = 0; i < DLX_ARRAY_SIZE(patterns); i++) {
        const char *pattern = patterns[i].pattern;
        ck_assert_msg(dlx__pattern_check(pattern) == 0, "%s", dlx__error_message());
        check_matches(pattern, patterns[i].yes, true);
        check_matches(pattern, patterns[i].no, false);
    }
}

/* By the definition, slowly: try every length for each star. */
static bool slow_match(const char *p, const char *t)
{
    if (strcmp(p, "**") == 0)
        return *t != '\0';
    if (*p == '*')
        return slow_match(p + 1, t) || (*t && *t != '/' && slow_match(p, t + 1));
    return *p == *t && (*p == '\0' || slow_match(p + 1, t + 1));
}

TEST(matching_is_as_defined_for_all_short_ones)
{
    static const char p_chars[] = "ab/*", t_chars[] = "ab/";
    unsigned n = 0;
    for (unsigned pi = 0; pi < 4096 * 4; pi++) {
        char p[8] = "";
        for (unsigned k = 0, v = pi; k < 7 && v; k++, v /= 5)
            if (v % 5)
                p[strlen(p)] = p_chars[v % 5 - 1];
        if (dlx__pattern_check(p) < 0)
            continue;
        for (unsigned ti = 0; ti < 243; ti++) {
            char t[6] = "";
            for (unsigned k = 0, v = ti; k < 5; k++, v /= 3)
                t[k] = t_chars[v % 3];
            if (dlx__topic_check(t) < 0)
                continue;
            n++;
            if (dlx__pattern_matches(p, t) != slow_match(p, t))
                ck_abort_msg("%s and %s", p, t);
        }
    }
    ck_assert_uint_gt(n, 10000);
}

TEST(patterns_have_rules_too)
{
    static const char *const bad_patterns[] = {"",    "/",   "a//b", "a/**/b", "a**",
                                               "***", "a b", "../*", "**/a"};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(bad_patterns); i++)
        ck_assert_msg(dlx__pattern_check(bad_patterns[i]) == DLX_E_TOPIC, "%s", bad_patterns[i]);
    ck_assert_int_eq(dlx__pattern_check("a/**/b"), DLX_E_TOPIC);
    ck_assert_ptr_nonnull(strstr(dlx__error_message(), "\"**\" at 2"));
    ck_assert_int_eq(dlx__pattern_check(NULL), DLX_E_TOPIC);
    ck_assert(dlx__is_pattern("a/*") && !dlx__is_pattern("a/b"));
    ck_assert_uint_eq(dlx__pattern_prefix("a/b*c*"), 3);
}

int main(void)
{
    return dlx_test_run_case(tcase_create("topic"));
}

/* Whether two patterns have a topic in common, and which one. */
static const struct {
    const char *a, *b, *common; /* NULL: none */
} pairs[] = {
    {"a", "a", "a"},
    {"a", "b", NULL},
    {"a", "a/b", NULL},
    {"*", "a", "a"},
    {"*", "a/b", NULL},
    {"**", "a/b", "a/b"},
    {"a/**", "a", NULL},
    {"a/**", "a/b/c", "a/b/c"},
    {"a/**", "*/b", "a/b"},
    {"a/**", "b/**", NULL},
    {"a/*/c", "a/b/*", "a/b/c"},
    {"a/*/c", "a/*/d", NULL},
    {"a/*", "*/b/c", NULL},
    {"a*", "*b", "ab"},
    {"a*", "b*", NULL},
    {"*a", "*b", NULL},
    {"a*c", "ab*", "abc"},
    {"ab*", "a*", "ab"},
    {"*ab", "*b", "ab"},
    {"a*b*c", "*x*", "axbxc"},
    {"a*a", "a", NULL},
    {"a*a", "aa", "aa"},
    {"a*/x", "*b/x", "ab/x"},
    {"**", "**", "a"},
};

TEST(patterns_meet_if_a_topic_matches_both)
{
    for (size_t i = 0; i < DLX_ARRAY_SIZE(pairs); i++) {
        const char *a = pairs[i].a, *b = pairs[i].b, *common = pairs[i].common;
        ck_assert_msg(dlx__patterns_meet(a, b) == (common != NULL), "%s and %s", a, b);
        ck_assert_msg(dlx__patterns_meet(b, a) == (common != NULL), "%s and %s", b, a);
        ck_assert(!common || (dlx__pattern_matches(a, common) && dlx__pattern_matches(b, common)));
    }
}

/* Writes the strings of 1 to `size_max` of these letters that are accepted, and returns their
 * number. */
static size_t list_words(const char *letters, size_t size_max, int (*check)(const char *word),
                         char (*ret)[8])
{
    size_t n = 0, base = strlen(letters);
    for (size_t size = 1, n_codes = base; size <= size_max; size++, n_codes *= base) {
        for (size_t code = 0; code < n_codes; code++) {
            size_t rest = code;
            for (size_t i = 0; i < size; i++, rest /= base)
                ret[n][i] = letters[rest % base];
            ret[n][size] = '\0';
            n += check(ret[n]) == 0;
        }
    }
    return n;
}

/* Every pattern of at most 4 letters with every other one: there is a topic of at most 6 letters
 * that both match, or there is none. */
TEST(patterns_meet_as_all_topics_say)
{
    static char words[400][8], topics[1200][8];
    static bool matches[400][1200];
    size_t n_patterns = list_words("ab*/", 4, dlx__pattern_check, words);
    size_t n_topics = list_words("ab/", 6, dlx__topic_check, topics);
    ck_assert(n_patterns > 150 && n_topics > 150);
    for (size_t i = 0; i < n_patterns; i++)
        for (size_t t = 0; t < n_topics; t++)
            matches[i][t] = dlx__pattern_matches(words[i], topics[t]);
    for (size_t i = 0; i < n_patterns; i++) {
        for (size_t k = 0; k < n_patterns; k++) {
            size_t t = 0;
            while (t < n_topics && !(matches[i][t] && matches[k][t]))
                t++;
            ck_assert_msg(dlx__patterns_meet(words[i], words[k]) == (t < n_topics), "%s and %s",
                          words[i], words[k]);
        }
    }
}
