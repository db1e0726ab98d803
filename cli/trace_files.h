/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_TRACE_FILES_H
#define CLI_TRACE_FILES_H

/**
 * The files with probes that programs map: libdlx.so, the Python extension, a program that libdlx
 * is linked into, also those of containers, by /proc/PID.
 *
 * Who looks is root as a rule, and reads ELF files. So it reads those alone that root or its own
 * user can change, unless a program was named.
 */

#include "cli/error.h"
#include "cli/trace.h"
#include <stdbool.h>
#include <stdint.h>

struct trace_files;

/** NULL: out of memory. */
struct trace_files *trace_files_new(void);
struct trace_files *trace_files_free(struct trace_files *f);

struct trace_found {
    uint32_t n_probed; /**< files with probes that it maps */
    uint32_t n_others; /**< files that were not read, since another user can change them */
    uint32_t uid;      /**< whose the first of them is */
    char path[256];    /**< and where, as text of another process */
};

/** Has the probes of what a program maps count. `is_named`: files of other users, too. Returns 0;
 *  DLX_E_NOT_FOUND (there is no such process), DLX_E_ACCESS, DLX_E_SYSTEM, DLX_E_NO_MEMORY. */
int trace_files_look(struct trace_files *f, struct trace *t, uint32_t pid, bool is_named,
                     struct trace_found *ret, struct cli_error *e);

#endif
