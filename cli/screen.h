/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_SCREEN_H
#define CLI_SCREEN_H

/**
 * The whole terminal as a screen, by ncurses. Its modes come back in screen_close(), while the
 * program is stopped (Ctrl-Z), and also when a signal ends the program, such as SIGABRT, except for
 * SIGKILL. A build without ncurses (DLX_NO_NCURSES) opens no screen.
 */

#include "cli/error.h"
#include <stdbool.h>

/** Take the terminal. wait_catch_signals() was called before. Returns 0, or a negative code: there
 *  is no terminal that can do this. */
int screen_open(struct cli_error *e);
void screen_close(void);

unsigned screen_width(void);
unsigned screen_height(void);

enum screen_style {
    SCREEN_PLAIN,
    SCREEN_BOLD,
    SCREEN_DIM,
    SCREEN_BAR,      /**< a line that stands out */
    SCREEN_SELECTED, /**< likewise, and in another colour */
    SCREEN_NOTICE,   /**< something to look at: bold without colours */
    SCREEN_ALARM,    /**< something that is wrong: bold without colours */
};

/** A new picture begins, empty; screen_show() shows it. */
void screen_clear(void);
void screen_show(void);

/** Fill a line with this style, from a column on. */
void screen_fill(unsigned line, unsigned column, enum screen_style style);

/** Put text, cut at the edge of the screen. It has no control characters. */
void screen_put(unsigned line, unsigned column, enum screen_style style, const char *text);

/** Keys that are no characters. */
enum screen_key {
    SCREEN_NONE = -1, /**< no key was pressed */
    SCREEN_ESCAPE = 27,
    SCREEN_UP = 0x10000,
    SCREEN_DOWN,
    SCREEN_LEFT,
    SCREEN_RIGHT,
    SCREEN_PAGE_UP,
    SCREEN_PAGE_DOWN,
    SCREEN_HOME,
    SCREEN_END,
    SCREEN_ENTER,
    SCREEN_BACKSPACE,
    SCREEN_HELP,
    SCREEN_REDRAW, /**< the size has changed, or Ctrl-L */
    SCREEN_OTHER,
};

/** The next key that was pressed; does not wait: poll standard input. */
int screen_key(void);

#endif
