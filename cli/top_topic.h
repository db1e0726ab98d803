/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_TOP_TOPIC_H
#define CLI_TOP_TOPIC_H

#include "cli/board.h"
#include <stdio.h>

/** Writes the publishers and links of a topic; lines fit `width` if they can. Returns 0 or
 *  DLX_E_NO_MEMORY. */
int top_topic_write(FILE *file, const struct board *b, const char *topic, unsigned width);

#endif
