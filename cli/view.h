/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_VIEW_H
#define CLI_VIEW_H

/** What dlxctl view draws of a message, which it does not hold meanwhile: an image, a heat map, a
 *  histogram, or words. */

#include "cli/describe.h"
#include "cli/graphics.h"
#include "cli/histogram.h"

struct view {
    enum view_kind {
        VIEW_NOTHING,
        VIEW_PICTURE,
        VIEW_HISTOGRAM,
        VIEW_WORDS, /**< why there is no picture */
    } kind;
    char title[DESCRIBE_ITEM_SIZE + 300]; /**< the topic, the number and the tensor */
    int64_t published_ns;                 /**< by CLOCK_MONOTONIC */
    struct picture picture;
    struct histogram histogram;
    struct cli_error words;
};

/** Take what is drawn of tensor `i` of a message; the caller releases the message. Returns 0, or
 *  the code of a VIEW_WORDS. */
int view_set(struct view *v, struct dlx_message *m, uint32_t i, enum graphics g,
             const struct graphics_place *place);

void view_deinit(struct view *v);

/** Draw it, but for the title and the legend. Each line ends with a newline. Returns 0 or
 *  DLX_E_NO_MEMORY. */
int view_draw(FILE *file, const struct view *v, enum graphics g,
              const struct graphics_place *place);

/** What the colours or the bars mean: "heat map from -1 to 3.5, 12 NaN". */
#define VIEW_LEGEND_SIZE 200
void view_legend(const struct view *v, char text[VIEW_LEGEND_SIZE]);

#endif
