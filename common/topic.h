/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_COMMON_TOPIC_H
#define DLX_COMMON_TOPIC_H

#include <stdbool.h>
#include <stddef.h>

#define DLX_TOPIC_SIZE_MAX 255U

/*
 * A topic name: 1 to DLX_TOPIC_SIZE_MAX bytes, segments of [A-Za-z0-9_.-] separated by single '/',
 * no segment ".", ".." or empty. So it can be a file name, a label and part of a pattern without
 * quoting.
 *
 * Returns 0, or DLX_E_TOPIC with the rule that is broken in the thread's message.
 */
int dlx__topic_check(const char *topic);

/*
 * A pattern: as a topic name, but '*' stands for any number of characters of its segment, and a last
 * segment "**" for one segment or more. A topic name is a pattern that matches itself. Returns as above.
 */
int dlx__pattern_check(const char *pattern);

/* Has it a '*'? Else it is the name of one topic. */
bool dlx__is_pattern(const char *pattern);

/* Bytes before the first '*': every topic that matches begins with them. */
size_t dlx__pattern_prefix(const char *pattern);

/* Both were checked. Time: at most the product of their lengths. */
bool dlx__pattern_matches(const char *pattern, const char *topic);

#endif
