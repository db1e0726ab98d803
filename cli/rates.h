/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_RATES_H
#define CLI_RATES_H

/** A struct rate for each of several topics. */

#include "cli/rate.h"

struct rates;

struct rates_entry {
    const char *topic;
    struct rate *rate;
    uint64_t missed; /**< messages that were lost or skipped, as those that came tell */
};

/** Returns 0 or DLX_E_NO_MEMORY. */
int rates_new(struct rates **ret, size_t window);
struct rates *rates_free(struct rates *r);

/** The entry of a topic, made when it is not there. Valid until the next call. NULL: out of memory.
 *  */
struct rates_entry *rates_of(struct rates *r, const char *topic);

/** How many there are, and each of them in the order of names. */
size_t rates_count(const struct rates *r);
const struct rates_entry *rates_at(const struct rates *r, size_t i);

#endif
