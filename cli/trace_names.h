/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_TRACE_NAMES_H
#define CLI_TRACE_NAMES_H

/** Which topic a publisher is of, and what a process is called, as the daemon's lists and events
 *  said. Names stay when what they name has gone: what was counted has yet to be told. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct trace_names;

/** NULL: out of memory. */
struct trace_names *trace_names_new(void);
struct trace_names *trace_names_free(struct trace_names *names);

/** Returns 0 or DLX_E_NO_MEMORY. */
int trace_names_add_publisher(struct trace_names *names, uint64_t publisher, const char *topic);
int trace_names_add_program(struct trace_names *names, uint32_t pid, const char *name);
/** Likewise for what a program says of itself, which changes no name that is there. Returns
 *  DLX_E_LIMIT, too: there are TRACE_NAMES_CLAIMED_MAX such names. */
#define TRACE_NAMES_CLAIMED_MAX 8192
int trace_names_claim_publisher(struct trace_names *names, uint64_t publisher, const char *topic);
int trace_names_claim_program(struct trace_names *names, uint32_t pid, const char *name);

/** NULL: unknown. Valid until the next name is added. */
const char *trace_names_topic(const struct trace_names *names, uint64_t publisher);
const char *trace_names_program(const struct trace_names *names, uint32_t pid);

#endif
