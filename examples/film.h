/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_EXAMPLES_FILM_H
#define DLX_EXAMPLES_FILM_H

/* A film made of photographs: each is shown for a while, panned over and zoomed into. */

#include "picture.h"

#include <stddef.h>
#include <stdint.h>

struct film;

/** `photos` are borrowed and must outlive the film. Ends the program when there is no memory. */
void film_new(struct film **ret, const struct picture *photos, size_t n_photos, uint32_t width,
              uint32_t height, double seconds_per_photo);
struct film *film_free(struct film *f);

/** Draw the frame at `seconds` into `rgb`: height x width x 3 bytes, each of them written. */
void film_draw(struct film *f, double seconds, uint8_t *rgb);

#endif
