/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_GRAPHICS_H
#define CLI_GRAPHICS_H

/**
 * Pictures as text for a terminal, by chafa. A build without it (DLX_NO_CHAFA) has characters
 * alone.
 */

#include "cli/picture.h"
#include <stdbool.h>
#include <stdio.h>

enum graphics {
    GRAPHICS_KITTY,      /**< pixels, by the protocol of kitty */
    GRAPHICS_SIXEL,      /**< pixels, by that of DEC's terminals */
    GRAPHICS_BLOCKS,     /**< two pixels a character, above each other, in colours */
    GRAPHICS_CHARACTERS, /**< one of ten characters for the brightness */
    GRAPHICS_AUTO,       /**< none of them: the best one that the terminal has */
};

/** "kitty", "sixel", "blocks", "characters", "auto". Returns false for another name. */
bool graphics_parse(const char *name, enum graphics *ret);

/** Does this build have it? */
bool graphics_is_built(enum graphics g);

/** What a terminal has answered. */
struct graphics_answers {
    bool kitty, sixel;
    unsigned cell_width, cell_height; /**< pixels of a character; 0: unknown */
};

/** The questions. Every terminal answers the last one. */
#define GRAPHICS_QUESTIONS                                                                         \
    "\033_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\033\\" /* kitty: would this picture be drawn? */         \
    "\033[16t"                                   /* the size of a character */                     \
    "\033[c"                                     /* the kind of terminal: 4 is sixel */

/** Read what has come so far. Returns whether the last answer is there. */
bool graphics_read_answers(const char *bytes, size_t n, struct graphics_answers *ret);

/** What the terminal on standard output is like, by its environment: $TERM, $COLORTERM, $NO_COLOR
 *  and the locale. */
enum graphics graphics_without_asking(void);

/** Where a picture is drawn. */
struct graphics_place {
    unsigned columns, lines;
    unsigned cell_width, cell_height; /**< pixels of a character; at least 1 */
};

/** The size that a picture should have for this place, in pixels; at most 800 x 600. */
void graphics_picture_size(enum graphics g, const struct graphics_place *place, uint32_t *ret_width,
                           uint32_t *ret_height);

/** Draw it, enlarged until it fills the place in one direction, from the cursor on; the cursor is
 *  in the first column. Returns 0, or DLX_E_NO_MEMORY. */
int graphics_draw(FILE *file, enum graphics g, const struct picture *p,
                  const struct graphics_place *place);

/** What removes pictures that text does not overwrite; "" if there are none. */
const char *graphics_clear(enum graphics g);

#endif
