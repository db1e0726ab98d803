/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer: topic names and patterns, two texts with a NUL between them. The rules are told here a
 * second time, slowly. */
#include "common/error.h"
#include "common/topic.h"
#include "tests/fuzz/harness_fuzz.h"
#include <string.h>

#define TEXT_MAX 300U

static bool is_allowed(char c, bool pattern)
{
    return strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-", c) ||
           (pattern && c == '*');
}

static bool is_name(const char *text, bool pattern)
{
    size_t size = strlen(text);
    char copy[TEXT_MAX + 1], *rest = copy;
    if (size == 0 || size > DLX_TOPIC_SIZE_MAX)
        return false;
    memcpy(copy, text, size + 1);
    for (char *segment; (segment = strsep(&rest, "/"));) {
        if (strcmp(segment, "") == 0 || strcmp(segment, ".") == 0 || strcmp(segment, "..") == 0)
            return false;
        for (const char *c = segment; *c; c++)
            if (!is_allowed(*c, pattern))
                return false;
        if (strstr(segment, "**") && (strcmp(segment, "**") != 0 || rest))
            return false;
    }
    return true;
}

/* By trying everything: matches[i][k] tells about the rests of both from i and k. */
static bool matches_slowly(const char *pattern, const char *topic)
{
    static bool matches[TEXT_MAX + 2][TEXT_MAX + 2];
    size_t np = strlen(pattern), nt = strlen(topic);
    for (size_t i = np + 1; i-- > 0;) {
        for (size_t k = nt + 1; k-- > 0;) {
            bool m;
            if (i == np)
                m = k == nt;
            else if (strcmp(pattern + i, "**") == 0 && (i == 0 || pattern[i - 1] == '/'))
                m = k < nt;
            else if (pattern[i] == '*')
                m = matches[i + 1][k] || (k < nt && topic[k] != '/' && matches[i][k + 1]);
            else
                m = k < nt && pattern[i] == topic[k] && matches[i + 1][k + 1];
            matches[i][k] = m;
        }
    }
    return matches[0][0];
}

static size_t next_text(struct dlx_fuzz *f, char text[TEXT_MAX + 1])
{
    size_t size = 0;
    while (f->left > 0) {
        char c = (char)dlx_fuzz_bytes(f, 1);
        if (c == '\0')
            break;
        if (size < TEXT_MAX)
            text[size++] = c;
    }
    text[size] = '\0';
    return size;
}

void dlx_fuzz_one(struct dlx_fuzz *f)
{
    char pattern[TEXT_MAX + 1], topic[TEXT_MAX + 1];
    (void)next_text(f, pattern);
    (void)next_text(f, topic);
    bool is_pattern = dlx__pattern_check(pattern) == 0, is_topic = dlx__topic_check(topic) == 0;
    REQUIRE(is_pattern == is_name(pattern, true));
    REQUIRE(is_topic == is_name(topic, false));
    REQUIRE((dlx__topic_check(pattern) == 0) == (is_pattern && !dlx__is_pattern(pattern)));
    if (is_pattern && is_topic) {
        bool matches = dlx__pattern_matches(pattern, topic);
        size_t prefix = dlx__pattern_prefix(pattern);
        REQUIRE(matches == matches_slowly(pattern, topic));
        REQUIRE(!matches || strncmp(pattern, topic, prefix) == 0);
        REQUIRE(dlx__pattern_matches(topic, topic));
    }
}
