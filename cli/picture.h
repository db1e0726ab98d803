/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_PICTURE_H
#define CLI_PICTURE_H

/**
 * Pictures of tensors, for terminals and browsers.
 *
 * Which picture a tensor has depends on its shape and type, never on its values, so a stream does
 * not change from one message to the next. Sizes of 1 in front are left out first, while there are
 * more than two, and so is a last one of three; lanes count as a last size. What remains is
 *
 *   H x W x 3, H x W x 4, 3 x H x W    an image, of uint8, bool or floating point
 *   H x W                              an image, of uint8 and bool, and of floating point if a size
 *                                      of 1 for its channel was left out; else a heat map
 *   anything else                      no picture
 *
 * Floating point images have values from 0 to 1. If some are outside, all are stretched between the
 * least and the greatest one. A heat map goes from the least value (dark blue) to the greatest
 * (yellow) by viridis, whose steps look alike; complex numbers count by their magnitude. NaN is
 * magenta in both, and infinities have the colours at the ends.
 */

#include "cli/error.h"
#include <dlx/dlx.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum picture_kind {
    PICTURE_NONE,
    PICTURE_IMAGE,
    PICTURE_HEAT,
};

/** The kind that a tensor has, wherever it is. */
enum picture_kind picture_kind_of(const DLTensor *t);

struct picture {
    enum picture_kind kind;
    uint32_t width, height;
    uint32_t n_channels; /**< bytes of a pixel: 3 (RGB) or 4 (RGBA, alpha not multiplied in) */
    uint8_t *pixels;     /**< rows from the top, without gaps */
    double min, max;     /**< of what was averaged, without alpha; NaN if nothing was finite */
    bool is_stretched;   /**< an image whose values are not from 0 to 1 */
    uint64_t n_nan;      /**< how many of the values that were read are NaN */
};

/**
 * Make the picture of a tensor that the host can read (tensor_is_readable()). It has at most
 * `width` x `height` pixels, which average the items below them. The proportions are kept, but for
 * heat maps that would get less than 16 pixels wide or high. A pixel is NaN if half of its items
 * are. Of a very large tensor, evenly spaced items are read, at most 2 million, so that the caller
 * need not hold the message for long. Returns 0; DLX_E_INVALID (it has no picture, or cannot be
 * read), DLX_E_NO_MEMORY.
 */
int picture_draw(struct picture *p, const DLTensor *t, uint32_t width, uint32_t height,
                 struct cli_error *e);

/** As picture_draw(), of tensor `i` of a message. One on a GPU is copied to the host first, all of
 *  it. Returns besides what dlx_message_copy_to_host() returns. */
int picture_draw_message(struct picture *p, struct dlx_message *m, uint32_t i, uint32_t width,
                         uint32_t height, struct cli_error *e);

/** Release the pixels. A picture that is all zero has none. */
void picture_deinit(struct picture *p);

/** The picture as a PNG file in memory, to be freed. Returns 0; DLX_E_NO_MEMORY, and DLX_E_INVALID
 *  in a build without libpng (DLX_NO_PNG). */
int picture_png(const struct picture *p, uint8_t **ret_data, size_t *ret_size, struct cli_error *e);

/** Tensor `i` of a message where the host can read it: in the message itself, or a copy in memory
 *  to be freed, `*ret_copy`, of one on a GPU. Returns 0 or a negative code. */
int picture_host_tensor(struct dlx_message *m, uint32_t i, DLTensor *ret, void **ret_copy,
                        struct cli_error *e);

#endif
