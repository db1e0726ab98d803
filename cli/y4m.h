/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_Y4M_H
#define CLI_Y4M_H

/**
 * YUV4MPEG2, the raw video that ffmpeg and mjpegtools write to pipes: its headers, and conversion
 * of its frames to RGB. Pure functions over memory; nothing in a header is trusted.
 *
 *     YUV4MPEG2 W1920 H1080 F30:1 Ip A1:1 C420jpeg XCOLORRANGE=LIMITED\n
 *     FRAME\n  Y plane, Cb plane, Cr plane
 *     FRAME\n  ...
 */

#include "cli/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Longest header line, with its newline. */
#define Y4M_LINE_SIZE_MAX 1024
/** Largest width and height. */
#define Y4M_SIDE_MAX 65535

enum y4m_chroma { Y4M_420, Y4M_422, Y4M_444, Y4M_MONO };
enum y4m_matrix { Y4M_MATRIX_AUTO, Y4M_MATRIX_BT601, Y4M_MATRIX_BT709 };

struct y4m_header {
    uint32_t width, height;
    uint32_t chroma_width, chroma_height; /**< of each of Cb and Cr; 0 for Y4M_MONO */
    uint32_t rate_num, rate_den;          /**< frames a second; 0, 0 when the file does not say */
    enum y4m_chroma chroma;
    bool full_range;     /**< 0 to 255 (XCOLORRANGE=FULL), not 16 to 235 and 240 */
    uint64_t frame_size; /**< bytes after a FRAME line */
};

/**
 * Parse the first line, without or with its newline. Returns 0; DLX_E_INVALID (malformed);
 * DLX_E_LIMIT (longer than Y4M_LINE_SIZE_MAX, larger than Y4M_SIDE_MAX); DLX_E_SHAPE (a pixel
 * format that is not 8 bit 4:2:0, 4:2:2, 4:4:4 or mono).
 */
int y4m_header_parse(const uint8_t *line, size_t size, struct y4m_header *ret_header,
                     struct cli_error *e);

/** Check a FRAME line, without or with its newline. Returns 0 or DLX_E_INVALID. */
int y4m_frame_parse(const uint8_t *line, size_t size, struct cli_error *e);

/**
 * The shape that a frame has as it stands in the file, which is uint8:
 *     4:2:0, even sides    (H * 3 / 2, W), as OpenCV has it: Y, then Cb and Cr in rows of W
 *     4:2:2, even width    (H * 2, W)
 *     4:4:4                (3, H, W)
 *     mono                 (H, W)
 *     else                 (frame_size,)
 * Returns ndim, at most 3.
 */
int32_t y4m_planar_shape(const struct y4m_header *header, int64_t shape[3]);

/**
 * Convert a frame of `header->frame_size` bytes to height x width x 3 bytes of R, G, B. Chroma
 * samples are repeated, not interpolated. Y4M_MATRIX_AUTO: BT.709 from 720 lines on, else BT.601.
 */
void y4m_to_rgb(const struct y4m_header *header, enum y4m_matrix matrix, const uint8_t *frame,
                uint8_t *rgb);

#endif
