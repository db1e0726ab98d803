/* SPDX-License-Identifier: Apache-2.0 */
/* libFuzzer: YUV4MPEG2 headers and the conversion of frames, whose bytes are what follows the line. */
#include "cli/y4m.h"
#include "tests/harness_fuzz.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct y4m_header h;
    struct cli_error e = {{0}};
    int64_t shape[3] = {0};
    const uint8_t *newline = size ? memchr(data, '\n', size) : NULL;
    size_t line = newline ? (size_t)(newline - data) + 1 : size;

    (void)y4m_frame_parse(data, line, &e);
    if (y4m_header_parse(data, line, &h, &e) < 0) {
        REQUIRE(e.text[0]);
        return 0;
    }
    REQUIRE(h.width >= 1 && h.width <= Y4M_SIDE_MAX && h.height >= 1 && h.height <= Y4M_SIDE_MAX);
    uint64_t n = 1;
    int32_t ndim = y4m_planar_shape(&h, shape);
    REQUIRE(ndim >= 1 && ndim <= 3);
    for (int32_t i = 0; i < ndim; i++)
        n *= (uint64_t)shape[i];
    REQUIRE(n == h.frame_size);
    if (h.frame_size > 1 << 16)
        return 0;
    uint8_t *frame = calloc(1, h.frame_size), *rgb = malloc((size_t)h.width * h.height * 3);
    REQUIRE(frame && rgb);
    size_t rest = size - line;
    if (rest > 0)
        memcpy(frame, data + line, rest < h.frame_size ? rest : h.frame_size);
    y4m_to_rgb(&h, (enum y4m_matrix)(rest % 3), frame, rgb);
    free(frame);
    free(rgb);
    return 0;
}
