/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_COMMON_TOPIC_H
#define DLX_COMMON_TOPIC_H

#include <stdbool.h>
#include <stddef.h>

#define DLX_TOPIC_SIZE_MAX 255U
#define DLX_GROUP_SIZE_MAX 63U

/*
 * Checks a topic name: 1 to DLX_TOPIC_SIZE_MAX bytes, segments of [A-Za-z0-9_.-] separated by
 * single '/', no segment "." or ".." and no empty one. So a topic name can be a file name, a label
 * or a part of a pattern without quoting.
 *
 * Returns 0, or DLX_E_TOPIC with the violated rule in the thread's message.
 */
int dlx__topic_check(const char *topic);

/*
 * An inbox is the topic by which a caller gets its replies: '@' and 32 digits of 0-9 a-f, a random
 * number. No topic name and no pattern has an '@', so only the library makes inboxes. Whoever knows
 * the name may publish there: no rule is about inboxes, and no list shows them.
 */
#define DLX_INBOX_SIZE 33U
bool dlx__is_inbox(const char *topic);

/* As dlx__topic_check(), for what may be an inbox, too. */
int dlx__topic_check_any(const char *topic);

/* Checks the name of a group: 1 to 63 bytes of A-Z a-z 0-9 _ . -. Returns 0, or DLX_E_INVALID with
 * the violated rule. */
int dlx__group_check(const char *name);

/* Checks a pattern: a topic name in which '*' stands for any number of characters of its segment,
 * and a last segment "**" for one or more segments. A topic name is a pattern that matches itself.
 * Returns as dlx__topic_check() does. */
int dlx__pattern_check(const char *pattern);

/* Does it contain a '*'? If not, it is the name of one topic. */
bool dlx__is_pattern(const char *pattern);

/* The number of bytes before the first '*': every matching topic starts with them. */
size_t dlx__pattern_prefix(const char *pattern);

/* Both arguments were checked. An inbox matches its own name only. Takes time up to the product of
 * their lengths. */
bool dlx__pattern_matches(const char *pattern, const char *topic);

/* Is there a topic that both patterns match? Both were checked; each may be a topic name. Takes
 * time up to the sum of their lengths. */
bool dlx__patterns_meet(const char *a, const char *b);

#endif
