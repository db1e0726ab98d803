/* SPDX-License-Identifier: Apache-2.0 */
#include "common/error.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

_Thread_local bool dlx__error_is_set;
static _Thread_local char message[DLX_ERROR_TEXT_SIZE];

const char *dlx__error_text(int code)
{
    switch (code) {
    case DLX_OK:
        return "success";
#define TEXT(name, number, text)                                                                   \
    case DLX_E_##name:                                                                             \
        return text;
        DLX_ERRORS(TEXT)
#undef TEXT
    default:
        return "unknown error";
    }
}

const char *dlx__error_name(int code)
{
    switch (code) {
    case DLX_OK:
        return "OK";
#define NAME(name, number, text)                                                                   \
    case DLX_E_##name:                                                                             \
        return #name;
        DLX_ERRORS(NAME)
#undef NAME
    default:
        return "UNKNOWN";
    }
}

int dlx__error_from_errno(int err)
{
    switch (err) {
    case ENOMEM:
    case ENOSPC:
        return DLX_E_NO_MEMORY;
    case EMFILE:
    case ENFILE:
    case ETOOMANYREFS:
        return DLX_E_FD_LIMIT;
    case EACCES:
    case EPERM:
        return DLX_E_ACCESS;
    case EINTR:
        return DLX_E_INTERRUPTED;
    case EPIPE:
    case ECONNRESET:
        return DLX_E_DISCONNECTED;
    case EINVAL:
        return DLX_E_INVALID;
    case ENOSYS:
    case EOPNOTSUPP:
        return DLX_E_KERNEL;
    default:
        return DLX_E_SYSTEM;
    }
}

/* Appends ": <text>", truncated at the end of the buffer. */
static void append(const char *text)
{
    size_t used = strlen(message), left = sizeof message - used - 1;
    size_t n = DLX_MIN(strlen(text), left > 2 ? left - 2 : 0);
    if (n == 0)
        return;
    memcpy(message + used, ": ", 2);
    memcpy(message + used + 2, text, n);
    message[used + 2 + n] = '\0';
}

/* Names the program whose limit it is, because clients read the errors of the daemon. */
static void append_file_limit(void)
{
    char text[128];
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
        return;
    (void)snprintf(text, sizeof text, "%.40s may have %llu (raise it: ulimit -n, LimitNOFILE=)",
                   program_invocation_short_name, (unsigned long long)limit.rlim_cur);
    append(text);
}

int dlx__fail(int code, const char *fmt, ...)
{
    va_list ap;
    dlx__error_is_set = true;
    va_start(ap, fmt);
    (void)vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    return code;
}

int dlx__fail_text(int code, const char *text)
{
    size_t size = DLX_MIN(strlen(text), sizeof message - 1);
    dlx__error_is_set = true;
    memcpy(message, text, size);
    message[size] = '\0';
    return code;
}

int dlx__fail_errno(const char *fmt, ...)
{
    int err = errno;
    char reason[96];
    va_list ap;
    dlx__error_is_set = true;
    va_start(ap, fmt);
    (void)vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    append(strerror_r(err, reason, sizeof reason));
    if (err == EMFILE)
        append_file_limit();
    return dlx__error_from_errno(err);
}

int dlx__fail_prefix(int code, const char *fmt, ...)
{
    char old[DLX_ERROR_TEXT_SIZE];
    memcpy(old, dlx__error_message(), sizeof old);
    va_list ap;
    dlx__error_is_set = true;
    va_start(ap, fmt);
    (void)vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    append(old[0] ? old : dlx__error_text(code));
    return code;
}

const char *dlx__error_message(void)
{
    if (!dlx__error_is_set)
        message[0] = '\0';
    return message;
}
