/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_TERMINAL_H
#define CLI_TERMINAL_H

/**
 * The modes of the terminal that standard input and standard output are. They come back in
 * terminal_restore(), and also when a signal ends the program, such as SIGABRT, except for SIGKILL.
 */

#include "cli/error.h"
#include <stdbool.h>

/** Remember the modes; `leave` is written to give back those that were set by writing. Before,
 *  wait_catch_signals() was called. */
void terminal_keep(const char *leave);

/** The modes are what they were: no signal restores them from here on. */
void terminal_forget(void);

/** Keep the modes, write `enter`, and get keys at once and without an echo. Ctrl-Z gives the modes
 *  back while the program is stopped. */
void terminal_take(const char *enter, const char *leave);

/** Give the modes back that terminal_take() has changed; what was typed and not read is dropped. */
void terminal_restore(void);

/** Was the program stopped, and has it gone on, since the last call? */
bool terminal_has_resumed(void);

#endif
