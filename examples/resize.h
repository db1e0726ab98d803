/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_EXAMPLES_RESIZE_H
#define DLX_EXAMPLES_RESIZE_H

/* Pictures to the input of a network: crop, resize, normalise, planes instead of pixels. */

#include <stdint.h>

/** Mean and standard deviation of ImageNet, per channel: what its networks expect. */
extern const float imagenet_mean[3];
extern const float imagenet_std[3];

struct resize;

/**
 * Frames of `width` x `height` RGB to `side` x `side`: the largest square in the middle, bilinear
 * with antialiasing (a triangle as wide as the step is). Ends the program when there is no memory.
 */
void resize_new(struct resize **ret, uint32_t width, uint32_t height, uint32_t side);
struct resize *resize_free(struct resize *r);

/** `rgb` is height x width x 3; `planes` becomes 3 x side x side, normalised. */
void resize_run(struct resize *r, const uint8_t *rgb, float *planes);

#endif
