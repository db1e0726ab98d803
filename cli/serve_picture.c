/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/serve_picture.h"
#include "cli/board_view.h"
#include "cli/describe.h"
#include "cli/picture.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of a picture, at most, in pixels. */
enum { WIDTH = 640, HEIGHT = 640 };
/* A topic that has failed is not asked for again for so long: each refusal stands in a list. */
#define RETRY_NS INT64_C(5000000000)

bool serve_picture_allowed(const struct serve_pictures *p, const char *topic)
{
    if (!*topic || strchr(topic, '*'))
        return false;
    for (uint32_t i = 0; i < p->patterns.n; i++) {
        const char *pattern = p->patterns.items[i];
        if (strchr(pattern, '*') ? board_matches(pattern, topic) : strcmp(pattern, topic) == 0)
            return true;
    }
    return false;
}

/* The picture of the topic, or else a place for it: a free one, or the one that was asked for the
 * longest ago. */
static struct serve_picture *find_picture(struct serve_pictures *p, const char *topic)
{
    struct serve_picture *oldest = &p->items[0];
    for (size_t i = 0; i < SERVE_PICTURES; i++) {
        if (strcmp(p->items[i].topic, topic) == 0)
            return &p->items[i];
        if (p->items[i].asked_ns < oldest->asked_ns)
            oldest = &p->items[i];
    }
    free(oldest->png);
    *oldest = (struct serve_picture){.status = 0};
    (void)snprintf(oldest->topic, sizeof oldest->topic, "%s", topic);
    return oldest;
}

/* A header is of printable ASCII. */
static void set_caption(struct serve_picture *picture, const char *text)
{
    size_t n = 0;
    for (; *text && n + 1 < sizeof picture->caption; text++)
        picture->caption[n++] = *text >= ' ' && *text <= '~' ? *text : '?';
    picture->caption[n] = '\0';
}

static void fail_picture(struct serve_picture *picture, unsigned status, const char *words)
{
    free(picture->png);
    picture->png = NULL;
    picture->png_size = 0;
    picture->status = status;
    set_caption(picture, words);
}

/* The first tensor that has a picture; -1: none has. */
static int64_t find_tensor(const struct dlx_message *m)
{
    for (uint32_t i = 0; i < dlx_message_n_tensors(m); i++)
        if (picture_kind_of(dlx_message_tensor_peek(m, i)) != PICTURE_NONE)
            return i;
    return -1;
}

static void describe_picture(struct serve_picture *to, const struct picture *picture,
                             const struct dlx_message *m, uint32_t i)
{
    char text[DESCRIBE_SIZE + 128];
    describe_tensor_text(dlx_message_tensor_peek(m, i), text);
    size_t n = strlen(text);
    if (picture->kind == PICTURE_HEAT && isnan(picture->min))
        (void)snprintf(text + n, sizeof text - n, ", nothing of it finite");
    else if (picture->kind == PICTURE_HEAT)
        (void)snprintf(text + n, sizeof text - n, ", from %.4g to %.4g", picture->min,
                       picture->max);
    if (picture->n_nan > 0)
        (void)snprintf(text + strlen(text), sizeof text - strlen(text), ", with NaN");
    set_caption(to, text);
}

static void draw_message(struct serve_picture *to, struct dlx_message *m)
{
    struct picture picture = {.kind = PICTURE_NONE};
    struct cli_error e;
    uint8_t *png = NULL;
    size_t size = 0;
    int64_t i = find_tensor(m);
    if (i < 0) {
        char text[DESCRIBE_SIZE + 64] = "a message without tensors";
        if (dlx_message_n_tensors(m) > 0)
            describe_tensor_text(dlx_message_tensor_peek(m, 0), text);
        (void)strncat(text, " is no image", sizeof text - strlen(text) - 1);
        fail_picture(to, 404, text);
        return;
    }
    int code = picture_draw_message(&picture, m, (uint32_t)i, WIDTH, HEIGHT, &e);
    if (code == 0)
        code = picture_png(&picture, &png, &size, &e);
    if (code < 0) {
        fail_picture(to, 500, e.text);
    } else {
        free(to->png);
        to->png = png;
        to->png_size = size;
        to->status = 200;
        describe_picture(to, &picture, m, (uint32_t)i);
    }
    picture_deinit(&picture);
}

const struct serve_picture *serve_picture_get(struct serve_pictures *p, struct dlx_client *client,
                                              const char *topic, int64_t now_ns)
{
    struct serve_picture *picture = find_picture(p, topic);
    struct dlx_message *m = NULL;
    int64_t rest_ns = picture->status == 200 ? p->interval_ns : RETRY_NS;
    picture->asked_ns = now_ns;
    if (picture->status != 0 && now_ns - picture->made_ns < rest_ns)
        return picture;
    picture->made_ns = now_ns;
    int code = client ? dlx_get(client, topic, 0, &m) : DLX_E_DISCONNECTED;
    if (code == 0) {
        draw_message(picture, m);
        dlx_message_unref(m);
    } else {
        const char *words = client ? dlx_errmsg() : "dlpackd does not answer";
        fail_picture(picture, code == DLX_E_ACCESS ? 403 : 404,
                     words && *words ? words : dlx_strerror(code));
    }
    return picture;
}

void serve_picture_deinit(struct serve_pictures *p)
{
    for (size_t i = 0; i < SERVE_PICTURES; i++)
        free(p->items[i].png);
    *p = (struct serve_pictures){0};
}
