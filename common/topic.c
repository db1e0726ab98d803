/* SPDX-License-Identifier: Apache-2.0 */
#include "common/topic.h"
#include "common/error.h"
#include <stdbool.h>
#include <stddef.h>

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

int dlx__topic_check(const char *topic)
{
    if (!topic || !topic[0])
        return dlx__fail(DLX_E_TOPIC, "topic name is empty");
    size_t start = 0;
    for (size_t i = 0;; i++) {
        if (i > DLX_TOPIC_SIZE_MAX)
            return dlx__fail(DLX_E_TOPIC, "topic name \"%.40s...\" is longer than %u bytes", topic,
                             DLX_TOPIC_SIZE_MAX);
        char c = topic[i];
        if (c == '/' || c == '\0') {
            if (i == start)
                return dlx__fail(DLX_E_TOPIC, "topic name \"%.255s\" has an empty segment", topic);
            if (is_dots(topic + start, i - start))
                return dlx__fail(DLX_E_TOPIC, "topic name \"%.255s\" has a segment \".\" or \"..\"",
                                 topic);
            if (c == '\0')
                return 0;
            start = i + 1;
        } else if (!is_topic_char(c)) {
            if (c < 0x20 || c > 0x7e)
                return dlx__fail(DLX_E_TOPIC,
                                 "topic name has byte 0x%02x at %zu; allowed are A-Z a-z 0-9 _ . - "
                                 "and / between segments",
                                 (unsigned char)c, i);
            return dlx__fail(DLX_E_TOPIC,
                             "topic name \"%.255s\" has '%c' at %zu; allowed are A-Z a-z 0-9 _ . - "
                             "and / between segments",
                             topic, c, i);
        }
    }
}
