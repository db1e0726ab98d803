/* SPDX-License-Identifier: Apache-2.0 */
/* YUV4MPEG2 headers and the conversion of frames. */
#include "cli/y4m.h"
#include "tests/harness_run.h"
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int parse(const char *line, struct y4m_header *h, struct cli_error *e)
{
    size_t size = strlen(line);
    uint8_t *exact =
        malloc(size + 1); /* so that a sanitizer sees a byte too much; never of size 0 */
    uint8_t *at = exact + 1;
    memcpy(at, line, size);
    e->text[0] = '\0';
    int code = y4m_header_parse(at, size, h, e);
    free(exact);
    ck_assert_msg(code == 0 || e->text[0], "words are missing");
    return code;
}

START_TEST(headers_as_ffmpeg_writes_them)
{
    struct y4m_header h;
    struct cli_error e;
    ck_assert_int_eq(parse("YUV4MPEG2 W640 H480 F30000:1001 Ip A1:1 C420jpeg XYSCSS=420JPEG "
                           "XCOLORRANGE=LIMITED\n",
                           &h, &e),
                     0);
    ck_assert(h.width == 640 && h.height == 480 && h.chroma == Y4M_420 && !h.full_range);
    ck_assert(h.rate_num == 30000 && h.rate_den == 1001);
    ck_assert_uint_eq(h.frame_size, 640 * 480 * 3 / 2);
    ck_assert_int_eq(parse("YUV4MPEG2 W3 H5 F25:1 It A0:0 C444 XCOLORRANGE=FULL", &h, &e), 0);
    ck_assert(h.chroma == Y4M_444 && h.full_range && h.frame_size == 45);
    ck_assert_int_eq(parse("YUV4MPEG2 W3 H5 F0:0 C422\n", &h, &e), 0);
    ck_assert(h.frame_size == 15 + 2 * 2 * 5 && h.rate_num == 0 && h.rate_den == 0);
    ck_assert_int_eq(parse("YUV4MPEG2 W3 H5 Cmono\n", &h, &e), 0);
    ck_assert(h.frame_size == 15 && h.chroma_width == 0);
    ck_assert_int_eq(parse("YUV4MPEG2  H5  W3 \n", &h, &e), 0); /* 4:2:0 when it does not say */
    ck_assert(h.chroma == Y4M_420 && h.frame_size == 15 + 2 * 2 * 3);
    ck_assert_int_eq(parse("YUV4MPEG2 W65535 H65535 C444\n", &h, &e), 0);
    ck_assert_uint_eq(h.frame_size, UINT64_C(65535) * 65535 * 3);
}
END_TEST

START_TEST(bad_headers_are_refused)
{
    static const struct {
        const char *line;
        int code;
        const char *words;
    } bad[] = {
        {"", DLX_E_INVALID, "not YUV4MPEG2"},
        {"\n", DLX_E_INVALID, "not YUV4MPEG2"},
        {"YUV4MPEG", DLX_E_INVALID, "not YUV4MPEG2"},
        {"YUV4MPEG3 W1 H1", DLX_E_INVALID, "not YUV4MPEG2"},
        {" YUV4MPEG2 W1 H1", DLX_E_INVALID, "not YUV4MPEG2"},
        {"YUV4MPEG2", DLX_E_INVALID, "lacks its width"},
        {"YUV4MPEG2 W1\n", DLX_E_INVALID, "lacks its height"},
        {"YUV4MPEG2 W0 H1\n", DLX_E_LIMIT, "width 0"},
        {"YUV4MPEG2 W1 H65536\n", DLX_E_LIMIT, "height 65536; it must be 1 to 65535"},
        {"YUV4MPEG2 W99999999999999999999999 H1\n", DLX_E_LIMIT, "width"},
        {"YUV4MPEG2 W H1\n", DLX_E_LIMIT, "width ;"},
        {"YUV4MPEG2 W-5 H1\n", DLX_E_LIMIT, "width -5"},
        {"YUV4MPEG2 W1x H1\n", DLX_E_LIMIT, "width 1x"},
        {"YUV4MPEG2 W1 H1 F30\n", DLX_E_INVALID, "frame rate"},
        {"YUV4MPEG2 W1 H1 F:\n", DLX_E_INVALID, "frame rate"},
        {"YUV4MPEG2 W1 H1 F1:99999999999\n", DLX_E_INVALID, "frame rate"},
        {"YUV4MPEG2 W1 H1 C420p10 XYSCSS=420P10\n", DLX_E_SHAPE, "C420p10 is not supported"},
        {"YUV4MPEG2 W1 H1 C\n", DLX_E_SHAPE, "pixel format C "},
        {"YUV4MPEG2 W1 H1 C444alpha\n", DLX_E_SHAPE, "C444alpha"},
        {"YUV4MPEG2 W1 H1 C\x1b[31m\n", DLX_E_SHAPE, "C?[31m"},
        {"YUV4MPEG2 W1 H1 Z\n", DLX_E_INVALID, "unknown parameter"},
    };
    struct y4m_header h;
    struct cli_error e;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ck_assert_msg(parse(bad[i].line, &h, &e) == bad[i].code, "'%s': %s", bad[i].line, e.text);
        ck_assert_msg(strstr(e.text, bad[i].words), "'%s': %s", bad[i].line, e.text);
    }
    char *line = malloc(Y4M_LINE_SIZE_MAX + 2);
    memset(line, ' ', Y4M_LINE_SIZE_MAX + 2);
    memcpy(line, "YUV4MPEG2 W1 H1", 15);
    line[Y4M_LINE_SIZE_MAX + 1] = '\0';
    ck_assert_int_eq(parse(line, &h, &e), DLX_E_LIMIT);
    free(line);
}
END_TEST

START_TEST(frame_lines)
{
    struct cli_error e;
    ck_assert_int_eq(y4m_frame_parse((const uint8_t *)"FRAME\n", 6, &e), 0);
    ck_assert_int_eq(y4m_frame_parse((const uint8_t *)"FRAME Ippp\n", 11, &e), 0);
    ck_assert_int_eq(y4m_frame_parse((const uint8_t *)"FRAMES\n", 7, &e), DLX_E_INVALID);
    ck_assert_int_eq(y4m_frame_parse((const uint8_t *)"\n", 1, &e), DLX_E_INVALID);
    ck_assert_int_eq(y4m_frame_parse(NULL, 0, &e), DLX_E_INVALID);
}
END_TEST

static void check_shape(const char *line, int32_t ndim, int64_t a, int64_t b, int64_t c)
{
    struct y4m_header h;
    struct cli_error e;
    int64_t shape[3] = {0, 0, 0}, expected[3] = {a, b, c};
    ck_assert_int_eq(parse(line, &h, &e), 0);
    ck_assert_int_eq(y4m_planar_shape(&h, shape), ndim);
    uint64_t n = 1;
    for (int32_t i = 0; i < ndim; i++) {
        ck_assert_int_eq(shape[i], expected[i]);
        n *= (uint64_t)shape[i];
    }
    ck_assert_uint_eq(n, h.frame_size);
}

START_TEST(planes_have_a_shape)
{
    check_shape("YUV4MPEG2 W640 H480 C420jpeg", 2, 720, 640, 0);
    check_shape("YUV4MPEG2 W5 H3 C420jpeg", 1, 15 + 2 * 3 * 2, 0, 0);
    check_shape("YUV4MPEG2 W640 H480 C422", 2, 960, 640, 0);
    check_shape("YUV4MPEG2 W5 H3 C422", 1, 15 + 2 * 3 * 3, 0, 0);
    check_shape("YUV4MPEG2 W5 H3 C444", 3, 3, 3, 5);
    check_shape("YUV4MPEG2 W5 H3 Cmono", 2, 3, 5, 0);
}
END_TEST

static double limit(double x)
{
    return x < 0 ? 0 : x > 255 ? 255 : x;
}

/* ITU-R BT.601 and BT.709 in floating point. */
static void expect(double kr, double kb, bool full, int y, int cb, int cr, const uint8_t *rgb)
{
    double l = full ? y / 255.0 : (y - 16) / 219.0;
    double u = (cb - 128) / (full ? 255.0 : 224.0), v = (cr - 128) / (full ? 255.0 : 224.0);
    double r = l + 2 * (1 - kr) * v, b = l + 2 * (1 - kb) * u;
    double g = (l - kr * r - kb * b) / (1 - kr - kb);
    double expected[3] = {limit(r * 255), limit(g * 255), limit(b * 255)};
    for (int i = 0; i < 3; i++)
        ck_assert_msg(fabs(expected[i] - rgb[i]) <= 0.51, "y %d cb %d cr %d: [%d] %g is %u", y, cb,
                      cr, i, expected[i], rgb[i]);
}

START_TEST(colours_are_those_of_the_standards)
{
    struct y4m_header h;
    struct cli_error e;
    uint8_t frame[3], rgb[3];
    for (int full = 0; full < 2; full++) {
        ck_assert_int_eq(
            parse(full ? "YUV4MPEG2 W1 H1 C444 XCOLORRANGE=FULL" : "YUV4MPEG2 W1 H1 C444", &h, &e),
            0);
        for (int y = 0; y < 256; y += 5)
            for (int cb = 0; cb < 256; cb += 15)
                for (int cr = 0; cr < 256; cr += 15) {
                    frame[0] = (uint8_t)y;
                    frame[1] = (uint8_t)cb;
                    frame[2] = (uint8_t)cr;
                    y4m_to_rgb(&h, Y4M_MATRIX_AUTO, frame, rgb);
                    expect(0.299, 0.114, full, y, cb, cr, rgb);
                    y4m_to_rgb(&h, Y4M_MATRIX_BT709, frame, rgb);
                    expect(0.2126, 0.0722, full, y, cb, cr, rgb);
                }
    }
    h.height = 720; /* auto takes BT.709 from here on */
    uint8_t *tall = calloc(720, 3), *out = malloc(720 * 3);
    h.chroma_height = 720;
    memset(tall, 100, 720);
    memset(tall + 720, 50, 720);
    memset(tall + 1440, 200, 720);
    y4m_to_rgb(&h, Y4M_MATRIX_AUTO, tall, out);
    expect(0.2126, 0.0722, true, 100, 50, 200, out + 719 * 3);
    free(tall);
    free(out);
}
END_TEST

/* Each pixel takes the chroma sample that covers it, also in the last odd column and row. */
START_TEST(subsampled_chroma_is_repeated)
{
    static const struct {
        const char *line;
        uint32_t sub_x, sub_y;
    } formats[] = {{"YUV4MPEG2 W5 H3 C420", 2, 2},
                   {"YUV4MPEG2 W5 H3 C422", 2, 1},
                   {"YUV4MPEG2 W5 H3 C444", 1, 1},
                   {"YUV4MPEG2 W4 H2 C420", 2, 2}};
    for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
        struct y4m_header h;
        struct cli_error e;
        ck_assert_int_eq(parse(formats[f].line, &h, &e), 0);
        uint8_t *frame = malloc(h.frame_size), *rgb = malloc((size_t)h.width * h.height * 3);
        uint8_t *cb = frame + h.width * h.height, *cr = cb + h.chroma_width * h.chroma_height;
        for (size_t i = 0; i < h.frame_size; i++)
            frame[i] = (uint8_t)(60 + i * 3);
        y4m_to_rgb(&h, Y4M_MATRIX_BT601, frame, rgb);
        for (uint32_t y = 0; y < h.height; y++)
            for (uint32_t x = 0; x < h.width; x++) {
                uint32_t c = y / formats[f].sub_y * h.chroma_width + x / formats[f].sub_x;
                expect(0.299, 0.114, false, frame[y * h.width + x], cb[c], cr[c],
                       rgb + ((size_t)y * h.width + x) * 3);
            }
        free(frame);
        free(rgb);
    }
}
END_TEST

START_TEST(mono_becomes_grey)
{
    struct y4m_header h;
    struct cli_error e;
    uint8_t frame[] = {16, 235, 126, 0}, rgb[12];
    ck_assert_int_eq(parse("YUV4MPEG2 W4 H1 Cmono", &h, &e), 0);
    y4m_to_rgb(&h, Y4M_MATRIX_AUTO, frame, rgb);
    static const uint8_t expected[] = {0, 0, 0, 255, 255, 255, 128, 128, 128, 0, 0, 0};
    ck_assert_mem_eq(rgb, expected, sizeof expected);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cli_y4m");
    TCase *tcase = tcase_create("y4m");
    tcase_add_test(tcase, headers_as_ffmpeg_writes_them);
    tcase_add_test(tcase, bad_headers_are_refused);
    tcase_add_test(tcase, frame_lines);
    tcase_add_test(tcase, planes_have_a_shape);
    tcase_add_test(tcase, colours_are_those_of_the_standards);
    tcase_add_test(tcase, subsampled_chroma_is_repeated);
    tcase_add_test(tcase, mono_becomes_grey);
    suite_add_tcase(suite, tcase);
    return dlx_test_run(suite);
}
