/* SPDX-License-Identifier: Apache-2.0 */

/* What keys do on the screen of dlxctl top. */

#include "cli/top.h"
#include "cli/screen.h"
#include <string.h>

static void sort_by(struct top *t, int step)
{
    size_t n = board_n_columns, i = t->view.sort ? (size_t)(t->view.sort - board_columns) : 0;
    t->view.sort = &board_columns[step < 0 ? (i + n - 1) % n : (i + 1) % n];
    t->view.reverse = false;
}

static size_t moved(size_t at, size_t n, int64_t by)
{
    if (by < 0)
        return at > (size_t)-by ? at - (size_t)-by : 0;
    return at + (size_t)by < n ? at + (size_t)by : n > 0 ? n - 1 : 0;
}

/* How far a key moves in a list of n lines, of which a page is on the screen; 0: it does not. */
static int64_t motion(int key, size_t n, size_t page)
{
    switch (key) {
    case SCREEN_UP:
    case 'k':
        return -1;
    case SCREEN_DOWN:
    case 'j':
        return 1;
    case SCREEN_PAGE_UP:
        return -(int64_t)page;
    case SCREEN_PAGE_DOWN:
    case ' ':
        return (int64_t)page;
    case SCREEN_HOME:
    case 'g':
        return -(int64_t)n - 1;
    case SCREEN_END:
    case 'G':
        return (int64_t)n + 1;
    default:
        return 0;
    }
}

static void press_in_filter(struct top *t, int key)
{
    static const char in_filters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                     "0123456789_.-*/";
    size_t n = strlen(t->filter);
    if (key == SCREEN_ENTER) {
        t->mode = TOP_LIST;
    } else if (key == SCREEN_ESCAPE) {
        memcpy(t->filter, t->filter_before, sizeof t->filter);
        t->mode = TOP_LIST;
    } else if (key == SCREEN_BACKSPACE && n > 0) {
        t->filter[n - 1] = '\0';
    } else if (key > 0 && key < 0x80 && strchr(in_filters, key) && n + 1 < sizeof t->filter) {
        t->filter[n] = (char)key;
        t->filter[n + 1] = '\0';
    }
}

static void press_in_list(struct top *t, int key)
{
    switch (key) {
    case SCREEN_LEFT:
    case '<':
        sort_by(t, -1);
        return;
    case SCREEN_RIGHT:
    case '>':
        sort_by(t, 1);
        return;
    case 'r':
        t->view.reverse = !t->view.reverse;
        return;
    case '/':
        memcpy(t->filter_before, t->filter, sizeof t->filter);
        t->mode = TOP_FILTER;
        return;
    case SCREEN_ESCAPE:
        t->filter[0] = '\0';
        return;
    case SCREEN_ENTER:
        if (t->selected >= t->view.n_rows)
            return;
        memcpy(t->topic, t->view.rows[t->selected]->name, sizeof t->topic);
        t->mode = TOP_TOPIC;
        t->scrolled = 0;
        return;
    default:
        t->selected = moved(t->selected, t->view.n_rows, motion(key, t->view.n_rows, t->n_shown));
    }
}

void top_press(struct top *t, int key)
{
    enum { FAR = 1 << 20 }; /* drawing knows the number of lines */
    if (t->mode == TOP_FILTER) {
        press_in_filter(t, key);
    } else if (key == 'q') {
        t->quits = true;
    } else if (key == 'p') {
        t->paused = !t->paused;
    } else if ((key == '?' || key == 'h' || key == SCREEN_HELP) && t->mode != TOP_HELP) {
        t->mode_before = t->mode;
        t->mode = TOP_HELP;
        t->scrolled = 0;
    } else if (t->mode == TOP_LIST) {
        press_in_list(t, key);
    } else if (key == SCREEN_ESCAPE || key == SCREEN_BACKSPACE || key == SCREEN_LEFT) {
        t->mode = t->mode == TOP_HELP ? t->mode_before : TOP_LIST;
        t->scrolled = 0;
    } else {
        unsigned height = screen_height();
        t->scrolled = moved(t->scrolled, FAR, motion(key, FAR, height > 4 ? height - 4 : 1));
    }
}
