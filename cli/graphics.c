/* SPDX-License-Identifier: Apache-2.0 */

/* Pictures as text for a terminal: what the terminal has, and how large a picture is drawn. */

#include "cli/graphics.h"
#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifndef DLX_NO_CHAFA
#include <chafa.h>
#endif

/* Larger pictures take terminals long to read. */
enum { WIDTH_MAX = 800, HEIGHT_MAX = 600 };

static const char *const names[] = {"kitty", "sixel", "blocks", "characters", "auto"};

bool graphics_parse(const char *name, enum graphics *ret)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0) {
            *ret = (enum graphics)i;
            return true;
        }
    return false;
}

/* ---- what a terminal has --------------------------------------------------------------------- */

/* The number at `*p`, and `*p` after it. */
static unsigned read_parameter(const char **p, const char *end)
{
    unsigned n = 0;
    for (; *p < end && **p >= '0' && **p <= '9'; ++*p)
        n = n < 100000 ? n * 10 + (unsigned)(**p - '0') : n;
    return n;
}

/* "\033[6;HEIGHT;WIDTHt", from its parameters on. */
static void read_cell(const char *p, const char *end, struct graphics_answers *ret)
{
    if (read_parameter(&p, end) != 6 || p == end || *p++ != ';')
        return;
    unsigned height = read_parameter(&p, end);
    if (p == end || *p++ != ';')
        return;
    ret->cell_width = read_parameter(&p, end);
    ret->cell_height = height;
}

/* "\033[?62;4;22c", from its parameters on: the first one is the kind of terminal. */
static void read_kind(const char *p, const char *end, struct graphics_answers *ret)
{
    (void)read_parameter(&p, end);
    while (p < end && *p++ == ';')
        if (read_parameter(&p, end) == 4)
            ret->sixel = true;
}

bool graphics_read_answers(const char *bytes, size_t n, struct graphics_answers *ret)
{
    const char *end = bytes + n;
    *ret = (struct graphics_answers){0};
    for (const char *p = bytes; p + 2 < end; p++) {
        if (p[0] != '\033')
            continue;
        if (p[1] == '_' && (size_t)(end - p) >= 10 && memcmp(p, "\033_Gi=31;OK", 10) == 0)
            ret->kitty = true;
        if (p[1] != '[')
            continue;
        const char *first = p + 2 + (p[2] == '?'), *last = first;
        while (last < end && ((*last >= '0' && *last <= '9') || *last == ';'))
            last++;
        if (last < end && *last == 't' && p[2] != '?')
            read_cell(first, last, ret);
        if (last < end && *last == 'c' && p[2] == '?') {
            read_kind(first, last, ret);
            return true;
        }
    }
    return false;
}

static bool has_value(const char *variable)
{
    const char *value = getenv(variable);
    return value && *value;
}

enum graphics graphics_without_asking(void)
{
    static const char *const plain[] = {"dumb", "linux", "vt", "emacs", "unknown"};
    const char *term = getenv("TERM");
    (void)setlocale(LC_CTYPE, "");
    if (!graphics_is_built(GRAPHICS_BLOCKS) || has_value("NO_COLOR") || !term || !*term ||
        strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        return GRAPHICS_CHARACTERS;
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        if (strncmp(term, plain[i], strlen(plain[i])) == 0)
            return GRAPHICS_CHARACTERS;
    return GRAPHICS_BLOCKS;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

/* Pixels of a character. Half blocks and characters have square ones, two above each other. */
static void cell_of(enum graphics g, const struct graphics_place *place, double *ret_width,
                    double *ret_height)
{
    bool pixels = g == GRAPHICS_KITTY || g == GRAPHICS_SIXEL;
    double width = place->columns * (double)place->cell_width,
           height = place->lines * (double)place->cell_height, scale = 1;
    *ret_width = 1;
    *ret_height = 2;
    if (!pixels)
        return;
    /* kitty enlarges pictures itself; a sixel is a pixel, so that the place gets smaller */
    if (g == GRAPHICS_KITTY)
        scale = fmin(fmin(WIDTH_MAX / width, HEIGHT_MAX / height), 1);
    *ret_width = fmax(floor(place->cell_width * scale), 1);
    *ret_height = fmax(floor(place->cell_height * scale), 1);
}

void graphics_picture_size(enum graphics g, const struct graphics_place *place, uint32_t *ret_width,
                           uint32_t *ret_height)
{
    double width, height;
    cell_of(g, place, &width, &height);
    *ret_width = (uint32_t)fmin(fmax(place->columns * width, 1), WIDTH_MAX);
    *ret_height = (uint32_t)fmin(fmax(place->lines * height, 1), HEIGHT_MAX);
}

/* A picture that fills whole characters: its pixels, which are opaque, and transparent ones beside
 * them. chafa shears rows whose size is not divisible by 4, as those of RGB may be. */
struct raster {
    uint8_t *pixels; /* RGBA */
    uint32_t width, height;
    unsigned columns, lines, cell_width, cell_height;
};

/* chafa looks at 8 x 8 pixels for a character; if it had to make them, it would blur them. */
enum { CHAFA_CELL = 8 };

/* A pixel of the picture, on black where it is transparent. */
static void copy_pixel(const struct picture *p, uint32_t x, uint32_t y, uint8_t rgba[4])
{
    const uint8_t *from = p->pixels + ((size_t)y * p->width + x) * p->n_channels;
    unsigned alpha = p->n_channels == 4 ? from[3] : 255;
    for (int c = 0; c < 3; c++)
        rgba[c] = (uint8_t)((from[c] * alpha + 127) / 255);
    rgba[3] = 255;
}

/* Each pixel of the picture becomes several, if there is room: none is blurred. */
static int raster_init(struct raster *r, enum graphics g, const struct picture *p,
                       const struct graphics_place *place)
{
    double cell_width, cell_height;
    uint32_t width, height;
    graphics_picture_size(g, place, &width, &height);
    cell_of(g, place, &cell_width, &cell_height);
    double scale = fmin((double)width / p->width, (double)height / p->height);
    uint32_t drawn_width = (uint32_t)fmin(fmax(round(p->width * scale), 1), width);
    uint32_t drawn_height = (uint32_t)fmin(fmax(round(p->height * scale), 1), height);
    *r = (struct raster){.cell_width = (unsigned)cell_width, .cell_height = (unsigned)cell_height};
    r->columns = (drawn_width + r->cell_width - 1) / r->cell_width;
    r->lines = (drawn_height + r->cell_height - 1) / r->cell_height;
    uint32_t x_each = g == GRAPHICS_BLOCKS ? CHAFA_CELL / r->cell_width : 1;
    uint32_t y_each = g == GRAPHICS_BLOCKS ? CHAFA_CELL / r->cell_height : 1;
    r->width = r->columns * r->cell_width * x_each;
    r->height = r->lines * r->cell_height * y_each;
    r->pixels = calloc((size_t)r->width * r->height, 4);
    if (!r->pixels)
        return DLX_E_NO_MEMORY;
    for (uint32_t y = 0; y < drawn_height * y_each; y++)
        for (uint32_t x = 0; x < drawn_width * x_each; x++)
            copy_pixel(p, (uint32_t)((uint64_t)(x / x_each) * p->width / drawn_width),
                       (uint32_t)((uint64_t)(y / y_each) * p->height / drawn_height),
                       r->pixels + ((size_t)y * r->width + x) * 4);
    return 0;
}

/* ---- characters ------------------------------------------------------------------------------ */

static unsigned brightness(const uint8_t rgb[3])
{
    return (299U * rgb[0] + 587U * rgb[1] + 114U * rgb[2]) / 1000;
}

/* The magenta of NaN is '?'. */
static char character_of(const struct raster *r, enum picture_kind kind, unsigned column,
                         unsigned line)
{
    static const char ramp[] = " .:-=+*#%@";
    const uint8_t *above = r->pixels + ((size_t)2 * line * r->width + column) * 4;
    const uint8_t *below = above + (size_t)r->width * 4;
    if (kind == PICTURE_HEAT && above[0] == 0xff && above[1] == 0 && above[2] == 0xff)
        return '?';
    unsigned both = (brightness(above) + brightness(below)) / 2;
    return ramp[both * (sizeof ramp - 2) / 255];
}

static int draw_characters(FILE *file, const struct raster *r, enum picture_kind kind)
{
    for (unsigned y = 0; y < r->lines; y++) {
        for (unsigned x = 0; x < r->columns; x++)
            (void)fputc(character_of(r, kind, x, y), file);
        (void)fputc('\n', file);
    }
    return 0;
}

/* ---- chafa ----------------------------------------------------------------------------------- */

#ifdef DLX_NO_CHAFA

bool graphics_is_built(enum graphics g)
{
    return g == GRAPHICS_CHARACTERS || g == GRAPHICS_AUTO;
}

static int draw_by_chafa(FILE *file, const struct raster *r, enum graphics g)
{
    (void)file, (void)r, (void)g;
    return DLX_E_INVALID;
}

#else

bool graphics_is_built(enum graphics g)
{
    (void)g;
    return true;
}

static bool has_direct_colours(void)
{
    const char *colours = getenv("COLORTERM"), *term = getenv("TERM");
    return (colours && (strstr(colours, "truecolor") || strstr(colours, "24bit"))) ||
           (term && strstr(term, "-direct"));
}

static ChafaCanvasConfig *config_of(const struct raster *r, enum graphics g)
{
    ChafaCanvasConfig *config = chafa_canvas_config_new();
    ChafaSymbolMap *map = chafa_symbol_map_new();
    chafa_symbol_map_add_by_tags(map, CHAFA_SYMBOL_TAG_SPACE | CHAFA_SYMBOL_TAG_SOLID |
                                          CHAFA_SYMBOL_TAG_VHALF);
    chafa_canvas_config_set_symbol_map(config, map);
    chafa_symbol_map_unref(map);
    chafa_canvas_config_set_geometry(config, (gint)r->columns, (gint)r->lines);
    chafa_canvas_config_set_cell_geometry(config, (gint)r->cell_width, (gint)r->cell_height);
    chafa_canvas_config_set_preprocessing_enabled(config, FALSE);
    chafa_canvas_config_set_canvas_mode(config, has_direct_colours() || g != GRAPHICS_BLOCKS
                                                    ? CHAFA_CANVAS_MODE_TRUECOLOR
                                                    : CHAFA_CANVAS_MODE_INDEXED_240);
    chafa_canvas_config_set_pixel_mode(config, g == GRAPHICS_KITTY   ? CHAFA_PIXEL_MODE_KITTY
                                               : g == GRAPHICS_SIXEL ? CHAFA_PIXEL_MODE_SIXELS
                                                                     : CHAFA_PIXEL_MODE_SYMBOLS);
    return config;
}

/* chafa ends the program when there is no memory. */
static int draw_by_chafa(FILE *file, const struct raster *r, enum graphics g)
{
    ChafaTermInfo *info = chafa_term_db_get_fallback_info(chafa_term_db_get_default());
    ChafaCanvasConfig *config = config_of(r, g);
    ChafaCanvas *canvas = chafa_canvas_new(config);
    chafa_canvas_draw_all_pixels(canvas, CHAFA_PIXEL_RGBA8_UNASSOCIATED, r->pixels, (gint)r->width,
                                 (gint)r->height, (gint)r->width * 4);
    GString *text = chafa_canvas_print(canvas, info);
    (void)fwrite(text->str, 1, text->len, file);
    (void)fputc('\n', file);
    (void)g_string_free(text, TRUE);
    chafa_canvas_unref(canvas);
    chafa_canvas_config_unref(config);
    chafa_term_info_unref(info);
    return 0;
}

#endif

int graphics_draw(FILE *file, enum graphics g, const struct picture *p,
                  const struct graphics_place *place)
{
    struct raster r;
    int code = raster_init(&r, g, p, place);
    if (code < 0)
        return code;
    code =
        g == GRAPHICS_CHARACTERS ? draw_characters(file, &r, p->kind) : draw_by_chafa(file, &r, g);
    free(r.pixels);
    return code;
}

const char *graphics_clear(enum graphics g)
{
    return g == GRAPHICS_KITTY ? "\033_Ga=d,d=A\033\\" : "";
}
