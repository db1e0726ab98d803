/* SPDX-License-Identifier: Apache-2.0 */

/* The text of an error, for its reporter to print. */

#include "cli/error.h"
#include <stdarg.h>
#include <stdio.h>

int cli_fail(struct cli_error *e, int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(e->text, sizeof e->text, format, args);
    va_end(args);
    return code;
}

int cli_fail_at(struct cli_error *e, int code, const char *prefix)
{
    struct cli_error inner = *e;
    (void)snprintf(e->text, sizeof e->text, "%.255s: %.380s", prefix, inner.text);
    return code;
}
