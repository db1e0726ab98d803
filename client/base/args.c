/* SPDX-License-Identifier: Apache-2.0 */
#include "client/base/args.h"

int dlx__name_null(int code, const char *call, const struct dlx_argument *arguments, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!arguments[i].value)
            return dlx__fail(DLX_E_INVALID, "%s: %s is NULL", call, arguments[i].name);
    return code;
}

/* ---- argument structs ---------------------------------------------------------------------- */

int dlx__args_convert(void *dst, size_t dst_size, size_t min, const void *args)
{
    size_t size;
    memset(dst, 0, dst_size);
    if (!args)
        return 0;
    memcpy(&size, args, sizeof size);
    if (size < min)
        return dlx__fail(DLX_E_INVALID,
                         "argument struct of %zu bytes, at least %zu are needed: is `size` set?",
                         size, min);
    for (size_t i = dst_size; i < size; i++)
        if (((const uint8_t *)args)[i] != 0)
            return dlx__fail(
                DLX_E_INVALID,
                "argument struct of %zu bytes uses fields that libdlx %s does not know", size,
                dlx_version());
    memcpy(dst, args, DLX_MIN(size, dst_size));
    return 0;
}

int dlx__args_check_result(const void *result, size_t min)
{
    size_t size;
    memcpy(&size, result, sizeof size);
    if (size >= min)
        return 0;
    return dlx__fail(DLX_E_INVALID,
                     "result struct of %zu bytes, at least %zu are needed: is `size` set?", size,
                     min);
}

int dlx__args_return(void *dst, size_t min, const void *src, size_t src_size)
{
    size_t size;
    memcpy(&size, dst, sizeof size);
    int r = dlx__args_check_result(dst, min);
    if (r < 0)
        return r;
    size_t n = DLX_MIN(size, src_size);
    memcpy((uint8_t *)dst + sizeof size, (const uint8_t *)src + sizeof size, n - sizeof size);
    return 0;
}
