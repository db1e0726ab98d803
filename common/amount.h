/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_COMMON_AMOUNT_H
#define DLX_COMMON_AMOUNT_H

/* Text of amounts of memory, for errors and logs. */

#include "common/util.h"
#include <stdint.h>

#define DLX_AMOUNT_SIZE 24
/* "400 B", "64.0 MiB", "1.5 GiB". Returns `text`. */
dlx_for_gpu const char *dlx__amount_text(uint64_t bytes, char text[DLX_AMOUNT_SIZE]);
/* The same in a buffer of the enclosing scope, for the arguments of dlx__fail(). */
#define DLX_AMOUNT(bytes) dlx__amount_text((bytes), (char[DLX_AMOUNT_SIZE]){0})

#endif
