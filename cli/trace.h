/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_TRACE_H
#define CLI_TRACE_H

/** The probes of running programs, by BPF: trace.bpf.c runs in the kernel, and this reads what it
 *  has counted. A build without libbpf (DLX_NO_BPF) has none, and says so. */

#include "cli/error.h"
#include "cli/trace_event.h"
#include <stdbool.h>
#include <stddef.h>

struct trace;

/** `event` is a struct trace_attach if it is TRACE_ATTACH. */
typedef void (*trace_event_fn)(const struct trace_event *event, void *userdata);

/** Loads the program into the kernel. `wants_messages`: each message is an event. Returns 0;
 *  DLX_E_KERNEL (built without libbpf, or the kernel has no BPF, BTF or uprobes), DLX_E_ACCESS (a
 *  privilege is missing, which `e` names), DLX_E_NO_MEMORY, DLX_E_SYSTEM. */
int trace_new(struct trace **ret, bool wants_messages, trace_event_fn fn, void *userdata,
              struct cli_error *e);
struct trace *trace_free(struct trace *t);

/** Counts at the probes of an ELF file, in all processes that map it, also in later ones. `name` is
 *  for errors. Returns 1; 0: it has none of our probes; a negative code. */
int trace_attach(struct trace *t, int borrow_fd, const char *name, struct cli_error *e);

/** Has the end of this process be an event, even if it takes no message. */
void trace_watch(struct trace *t, uint32_t pid);
/** Is it, and has it not been forgotten? */
bool trace_is_watched(const struct trace *t, uint32_t pid);
/** Has it taken a message since? */
bool trace_has_taken(const struct trace *t, uint32_t pid);
/** The process has ended. */
void trace_forget(struct trace *t, uint32_t pid);

/** Readable when there is an event that cannot wait. */
int trace_fd(const struct trace *t);
/** Passes some of the events that are there on: programs may send new ones faster than they are
 *  read. Returns whether there may be more. */
bool trace_read(struct trace *t);

/** Calls `fn` for each entry: struct trace_hold_key and trace_hold; uint64_t and trace_publisher;
 *  trace_bell_key and trace_bell. Returns 0, DLX_E_NO_MEMORY or DLX_E_SYSTEM (errno). */
typedef void (*trace_entry_fn)(const void *key, const void *value, void *userdata);
enum trace_map { TRACE_HOLDS, TRACE_PUBLISHERS, TRACE_BELLS };
int trace_each(const struct trace *t, enum trace_map map, trace_entry_fn fn, void *userdata);
/** The process that held it has ended. */
void trace_forget_hold(struct trace *t, const struct trace_hold_key *key);

/** What found no room so far. */
void trace_lacks(const struct trace *t, uint64_t ret[TRACE_N_LACKS]);

#endif
