/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_COMMON_TOPIC_H
#define DLX_COMMON_TOPIC_H

#define DLX_TOPIC_SIZE_MAX 255U

/*
 * A topic name: 1 to DLX_TOPIC_SIZE_MAX bytes, segments of [A-Za-z0-9_.-] separated by single '/',
 * no segment ".", ".." or empty. So it can be a file name, a label and part of a pattern without
 * quoting.
 *
 * Returns 0, or DLX_E_TOPIC with the rule that is broken in the thread's message.
 */
int dlx__topic_check(const char *topic);

#endif
