/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures of tensors: which shapes have one, averages, colours, and PNG files. */
#include "cli/picture.h"
#include "tests/harness/run.h"
#include <float.h>
#include <math.h>
#ifndef DLX_NO_PNG
#include <png.h>
#endif

static const DLDataType u8 = {kDLUInt, 8, 1}, u16 = {kDLUInt, 16, 1}, f32 = {kDLFloat, 32, 1},
                        f64 = {kDLFloat, 64, 1}, half = {kDLFloat, 16, 1},
                        bfloat = {kDLBfloat, 16, 1}, boolean = {kDLBool, 8, 1};

static int64_t shape_of_tensor[8];

/* `shape` ends with 0. */
static DLTensor tensor(DLDataType dtype, const void *data, const int64_t *shape)
{
    DLTensor t = {.data = (void *)(uintptr_t)data,
                  .device = {kDLCPU, 0},
                  .dtype = dtype,
                  .shape = shape_of_tensor};
    for (; shape[t.ndim]; t.ndim++)
        shape_of_tensor[t.ndim] = shape[t.ndim];
    return t;
}
#define TENSOR(dtype, data, ...) tensor(dtype, data, (int64_t[]){__VA_ARGS__, 0})

static struct picture drawn;

static void clear(void)
{
    picture_deinit(&drawn);
}

static void draw(const DLTensor *t, uint32_t width, uint32_t height)
{
    struct cli_error e = {""};
    clear();
    ck_assert_msg(picture_draw(&drawn, t, width, height, &e) == 0, "%s", e.text);
}

static void check_pixel(uint32_t x, uint32_t y, unsigned red, unsigned green, unsigned blue)
{
    const uint8_t *p = drawn.pixels + ((size_t)y * drawn.width + x) * drawn.n_channels;
    ck_assert_msg(p[0] == red && p[1] == green && p[2] == blue,
                  "pixel (%u, %u) is (%u, %u, %u), not (%u, %u, %u)", x, y, p[0], p[1], p[2], red,
                  green, blue);
}

#define MAGENTA 255, 0, 255
#define LEAST   0x44, 0x01, 0x54
#define MOST    0xfd, 0xe7, 0x25

TEST(shape_and_type_decide_which_picture_it_is)
{
    static const struct {
        DLDataType dtype;
        int64_t shape[6];
        enum picture_kind kind;
    } cases[] = {
        {{kDLUInt, 8, 1}, {480, 640}, PICTURE_IMAGE},
        {{kDLUInt, 8, 1}, {480, 640, 1}, PICTURE_IMAGE},
        {{kDLUInt, 8, 1}, {480, 640, 3}, PICTURE_IMAGE},
        {{kDLUInt, 8, 3}, {480, 640}, PICTURE_IMAGE},
        {{kDLUInt, 8, 1}, {480, 640, 4}, PICTURE_IMAGE},
        {{kDLUInt, 8, 1}, {3, 480, 640}, PICTURE_IMAGE},
        {{kDLUInt, 8, 1}, {1, 480, 640}, PICTURE_IMAGE},
        {{kDLUInt, 8, 1}, {1, 1, 3, 480, 640}, PICTURE_IMAGE},
        {{kDLUInt, 8, 1}, {2, 3, 480, 640}, PICTURE_NONE},
        {{kDLUInt, 8, 1}, {480, 640, 2}, PICTURE_NONE},
        {{kDLUInt, 8, 1}, {480}, PICTURE_NONE},
        {{kDLBool, 8, 1}, {480, 640}, PICTURE_IMAGE},
        {{kDLFloat, 32, 1}, {3, 480, 640}, PICTURE_IMAGE},
        {{kDLFloat, 16, 1}, {1, 480, 640}, PICTURE_IMAGE},
        {{kDLBfloat, 16, 1}, {480, 640, 1}, PICTURE_IMAGE},
        {{kDLFloat, 32, 1}, {480, 640}, PICTURE_HEAT},
        {{kDLFloat, 32, 1}, {1, 640}, PICTURE_HEAT},
        {{kDLUInt, 16, 1}, {1, 480, 640}, PICTURE_HEAT},
        {{kDLUInt, 16, 1}, {480, 640, 3}, PICTURE_NONE},
        {{kDLComplex, 64, 1}, {480, 640}, PICTURE_HEAT},
        {{kDLInt, 4, 1}, {480, 640}, PICTURE_HEAT},
        {{kDLFloat8_e4m3fn, 8, 1}, {480, 640}, PICTURE_HEAT},
        {{kDLOpaqueHandle, 64, 1}, {480, 640}, PICTURE_NONE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        DLTensor t = tensor(cases[i].dtype, NULL, cases[i].shape);
        ck_assert_msg(picture_kind_of(&t) == cases[i].kind, "case %zu", i);
    }
    DLTensor empty = TENSOR(u8, NULL, 480, 640, 3);
    shape_of_tensor[0] = 0;
    ck_assert_int_eq(picture_kind_of(&empty), PICTURE_NONE);
}

TEST(images_keep_their_colours)
{
    uint8_t rgb[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, planes[12];
    for (size_t i = 0; i < 12; i++)
        planes[i % 3 * 4 + i / 3] = rgb[i];
    DLTensor t = TENSOR(u8, rgb, 2, 2, 3);
    for (int i = 0; i < 2; i++) {
        draw(&t, 100, 100);
        ck_assert(drawn.kind == PICTURE_IMAGE && drawn.width == 2 && drawn.height == 2);
        ck_assert_mem_eq(drawn.pixels, rgb, sizeof rgb);
        t = TENSOR(u8, planes, 3, 2, 2);
    }
    t = TENSOR(u8, rgb, 1, 12);
    draw(&t, 100, 100);
    check_pixel(11, 0, 12, 12, 12);
    bool bits[2] = {true, false};
    t = TENSOR(boolean, bits, 2, 1);
    draw(&t, 100, 100);
    check_pixel(0, 0, 255, 255, 255);
    check_pixel(0, 1, 0, 0, 0);
}

TEST(strides_and_offsets_are_followed)
{
    uint8_t rgb[24];
    for (size_t i = 0; i < 24; i++)
        rgb[i] = (uint8_t)i;
    /* The right column, upside down. */
    int64_t strides[] = {-6, 3, 1};
    DLTensor t = TENSOR(u8, rgb, 4, 1, 3);
    t.strides = strides;
    t.byte_offset = 21;
    draw(&t, 100, 100);
    ck_assert(drawn.width == 1 && drawn.height == 4);
    check_pixel(0, 0, 21, 22, 23);
    check_pixel(0, 3, 3, 4, 5);
    /* The same pixels as lanes. */
    int64_t lanes[] = {-2, 1};
    t = TENSOR(u8, rgb, 4, 1);
    t.dtype.lanes = 3;
    t.strides = lanes;
    t.byte_offset = 21;
    draw(&t, 100, 100);
    check_pixel(0, 3, 3, 4, 5);
}

TEST(floating_images_are_stretched_only_if_they_leave_0_to_1)
{
    float grey[] = {0.0F, 0.2F, 1.0F};
    DLTensor t = TENSOR(f32, grey, 1, 3, 1);
    draw(&t, 100, 100);
    ck_assert(drawn.kind == PICTURE_IMAGE);
    check_pixel(1, 0, 51, 51, 51);
    grey[2] = 0.4F;
    draw(&t, 100, 100);
    check_pixel(2, 0, 102, 102, 102);
    grey[0] = -1;
    grey[2] = 1.4F;
    draw(&t, 100, 100);
    check_pixel(0, 0, 0, 0, 0);
    check_pixel(1, 0, 128, 128, 128);
    check_pixel(2, 0, 255, 255, 255);
    ck_assert(drawn.min == -1 && drawn.max == (double)1.4F);
    uint16_t halves[] = {0x0000, 0x3800, 0x3c00}, bfloats[] = {0x0000, 0x3f00, 0x3f80};
    t = TENSOR(half, halves, 1, 3, 1);
    draw(&t, 100, 100);
    check_pixel(1, 0, 128, 128, 128);
    t = TENSOR(bfloat, bfloats, 1, 3, 1);
    draw(&t, 100, 100);
    check_pixel(1, 0, 128, 128, 128);
    check_pixel(2, 0, 255, 255, 255);
}

TEST(pixels_average_what_is_below_them)
{
    uint8_t grey[4][6] = {{0, 10, 100, 100, 0, 0}, {20, 30, 100, 100, 0, 4}};
    DLTensor t = TENSOR(u8, grey, 4, 6);
    draw(&t, 3, 100);
    ck_assert(drawn.width == 3 && drawn.height == 2);
    check_pixel(0, 0, 15, 15, 15);
    check_pixel(1, 0, 100, 100, 100);
    check_pixel(2, 0, 1, 1, 1);
    check_pixel(0, 1, 0, 0, 0);
    draw(&t, 100, 2);
    ck_assert(drawn.width == 3 && drawn.height == 2);
    /* Sizes that do not divide: each item counts for one pixel. */
    draw(&t, 4, 100);
    ck_assert(drawn.width == 4 && drawn.height == 3);
    check_pixel(0, 0, 0, 0, 0);
    check_pixel(1, 0, 55, 55, 55);
}

TEST(colours_that_are_transparent_do_not_count)
{
    uint8_t rgba[] = {200, 100, 0, 255, 0, 0, 0, 0, 9, 9, 9, 0, 9, 9, 9, 0};
    DLTensor t = TENSOR(u8, rgba, 4, 1, 4);
    draw(&t, 1, 2);
    ck_assert_uint_eq(drawn.n_channels, 4);
    check_pixel(0, 0, 200, 100, 0);
    ck_assert_uint_eq(drawn.pixels[3], 128);
    ck_assert_uint_eq(drawn.pixels[7], 0);
}

TEST(heat_maps_go_from_the_least_to_the_greatest_finite_value)
{
    float f[] = {-2, 0, 2, NAN, INFINITY, -INFINITY};
    DLTensor t = TENSOR(f32, f, 2, 3);
    draw(&t, 100, 100);
    ck_assert(drawn.kind == PICTURE_HEAT && drawn.min == -2 && drawn.max == 2);
    ck_assert_uint_eq(drawn.n_nan, 1);
    check_pixel(0, 0, LEAST);
    check_pixel(1, 0, 0x21, 0x91, 0x8c);
    check_pixel(2, 0, MOST);
    check_pixel(0, 1, MAGENTA);
    check_pixel(1, 1, MOST);
    check_pixel(2, 1, LEAST);
    uint16_t u[] = {7, 65535};
    t = TENSOR(u16, u, 2, 1);
    draw(&t, 100, 100);
    check_pixel(0, 0, LEAST);
    check_pixel(0, 1, MOST);
    double same[] = {3, 3}, none[] = {NAN, NAN}, huge[] = {-DBL_MAX, DBL_MAX};
    t = TENSOR(f64, same, 1, 2);
    draw(&t, 100, 100);
    check_pixel(1, 0, LEAST);
    t = TENSOR(f64, none, 1, 2);
    draw(&t, 100, 100);
    check_pixel(1, 0, MAGENTA);
    ck_assert(isnan(drawn.min) && isnan(drawn.max));
    t = TENSOR(f64, huge, 1, 2);
    draw(&t, 100, 100);
    check_pixel(0, 0, LEAST);
    check_pixel(1, 0, MOST);
    float complex_values[] = {3, 4, 0, 1};
    t = TENSOR(((DLDataType){kDLComplex, 64, 1}), complex_values, 1, 2);
    draw(&t, 100, 100);
    ck_assert(drawn.min == 1 && drawn.max == 5);
    uint8_t nibbles[] = {0x8f, 0x70};
    t = TENSOR(((DLDataType){kDLInt, 4, 1}), nibbles, 2, 2);
    draw(&t, 100, 100);
    ck_assert(drawn.min == -8 && drawn.max == 7);
    check_pixel(1, 0, LEAST);
    check_pixel(1, 1, MOST);
}

TEST(a_pixel_is_nan_if_half_of_its_items_are)
{
    float f[] = {1, NAN, 1, 3, NAN, NAN, NAN, 5, INFINITY, 1, 1, 1};
    DLTensor t = TENSOR(f32, f, 2, 6);
    draw(&t, 3, 2); /* proportions would be 3 x 1: a heat map keeps its two rows */
    ck_assert(drawn.width == 3 && drawn.height == 2);
    check_pixel(0, 0, MAGENTA);
    check_pixel(1, 0, MOST);
    check_pixel(2, 0, MAGENTA);
    check_pixel(0, 1, MAGENTA);
    ck_assert(drawn.min == 1 && drawn.max == 2);
    ck_assert_uint_eq(drawn.n_nan, 4);
}

TEST(a_large_tensor_is_read_in_part_and_never_outside)
{
    /* 2^40 items, all of them the same 64. */
    float f[64];
    int64_t strides[] = {0, 1};
    for (int i = 0; i < 64; i++)
        f[i] = (float)i;
    DLTensor t = TENSOR(f32, f, INT64_C(1) << 34, 64);
    t.strides = strides;
    draw(&t, 640, 480);
    ck_assert(drawn.width == 16 && drawn.height == 480);
    ck_assert(drawn.min == 1.5 && drawn.max == 61.5);
    check_pixel(0, 479, LEAST);
    check_pixel(15, 479, MOST);
}

TEST(no_picture_is_said_in_words)
{
    struct cli_error e = {""};
    struct picture p = {0};
    uint8_t data[16] = {0};
    DLTensor t = TENSOR(u8, data, 2, 2, 2, 2);
    ck_assert_int_eq(picture_draw(&p, &t, 10, 10, &e), DLX_E_INVALID);
    contains(e.text, "shape (2, 2, 2, 2) has no picture");
    t = TENSOR(u8, NULL, 4, 4);
    t.device.device_type = kDLCUDA;
    ck_assert_int_eq(picture_kind_of(&t), PICTURE_IMAGE);
    ck_assert_int_eq(picture_draw(&p, &t, 10, 10, &e), DLX_E_INVALID);
    contains(e.text, "not readable");
    ck_assert_ptr_null(p.pixels);
}

TEST(png_files_have_the_pixels)
{
    struct cli_error e = {""};
    uint8_t *file = NULL;
    size_t size = 0;
    uint8_t rgba[] = {1, 2, 3, 255, 5, 6, 7, 128}, rgb[] = {1, 2, 3, 4, 5, 6};
    for (int i = 0; i < 2; i++) {
        DLTensor t = i == 0 ? TENSOR(u8, rgba, 2, 1, 4) : TENSOR(u8, rgb, 2, 1, 3);
        draw(&t, 10, 10);
        int code = picture_png(&drawn, &file, &size, &e);
#ifdef DLX_NO_PNG
        ck_assert_int_eq(code, DLX_E_INVALID);
        contains(e.text, "without libpng");
#else
        uint8_t pixels[sizeof rgba];
        png_image image = {.version = PNG_IMAGE_VERSION};
        ck_assert_msg(code == 0, "%s", e.text);
        ck_assert(png_image_begin_read_from_memory(&image, file, size));
        ck_assert(image.width == 1 && image.height == 2);
        ck_assert_uint_eq(image.format, i == 0 ? PNG_FORMAT_RGBA : PNG_FORMAT_RGB);
        ck_assert(png_image_finish_read(&image, NULL, pixels, 0, NULL));
        ck_assert_mem_eq(pixels, i == 0 ? rgba : rgb, i == 0 ? sizeof rgba : sizeof rgb);
        free(file);
#endif
    }
}

int main(void)
{
    TCase *tcase = tcase_create("picture");
    tcase_add_checked_fixture(tcase, NULL, clear);
    return dlx_test_run_case(tcase);
}
