/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_CLIENT_ARGS_H
#define DLX_CLIENT_ARGS_H

/* The arguments of a public call: which of them is NULL, and structs that grow from version to
 * version. */

#include "common/error.h"
#include "common/util.h"
#include <dlx/dlx.h>
#include <string.h>

/*
 * Names the first argument of a call that is NULL, and returns DLX_E_INVALID. If none is NULL,
 * returns `code`, and the thread's message stays.
 *
 *     DLX_NAME_NULL(0, "dlx_subscribe", {"client", c}, {"ret", ret})
 */
struct dlx_argument {
    const char *name;
    const void *value;
};
int dlx__name_null(int code, const char *call, const struct dlx_argument *arguments, size_t n);
#define DLX_NAME_NULL(code, call, ...)                                                             \
    dlx__name_null(code, call, (const struct dlx_argument[]){__VA_ARGS__},                         \
                   sizeof((const struct dlx_argument[]){__VA_ARGS__}) /                            \
                       sizeof(struct dlx_argument))

/* Copy an argument struct that a caller compiled with another version of the library. `args` may
 * be NULL. Returns 0 or DLX_E_INVALID: smaller than `min`, or bytes set that this library does
 * not know. */
int dlx__args_convert(void *dst, size_t dst_size, size_t min, const void *args);
static inline int dlx__args_copy(void *dst, size_t dst_size, size_t min, const void *args)
{
    size_t size;
    if (dlx_likely(args != NULL)) {
        memcpy(&size, args, sizeof size);
        if (dlx_likely(size == dst_size)) { /* the same version */
            memcpy(dst, args, dst_size);
            return 0;
        }
    }
    return dlx__args_convert(dst, dst_size, min, args);
}

/* Has this result struct at least `min` bytes? Returns 0, DLX_E_INVALID. */
int dlx__args_check_result(const void *result, size_t min);
/* As dlx__args_convert(), for a struct that is filled for the caller. */
int dlx__args_return(void *dst, size_t min, const void *src, size_t src_size);

#endif
