/* SPDX-License-Identifier: Apache-2.0 */
#include "common/topic.h"
#include "common/error.h"
#include <string.h>

static bool is_topic_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
}

static bool is_dots(const char *segment, size_t size)
{
    return (size == 1 && segment[0] == '.') ||
           (size == 2 && segment[0] == '.' && segment[1] == '.');
}

/* "**" is allowed only as the last segment. */
static int check_stars(const char *pattern)
{
    const char *stars = strstr(pattern, "**");
    if (!stars || ((stars == pattern || stars[-1] == '/') && stars[2] == '\0'))
        return 0;
    return dlx__fail(DLX_E_TOPIC,
                     "pattern \"%.255s\" has \"**\" at %zu; it is only allowed as the last segment",
                     pattern, (size_t)(stars - pattern));
}

/* `what` is "topic name" or "pattern"; only a pattern has stars. */
static int topic_check(const char *topic, const char *what, bool pattern)
{
    if (!topic || !topic[0])
        return dlx__fail(DLX_E_TOPIC, "%s is %s", what, topic ? "empty" : "NULL");
    size_t start = 0;
    for (size_t i = 0;; i++) {
        if (i > DLX_TOPIC_SIZE_MAX)
            return dlx__fail(DLX_E_TOPIC, "%s \"%.40s...\" is longer than %u bytes", what, topic,
                             DLX_TOPIC_SIZE_MAX);
        char c = topic[i];
        if (c == '/' || c == '\0') {
            if (i == start)
                return dlx__fail(DLX_E_TOPIC, "%s \"%.255s\" %s", what, topic,
                                 i == 0      ? "begins with '/'"
                                 : c == '\0' ? "ends with '/'"
                                             : "has an empty segment");
            if (is_dots(topic + start, i - start))
                return dlx__fail(DLX_E_TOPIC, "%s \"%.255s\" has a segment \".\" or \"..\"", what,
                                 topic);
            if (c == '\0')
                return pattern ? check_stars(topic) : 0;
            start = i + 1;
        } else if (!is_topic_char(c) && !(pattern && c == '*')) {
            if (c < 0x20 || c > 0x7e)
                return dlx__fail(DLX_E_TOPIC,
                                 "%s has byte 0x%02x at %zu; allowed are A-Z a-z 0-9 _ . - "
                                 "and / between segments",
                                 what, (unsigned char)c, i);
            return dlx__fail(DLX_E_TOPIC,
                             "%s \"%.255s\" has '%c' at %zu; allowed are A-Z a-z 0-9 _ . - %s"
                             "and / between segments",
                             what, topic, c, i, pattern ? "* " : "");
        }
    }
}

int dlx__topic_check(const char *topic)
{
    return topic_check(topic, "topic name", false);
}

bool dlx__is_inbox(const char *topic)
{
    return topic && topic[0] == '@' &&
           strspn(topic + 1, "0123456789abcdef") == DLX_INBOX_SIZE - 1 &&
           topic[DLX_INBOX_SIZE] == '\0';
}

int dlx__topic_check_any(const char *topic)
{
    return dlx__is_inbox(topic) ? 0 : dlx__topic_check(topic);
}

int dlx__group_check(const char *name)
{
    size_t size = name ? strlen(name) : 0, i = 0;
    if (size == 0 || size > DLX_GROUP_SIZE_MAX)
        return dlx__fail(DLX_E_INVALID,
                         "the name of a group, \"%.40s\"%s, has %zu bytes; it must "
                         "have 1 to %u",
                         name ? name : "", size > 40 ? "..." : "", size, DLX_GROUP_SIZE_MAX);
    while (i < size && is_topic_char(name[i]))
        i++;
    if (i < size)
        return dlx__fail(DLX_E_INVALID,
                         "the name of a group has byte 0x%02x at %zu; allowed are A-Z a-z 0-9 _ . "
                         "-",
                         (unsigned char)name[i], i);
    return 0;
}

int dlx__pattern_check(const char *pattern)
{
    return topic_check(pattern, pattern && dlx__is_pattern(pattern) ? "pattern" : "topic name",
                       true);
}

bool dlx__is_pattern(const char *pattern)
{
    return strchr(pattern, '*') != NULL;
}

size_t dlx__pattern_prefix(const char *pattern)
{
    return strcspn(pattern, "*");
}

/* Only the last star of a segment may have to match more: each earlier star is settled when the
 * next one is reached. A star never matches a '/'. */
bool dlx__pattern_matches(const char *pattern, const char *topic)
{
    const char *star = NULL; /* the pattern after it */
    const char *taken = NULL;
    if (*topic == '@')
        return strcmp(pattern, topic) == 0;
    for (;;) {
        if (strcmp(pattern, "**") == 0)
            return *topic != '\0';
        if (*pattern == '*') {
            star = ++pattern;
            taken = topic;
        } else if (*pattern == *topic) {
            if (*topic == '\0')
                return true;
            if (*topic == '/')
                star = NULL;
            pattern++;
            topic++;
        } else if (star && *taken && *taken != '/') {
            pattern = star;
            topic = ++taken;
        } else {
            return false;
        }
    }
}

/* Two segments with a star in each. A name matches both that begins with what both have before
 * their first stars, ends with what both have after their last ones, and has the rest of the first
 * and of the second one in between. So only beginnings and ends can differ. */
static bool stars_meet(const char *a, size_t a_size, const char *b, size_t b_size)
{
    for (size_t i = 0; a[i] != '*' && b[i] != '*'; i++)
        if (a[i] != b[i])
            return false;
    for (size_t i = 1; a[a_size - i] != '*' && b[b_size - i] != '*'; i++)
        if (a[a_size - i] != b[b_size - i])
            return false;
    return true;
}

/* The name is a segment without a star. */
static bool segment_matches(const char *pattern, size_t pattern_size, const char *name,
                            size_t name_size)
{
    char texts[2][DLX_TOPIC_SIZE_MAX + 1];
    memcpy(texts[0], pattern, pattern_size);
    memcpy(texts[1], name, name_size);
    texts[0][pattern_size] = texts[1][name_size] = '\0';
    return dlx__pattern_matches(texts[0], texts[1]);
}

bool dlx__patterns_meet(const char *a, const char *b)
{
    if (*a == '@' || *b == '@')
        return strcmp(a, b) == 0;
    for (;;) {
        size_t a_size = strcspn(a, "/"), b_size = strcspn(b, "/");
        if (strcmp(a, "**") == 0 || strcmp(b, "**") == 0)
            return true;
        bool meet = !memchr(a, '*', a_size)   ? segment_matches(b, b_size, a, a_size)
                    : !memchr(b, '*', b_size) ? segment_matches(a, a_size, b, b_size)
                                              : stars_meet(a, a_size, b, b_size);
        if (!meet || a[a_size] != b[b_size])
            return false;
        if (a[a_size] == '\0')
            return true;
        a += a_size + 1;
        b += b_size + 1;
    }
}
