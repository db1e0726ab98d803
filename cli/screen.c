/* SPDX-License-Identifier: Apache-2.0 */

/* The terminal as a screen. */

#include "cli/screen.h"

#ifdef DLX_NO_NCURSES

int screen_open(struct cli_error *e)
{
    return cli_fail(e, DLX_E_INVALID,
                    "this dlxctl was built without ncurses, so it has no screen: use --once or "
                    "--json, or build it where libncurses-dev is installed");
}

/* No screen was opened, so nothing below is called. */
void screen_close(void) {}

unsigned screen_width(void)
{
    return 0;
}

unsigned screen_height(void)
{
    return 0;
}

void screen_clear(void) {}

void screen_show(void) {}

void screen_fill(unsigned line, unsigned column, enum screen_style style)
{
    (void)line, (void)column, (void)style;
}

void screen_put(unsigned line, unsigned column, enum screen_style style, const char *text)
{
    (void)line, (void)column, (void)style, (void)text;
}

int screen_key(void)
{
    return SCREEN_NONE;
}

#else

#include "cli/output.h"
#include "cli/terminal.h"
#include <curses.h>
#include <langinfo.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <term.h>
#include <unistd.h>

static SCREEN *screen;
static bool has_colours, has_utf8;

/* ---- modes ----------------------------------------------------------------------------------- */

/* Adds a string of the terminal's description to what gives its modes back, without the pauses in
 * it ("$<5>"). */
#define LEAVE_SIZE 256
static void add_leave(const char *name, char leave[LEAVE_SIZE])
{
    const char *text = tigetstr(name);
    if (!text || text == (const char *)-1)
        return;
    for (size_t n = strlen(leave); *text && n + 1 < LEAVE_SIZE; text++) {
        const char *end = text[0] == '$' && text[1] == '<' ? strchr(text, '>') : NULL;
        if (end)
            text = end;
        else
            leave[n++] = *text;
        leave[n] = '\0';
    }
}

static void set_styles(void)
{
    const char *no_colour = getenv("NO_COLOR");
    has_colours = !(no_colour && *no_colour) && has_colors() && start_color() == OK;
    if (!has_colours)
        return;
    (void)use_default_colors();
    (void)init_pair(SCREEN_BAR, COLOR_BLACK, COLOR_GREEN);
    (void)init_pair(SCREEN_SELECTED, COLOR_BLACK, COLOR_CYAN);
    (void)init_pair(SCREEN_NOTICE, COLOR_YELLOW, -1);
    (void)init_pair(SCREEN_ALARM, COLOR_RED, -1);
}

int screen_open(struct cli_error *e)
{
    const char *term = getenv("TERM");
    int found = 0;
    if (!isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO))
        return cli_fail(e, DLX_E_INVALID, "%s is no terminal: use --once or --json",
                        isatty(STDOUT_FILENO) ? "the standard input" : "the standard output");
    if (!term || !*term || setupterm(NULL, STDOUT_FILENO, &found) == ERR)
        return cli_fail(e, DLX_E_INVALID,
                        "the terminal %s is not known here ($TERM): use --once or --json, or "
                        "install the package ncurses-term",
                        term && *term ? term : "\"\"");
    bool can = cursor_address && clear_screen;
    char leave[LEAVE_SIZE] = "";
    static const char *const names[] = {"sgr0", "op", "rmkx", "cnorm", "rmcup"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        add_leave(names[i], leave);
    (void)del_curterm(cur_term); /* newterm() makes another one */
    if (!can)
        return cli_fail(e, DLX_E_INVALID,
                        "a terminal of the type %s ($TERM) has no screen: use --once or --json",
                        term);
    (void)setlocale(LC_CTYPE, "");
    has_utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    terminal_keep(leave);
    screen = newterm(NULL, stdout, stdin);
    if (!screen) {
        terminal_forget();
        return cli_fail(e, DLX_E_INVALID, "the terminal %s cannot be used: use --once or --json",
                        term);
    }
    (void)cbreak();
    (void)noecho();
    (void)nonl();
    (void)keypad(stdscr, TRUE);
    (void)nodelay(stdscr, TRUE);
    (void)set_escdelay(25);
    (void)curs_set(0);
    set_styles();
    return 0;
}

void screen_close(void)
{
    if (!screen)
        return;
    (void)endwin();
    terminal_forget();
    delscreen(screen);
    screen = NULL;
}

/* ---- the picture ----------------------------------------------------------------------------- */

unsigned screen_width(void)
{
    return (unsigned)COLS;
}

unsigned screen_height(void)
{
    return (unsigned)LINES;
}

void screen_clear(void)
{
    (void)erase();
}

void screen_show(void)
{
    (void)refresh();
}

static void set_style(enum screen_style style)
{
    static const attr_t plain[] = {[SCREEN_PLAIN] = A_NORMAL,
                                   [SCREEN_BOLD] = A_BOLD,
                                   [SCREEN_DIM] = A_DIM,
                                   [SCREEN_BAR] = A_REVERSE,
                                   [SCREEN_SELECTED] = A_REVERSE | A_BOLD,
                                   [SCREEN_NOTICE] = A_BOLD,
                                   [SCREEN_ALARM] = A_BOLD};
    bool coloured = has_colours && style >= SCREEN_BAR;
    (void)attr_set(coloured && style < SCREEN_NOTICE ? A_NORMAL : plain[style],
                   (short)(coloured ? style : 0), NULL);
}

void screen_fill(unsigned line, unsigned column, enum screen_style style)
{
    set_style(style);
    if (line < screen_height() && column < screen_width())
        (void)mvhline((int)line, (int)column, ' ', (int)(screen_width() - column));
}

void screen_put(unsigned line, unsigned column, enum screen_style style, const char *text)
{
    if (line >= screen_height() || column >= screen_width())
        return;
    set_style(style);
    size_t n = output_bytes_of(text, screen_width() - column);
    if (move((int)line, (int)column) == ERR)
        return;
    if (has_utf8) {
        (void)addnstr(text, (int)n);
        return;
    }
    /* the terminal of this locale has ASCII alone: a mark for each other character */
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c < 0x80)
            (void)addch(c);
        else if (c >= 0xc0)
            (void)addch('?');
    }
}

/* ---- keys ------------------------------------------------------------------------------------ */

int screen_key(void)
{
    static const struct {
        int key;
        enum screen_key as;
    } keys[] = {
        {ERR, SCREEN_NONE},
        {KEY_UP, SCREEN_UP},
        {KEY_DOWN, SCREEN_DOWN},
        {KEY_LEFT, SCREEN_LEFT},
        {KEY_RIGHT, SCREEN_RIGHT},
        {KEY_PPAGE, SCREEN_PAGE_UP},
        {KEY_NPAGE, SCREEN_PAGE_DOWN},
        {KEY_HOME, SCREEN_HOME},
        {KEY_END, SCREEN_END},
        {KEY_ENTER, SCREEN_ENTER},
        {'\r', SCREEN_ENTER},
        {'\n', SCREEN_ENTER},
        {KEY_BACKSPACE, SCREEN_BACKSPACE},
        {'\b', SCREEN_BACKSPACE},
        {0x7f, SCREEN_BACKSPACE},
        {KEY_F(1), SCREEN_HELP},
        {KEY_RESIZE, SCREEN_REDRAW},
        {'L' & 0x1f, SCREEN_REDRAW},
    };
    int key = getch();
    if (key == ('L' & 0x1f) || key == KEY_RESIZE)
        (void)clearok(stdscr, TRUE);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (key == keys[i].key)
            return keys[i].as;
    return key > 0xff ? SCREEN_OTHER : key;
}

#endif
