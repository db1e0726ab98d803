/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_SHOW_H
#define CLI_SHOW_H

/** A message for people: its number, age, type, shape, size and first values. */

#include <dlx/dlx.h>
#include <stdint.h>

#define SHOW_VALUES_DEFAULT 6
#define SHOW_VALUES_MAX     1000000

/**
 * Print a line for it on stdout; for a set, lines for its first tensors, too. `from` (NULL:
 * nothing) stands before the number and says whose it is. `with_gap`: say how many messages before
 * it are missing.
 */
void show_message(const struct dlx_message *m, const char *from, uint64_t n_values, bool with_gap);

#endif
