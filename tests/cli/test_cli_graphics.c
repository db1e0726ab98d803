/* SPDX-License-Identifier: Apache-2.0 */
/* What dlxctl view draws: answers of terminals, sizes, characters, and histograms. */
#include "cli/graphics.h"
#include "cli/histogram.h"
#include "tests/harness/run.h"
#include <float.h>
#include <math.h>

static int64_t shape_of_tensor[2];

static DLTensor tensor(uint8_t code, uint8_t bits, const void *data, int64_t rows, int64_t columns)
{
    shape_of_tensor[0] = rows;
    shape_of_tensor[1] = columns;
    return (DLTensor){.data = (void *)(uintptr_t)data,
                      .device = {kDLCPU, 0},
                      .ndim = 2,
                      .dtype = {code, bits, 1},
                      .shape = shape_of_tensor};
}

/* ---- terminals ------------------------------------------------------------------------------- */

/* All answers together, and each beginning of them is not complete. */
static struct graphics_answers read_all(const char *text)
{
    struct graphics_answers answers;
    for (size_t n = 0; n < strlen(text); n++)
        ck_assert(!graphics_read_answers(text, n, &answers));
    ck_assert_msg(graphics_read_answers(text, strlen(text), &answers), "not complete");
    return answers;
}

TEST(answers_tell_what_a_terminal_has)
{
    struct graphics_answers a = read_all("\033_Gi=31;OK\033\\\033[6;18;9t\033[?62;c");
    ck_assert(a.kitty && !a.sixel && a.cell_width == 9 && a.cell_height == 18);
    a = read_all("\033[?62;4;22c");
    ck_assert(!a.kitty && a.sixel && a.cell_width == 0);
    a = read_all("\033[?65;1;4c");
    ck_assert(a.sixel);
    /* A kind is no attribute, 14 is not 4, and tmux has none. */
    ck_assert(!read_all("\033[?4;6c").sixel);
    ck_assert(!read_all("\033[?62;14;40c").sixel);
    ck_assert(!read_all("\033[?1;2c").sixel);
    ck_assert(!read_all("\033_Gi=31;EINVAL:no\033\\\033[?1c").kitty);
    /* Keys that were typed meanwhile. */
    a = read_all("qc\033[A\033[?62;4c");
    ck_assert(a.sixel);
    ck_assert(!graphics_read_answers("\033[1;5c", 6, &a));
}

TEST(names_of_graphics)
{
    enum graphics g = GRAPHICS_AUTO;
    ck_assert(graphics_parse("kitty", &g) && g == GRAPHICS_KITTY);
    ck_assert(graphics_parse("characters", &g) && g == GRAPHICS_CHARACTERS);
    ck_assert(graphics_parse("auto", &g) && g == GRAPHICS_AUTO);
    ck_assert(!graphics_parse("", &g) && !graphics_parse("Kitty", &g));
    ck_assert(graphics_is_built(GRAPHICS_CHARACTERS));
}

static void set(const char *name, const char *value)
{
    ck_assert_int_eq(value ? setenv(name, value, 1) : unsetenv(name), 0);
}

TEST(the_environment_decides_between_blocks_and_characters)
{
    enum graphics best = graphics_is_built(GRAPHICS_BLOCKS) ? GRAPHICS_BLOCKS : GRAPHICS_CHARACTERS;
    set("LC_ALL", "C.UTF-8");
    set("NO_COLOR", NULL);
    set("TERM", "xterm-256color");
    ck_assert_int_eq(graphics_without_asking(), best);
    set("NO_COLOR", "1");
    ck_assert_int_eq(graphics_without_asking(), GRAPHICS_CHARACTERS);
    set("NO_COLOR", "");
    ck_assert_int_eq(graphics_without_asking(), best);
    set("TERM", "dumb");
    ck_assert_int_eq(graphics_without_asking(), GRAPHICS_CHARACTERS);
    set("TERM", NULL);
    ck_assert_int_eq(graphics_without_asking(), GRAPHICS_CHARACTERS);
    set("TERM", "xterm-256color");
    set("LC_ALL", "C");
    ck_assert_int_eq(graphics_without_asking(), GRAPHICS_CHARACTERS);
}

TEST(pictures_have_the_pixels_of_their_place)
{
    struct graphics_place place = {100, 30, 10, 20};
    uint32_t width = 0, height = 0;
    graphics_picture_size(GRAPHICS_BLOCKS, &place, &width, &height);
    ck_assert(width == 100 && height == 60);
    graphics_picture_size(GRAPHICS_CHARACTERS, &place, &width, &height);
    ck_assert(width == 100 && height == 60);
    graphics_picture_size(GRAPHICS_SIXEL, &place, &width, &height);
    ck_assert(width == 800 && height == 600);
    place.columns = 20;
    graphics_picture_size(GRAPHICS_SIXEL, &place, &width, &height);
    ck_assert(width == 200 && height == 600);
    place = (struct graphics_place){1, 1, 1, 1};
    graphics_picture_size(GRAPHICS_KITTY, &place, &width, &height);
    ck_assert(width == 1 && height == 1);
}

/* ---- drawing --------------------------------------------------------------------------------- */

static char *text;

static void clear(void)
{
    free(text);
    text = NULL;
}

/* Draws a tensor in a place of so many characters of 10 x 20 pixels. */
static void draw(const DLTensor *t, enum graphics g, unsigned columns, unsigned lines)
{
    struct picture p;
    struct cli_error e = {""};
    struct graphics_place place = {columns, lines, 10, 20};
    size_t size = 0;
    uint32_t width, height;
    clear();
    FILE *file = open_memstream(&text, &size);
    ck_assert_ptr_nonnull(file);
    graphics_picture_size(g, &place, &width, &height);
    ck_assert_msg(picture_draw(&p, t, width, height, &e) == 0, "%s", e.text);
    ck_assert_int_eq(graphics_draw(file, g, &p, &place), 0);
    ck_assert_int_eq(fclose(file), 0);
    picture_deinit(&p);
}

TEST(characters_tell_the_brightness)
{
    uint8_t grey[] = {0, 255, 128, 60};
    float heat[] = {0, NAN, 1, 2};
    DLTensor t = tensor(kDLUInt, 8, grey, 2, 2);
    draw(&t, GRAPHICS_CHARACTERS, 4, 2);
    ck_assert_str_eq(text, "  @@\n==::\n");
    draw(&t, GRAPHICS_CHARACTERS, 2, 9);
    ck_assert_str_eq(text, ":+\n");
    t = tensor(kDLFloat, 32, heat, 2, 2);
    draw(&t, GRAPHICS_CHARACTERS, 4, 2);
    ck_assert_str_eq(text, "..??\n--##\n");
}

TEST(chafa_draws_the_rest)
{
    if (dlx_test_skips(!graphics_is_built(GRAPHICS_BLOCKS), "this build is without chafa"))
        return;
    /* Rows of 3 pixels, whose size as RGB is not divisible by 4: the third column is white. */
    uint8_t grey[18];
    for (size_t i = 0; i < sizeof grey; i++)
        grey[i] = i % 3 == 2 ? 255 : 0;
    DLTensor t = tensor(kDLUInt, 8, grey, 6, 3);
    set("COLORTERM", "truecolor");
    draw(&t, GRAPHICS_BLOCKS, 3, 3);
    unsigned n_white = 0, n_lines = 0;
    for (const char *p = text; *p; p++) {
        n_white += strncmp(p, "255;255;255m", 12) == 0;
        n_lines += *p == '\n';
    }
    ck_assert_uint_eq(n_lines, 3);
    ck_assert_uint_eq(n_white, 3);
    contains(text, "48;2;");
    set("COLORTERM", NULL);
    draw(&t, GRAPHICS_BLOCKS, 3, 3);
    contains(text, "8;5;");
    ck_assert_ptr_null(strstr(text, ";2;"));
    draw(&t, GRAPHICS_SIXEL, 3, 3);
    contains(text, "\033P0;1;0q");
    contains(text, "\033\\");
    draw(&t, GRAPHICS_KITTY, 3, 3);
    contains(text, "\033_Ga=T,f=32,s=30,v=60,c=3,r=3");
    ck_assert_str_ne(graphics_clear(GRAPHICS_KITTY), "");
    ck_assert_str_eq(graphics_clear(GRAPHICS_BLOCKS), "");
}

/* ---- histograms ------------------------------------------------------------------------------ */

static struct histogram counted;

static void count(const DLTensor *t, uint32_t n_bins)
{
    struct cli_error e = {""};
    ck_assert_msg(histogram_count(&counted, t, n_bins, &e) == 0, "%s", e.text);
}

TEST(histograms_count_each_value_once)
{
    float f[] = {0, 0.5F, 1, 1.5F, 2, NAN, INFINITY, -INFINITY};
    DLTensor t = tensor(kDLFloat, 32, f, 1, 8);
    count(&t, 2);
    ck_assert(counted.min == 0 && counted.max == 2 && counted.mean == 1);
    ck_assert(counted.n == 8 && counted.n_read == 8 && counted.n_nan == 1 && counted.n_inf == 2);
    ck_assert(counted.n_bins == 2 && counted.bins[0] == 2 && counted.bins[1] == 3);
    int64_t strides[] = {8, 2};
    t = tensor(kDLFloat, 32, f, 1, 3);
    t.strides = strides;
    count(&t, 2);
    ck_assert(counted.n == 3 && counted.bins[0] == 1 && counted.bins[1] == 2);
    double huge[] = {-DBL_MAX, DBL_MAX};
    t = tensor(kDLFloat, 64, huge, 1, 2);
    count(&t, 4);
    ck_assert(counted.bins[0] == 1 && counted.bins[3] == 1);
    t = tensor(kDLFloat, 32, f + 5, 1, 3);
    count(&t, 4);
    ck_assert(counted.n_bins == 0 && isnan(counted.mean));
}

TEST(bins_of_integers_are_whole_numbers_wide)
{
    int8_t i[] = {-1, 0, 1, 1, 3, 3};
    DLTensor t = tensor(kDLInt, 8, i, 1, 6);
    count(&t, 10);
    ck_assert(counted.n_bins == 5 && counted.width == 1);
    static const uint64_t bins[] = {1, 1, 2, 0, 2};
    ck_assert_mem_eq(counted.bins, bins, sizeof bins);
    count(&t, 2);
    ck_assert(counted.n_bins == 2 && counted.width == 3);
    ck_assert(counted.bins[0] == 4 && counted.bins[1] == 2);
    t = tensor(kDLInt, 8, i + 4, 1, 2);
    count(&t, 10);
    ck_assert(counted.n_bins == 1 && counted.bins[0] == 2);
}

TEST(of_a_large_tensor_evenly_spaced_values_are_read)
{
    uint8_t values[] = {1, 2, 3, 4};
    int64_t strides[] = {0, 1};
    DLTensor t = tensor(kDLUInt, 8, values, INT64_C(1) << 40, 4);
    t.strides = strides;
    count(&t, 4);
    ck_assert_uint_eq(counted.n, UINT64_C(1) << 42);
    ck_assert_uint_eq(counted.n_read, 2000000);
}

TEST(histograms_are_printed_as_bars)
{
    size_t size = 0;
    int8_t i[] = {-1, 1, 1, 1, 1};
    DLTensor t = tensor(kDLInt, 8, i, 1, 5);
    count(&t, 10);
    FILE *file = open_memstream(&text, &size);
    ck_assert_ptr_nonnull(file);
    histogram_print(file, &counted, 15, false);
    histogram_print(file, &counted, 8, true);
    histogram_print(file, &counted, 1, true);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_str_eq(text, "-1 1 ##\n 0 0 \n 1 4 #########\n"
                           "-1 1 \u258c\n 0 0 \n 1 4 \u2588\u2588\n"
                           "-1 1 \n 0 0 \n 1 4 \n");
}

TEST(no_histogram_is_said_in_words)
{
    struct cli_error e = {""};
    uint8_t data[32] = {0};
    DLTensor t = tensor(kDLOpaqueHandle, 64, data, 1, 2);
    ck_assert_int_eq(histogram_count(&counted, &t, 4, &e), DLX_E_INVALID);
    contains(e.text, "not numbers");
    t = tensor(kDLUInt, 8, data, 0, 2);
    ck_assert_int_eq(histogram_count(&counted, &t, 4, &e), DLX_E_INVALID);
    contains(e.text, "no values");
    t = tensor(kDLUInt, 8, NULL, 1, 2);
    t.device.device_type = kDLCUDA;
    ck_assert_int_eq(histogram_count(&counted, &t, 4, &e), DLX_E_INVALID);
    contains(e.text, "not readable");
}

int main(void)
{
    TCase *tcase = tcase_create("graphics");
    tcase_add_checked_fixture(tcase, NULL, clear);
    return dlx_test_run_case(tcase);
}
