/* SPDX-License-Identifier: Apache-2.0 */

/* The library in words: its errors and its version. */

#include "common/error.h"
#include <dlx/dlx.h>

const char *dlx_strerror(int code)
{
    return dlx__error_text(code);
}

const char *dlx_error_name(int code)
{
    return dlx__error_name(code);
}

const char *dlx_errmsg(void)
{
    return dlx__error_message();
}

#define TEXT_OF(x)   #x
#define NUMBER_OF(x) TEXT_OF(x)

const char *dlx_version(void)
{
    return NUMBER_OF(DLX_VERSION_MAJOR) "." NUMBER_OF(DLX_VERSION_MINOR) "." NUMBER_OF(
        DLX_VERSION_PATCH);
}
