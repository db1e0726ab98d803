/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_ERROR_H
#define CLI_ERROR_H

#include <dlx/error.h>

/**
 * Words for a failure that is not libdlx's: a file, an argument. Functions that take one return a
 * negative code of enum dlx_error and fill it on failure.
 */
struct cli_error {
    char text[640];
};

/** Fill `e` and return `code`. */
int cli_fail(struct cli_error *e, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/** Put "prefix: " in front of what `e` says, and return `code`. */
int cli_fail_at(struct cli_error *e, int code, const char *prefix);

#endif
