/* SPDX-License-Identifier: Apache-2.0 */
#include "picture.h"

#include "util.h"

#include <errno.h>
#include <png.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

/* Larger files are not photographs that a demo should decode. */
#define PICTURE_SIDE_MAX 16384

struct jpeg_failure {
    struct jpeg_error_mgr manager; /* first: libjpeg hands a pointer to it */
    jmp_buf jump;
};

static void on_jpeg_error(j_common_ptr info)
{
    struct jpeg_failure *failure = (struct jpeg_failure *)info->err;

    longjmp(failure->jump, 1);
}

static void on_jpeg_message(j_common_ptr info)
{
    (void)info;
}

static const char *load_jpeg(struct picture *ret, FILE *f)
{
    struct jpeg_decompress_struct info;
    struct jpeg_failure failure;
    /* Through a volatile pointer: what is set after setjmp() must survive longjmp(). */
    struct picture *volatile picture = ret;

    info.err = jpeg_std_error(&failure.manager);
    failure.manager.error_exit = on_jpeg_error;
    failure.manager.output_message = on_jpeg_message;
    if (setjmp(failure.jump)) {
        jpeg_destroy_decompress(&info);
        picture_deinit(picture);
        return "not a JPEG file, or a damaged one";
    }
    jpeg_create_decompress(&info);
    jpeg_stdio_src(&info, f);
    jpeg_read_header(&info, TRUE);
    info.out_color_space = JCS_RGB;
    jpeg_start_decompress(&info);
    if (info.output_width > PICTURE_SIDE_MAX || info.output_height > PICTURE_SIDE_MAX)
        longjmp(failure.jump, 1);
    picture_init(ret, info.output_width, info.output_height);
    while (info.output_scanline < info.output_height) {
        JSAMPROW row = ret->rgb + (size_t)info.output_scanline * ret->width * 3;
        jpeg_read_scanlines(&info, &row, 1);
    }
    jpeg_finish_decompress(&info);
    if (failure.manager.num_warnings) /* grey where data was missing */
        longjmp(failure.jump, 1);
    jpeg_destroy_decompress(&info);
    return NULL;
}

static const char *load_png(struct picture *ret, FILE *f)
{
    png_image image = {.version = PNG_IMAGE_VERSION};

    if (!png_image_begin_read_from_stdio(&image, f))
        return "not a PNG file that libpng can decode";
    if (image.width > PICTURE_SIDE_MAX || image.height > PICTURE_SIDE_MAX) {
        png_image_free(&image);
        return "more than 16384 pixels wide or high";
    }
    image.format = PNG_FORMAT_RGB;
    picture_init(ret, image.width, image.height);
    if (!png_image_finish_read(&image, NULL, ret->rgb, 0, NULL)) {
        picture_deinit(ret);
        return "a damaged PNG file";
    }
    return NULL;
}

const char *picture_load(struct picture *ret, const char *path)
{
    static const uint8_t png_magic[4] = {0x89, 'P', 'N', 'G'};
    uint8_t magic[4];

    memset(ret, 0, sizeof *ret);
    FILE *f = fopen(path, "rbe");
    if (!f)
        return strerror(errno);
    const char *why = "shorter than any picture";
    if (fread(magic, 1, sizeof magic, f) == sizeof magic) {
        rewind(f);
        why = memcmp(magic, png_magic, sizeof magic) ? load_jpeg(ret, f) : load_png(ret, f);
    }
    fclose(f);
    return why;
}

const char *picture_save(const uint8_t *rgb, uint32_t width, uint32_t height, const char *path)
{
    png_image image = {
        .version = PNG_IMAGE_VERSION,
        .width = width,
        .height = height,
        .format = PNG_FORMAT_RGB,
        .flags = PNG_IMAGE_FLAG_FAST,
    };
    FILE *f = fopen(path, "wbe");

    if (!f)
        return strerror(errno);
    int written = png_image_write_to_stdio(&image, f, 0, rgb, 0, NULL);
    if (fclose(f) || !written)
        return "could not write the PNG file";
    return NULL;
}
