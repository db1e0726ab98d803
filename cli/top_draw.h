/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_TOP_DRAW_H
#define CLI_TOP_DRAW_H

#include "cli/top.h"

/** Draws the screen of dlxctl top, and updates its view. Returns 0 or DLX_E_NO_MEMORY. */
int top_draw(struct top *t);

#endif
