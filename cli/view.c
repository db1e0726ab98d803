/* SPDX-License-Identifier: Apache-2.0 */

/* What dlxctl view draws of a message. */

#include "cli/view.h"
#include "cli/output.h"
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static void set_title(struct view *v, const struct dlx_message *m, uint32_t i)
{
    char topic[256], tensor[DESCRIBE_ITEM_SIZE] = "";
    uint32_t n = dlx_message_n_tensors(m);
    output_printable(dlx_message_topic(m), topic, sizeof topic);
    if (i < n && describe_is_set(m))
        describe_item_text(m, i, tensor);
    else if (i < n)
        describe_tensor_text(dlx_message_tensor_peek(m, i), tensor);
    if (n > 1)
        (void)snprintf(v->title, sizeof v->title, "%s  #%" PRIu64 "  tensor %u of %u  %s", topic,
                       dlx_message_seq(m), i, n, tensor);
    else
        (void)snprintf(v->title, sizeof v->title, "%s  #%" PRIu64 "  %s", topic, dlx_message_seq(m),
                       tensor);
    v->published_ns = (int64_t)dlx_message_monotonic_ns(m);
}

void view_deinit(struct view *v)
{
    picture_deinit(&v->picture);
    v->kind = VIEW_NOTHING;
}

int view_set(struct view *v, struct dlx_message *m, uint32_t i, enum graphics g,
             const struct graphics_place *place)
{
    DLTensor t;
    void *copy = NULL;
    uint32_t width, height;
    view_deinit(v);
    set_title(v, m, i);
    graphics_picture_size(g, place, &width, &height);
    int code = picture_host_tensor(m, i, &t, &copy, &v->words);
    if (code == 0 && picture_kind_of(&t) != PICTURE_NONE) {
        v->kind = VIEW_PICTURE;
        code = picture_draw(&v->picture, &t, width, height, &v->words);
    } else if (code == 0) {
        v->kind = VIEW_HISTOGRAM;
        code = histogram_count(&v->histogram, &t, place->lines, &v->words);
    }
    if (code < 0)
        v->kind = VIEW_WORDS;
    free(copy);
    return code;
}

int view_draw(FILE *file, const struct view *v, enum graphics g, const struct graphics_place *place)
{
    if (v->kind == VIEW_PICTURE)
        return graphics_draw(file, g, &v->picture, place);
    if (v->kind == VIEW_HISTOGRAM)
        histogram_print(file, &v->histogram, place->columns, g != GRAPHICS_CHARACTERS);
    if (v->kind == VIEW_WORDS)
        (void)fprintf(file, "no picture: %s\n", v->words.text);
    return 0;
}

/* ---- legends --------------------------------------------------------------------------------- */

static void add_words(char text[VIEW_LEGEND_SIZE], const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void add_words(char text[VIEW_LEGEND_SIZE], const char *format, ...)
{
    size_t at = strlen(text);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text + at, VIEW_LEGEND_SIZE - at, format, args);
    va_end(args);
}

static void picture_legend(const struct picture *p, char text[VIEW_LEGEND_SIZE])
{
    if (p->kind == PICTURE_IMAGE)
        add_words(text, "image");
    else if (isnan(p->min))
        add_words(text, "heat map of nothing finite");
    else
        add_words(text, "heat map from %.4g to %.4g", p->min, p->max);
    if (p->is_stretched)
        add_words(text, ", stretched from %.4g to %.4g", p->min, p->max);
    if (p->n_nan > 0)
        add_words(text, ", %" PRIu64 " NaN", p->n_nan);
}

static void histogram_legend(const struct histogram *h, char text[VIEW_LEGEND_SIZE])
{
    add_words(text, "histogram of %" PRIu64 " value%s", h->n, h->n == 1 ? "" : "s");
    if (h->n_read < h->n)
        add_words(text, " (%" PRIu64 " were read)", h->n_read);
    if (!isnan(h->min))
        add_words(text, " from %.4g to %.4g, mean %.4g", h->min, h->max, h->mean);
    if (h->n_nan > 0)
        add_words(text, ", %" PRIu64 " NaN", h->n_nan);
    if (h->n_inf > 0)
        add_words(text, ", %" PRIu64 " infinite", h->n_inf);
}

void view_legend(const struct view *v, char text[VIEW_LEGEND_SIZE])
{
    text[0] = '\0';
    if (v->kind == VIEW_PICTURE)
        picture_legend(&v->picture, text);
    if (v->kind == VIEW_HISTOGRAM)
        histogram_legend(&v->histogram, text);
}
