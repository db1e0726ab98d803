/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_TRACE_CHROME_H
#define CLI_TRACE_CHROME_H

/**
 * A file in the format of Chrome's traces, which Perfetto reads, too. Each message that is taken
 * has two spans in its subscriber's process: on the way, from its time to the take, and held, to
 * the release. Publishes and bells are instants.
 */

#include "cli/error.h"
#include "cli/trace_event.h"
#include <stdbool.h>
#include <stdint.h>

struct trace_chrome;

/** More events are counted, and not written: viewers fail at larger files. */
#define TRACE_CHROME_MAX UINT64_C(2000000)

/** Creates the file, or writes it anew. */
int trace_chrome_open(struct trace_chrome **ret, const char *path, struct cli_error *e);

/** Writes a message or a bell. `topic`: text of another process. */
void trace_chrome_add(struct trace_chrome *c, const struct trace_event *event, const char *topic);
/** A message that is still held, at the end, or when its process ended. */
void trace_chrome_add_held(struct trace_chrome *c, const struct trace_hold_key *key,
                           const struct trace_hold *hold, uint64_t now, const char *topic);
/** The name of a process. */
void trace_chrome_add_process(struct trace_chrome *c, uint32_t pid, const char *name);

/** Ends the file. `ret_left_out`: events that were not written. Returns 0 or DLX_E_SYSTEM (a full
 *  disk). */
int trace_chrome_close(struct trace_chrome *c, uint64_t *ret_left_out, struct cli_error *e);

#endif
