/* SPDX-License-Identifier: Apache-2.0 */
#include "common/amount.h"
#include "common/util.h"
#include <stdio.h>

const char *dlx__amount_text(uint64_t bytes, char text[DLX_AMOUNT_SIZE])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double n = (double)bytes;
    size_t unit = 0;
    for (; n >= 1024 && unit + 1 < DLX_ARRAY_SIZE(units); unit++)
        n /= 1024;
    (void)snprintf(text, DLX_AMOUNT_SIZE, "%.*f %s", unit > 0, n, units[unit]);
    return text;
}
