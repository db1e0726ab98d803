/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_EXAMPLES_PICTURE_H
#define DLX_EXAMPLES_PICTURE_H

/* Pictures in memory: 8-bit RGB, row by row without gaps. Files: JPEG and PNG. */

#include <stddef.h>
#include <stdint.h>

struct picture {
    uint32_t width;
    uint32_t height;
    uint8_t *rgb; /**< height x width x 3 bytes, owned */
};

/** A black picture. Ends the program when there is no memory. */
void picture_init(struct picture *p, uint32_t width, uint32_t height);
void picture_deinit(struct picture *p);

/** Decode a JPEG or PNG file. Returns NULL, or why not, in words (static). */
const char *picture_load(struct picture *ret, const char *path);

/** Write a PNG file. Returns NULL, or why not, in words (static). */
const char *picture_save(const uint8_t *rgb, uint32_t width, uint32_t height, const char *path);

/** Copy a small picture into a large one, clipped at its borders. */
void picture_paste(struct picture *p, const struct picture *small, uint32_t x, uint32_t y);

/** A filled rectangle, clipped. */
void picture_fill(struct picture *p, uint32_t x, uint32_t y, uint32_t width, uint32_t height,
                  const uint8_t rgb[3]);

/** Text in capitals, `scale` x 7 pixels high, each letter `scale` x 6 wide. */
void picture_text(struct picture *p, uint32_t x, uint32_t y, uint32_t scale, const uint8_t rgb[3],
                  const char *text);

#endif
