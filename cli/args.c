/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/args.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool args_parse_number(const char *text, uint64_t min, uint64_t max, uint64_t *ret)
{
    uint64_t n = 0;
    if (!*text)
        return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || __builtin_mul_overflow(n, 10, &n) ||
            __builtin_add_overflow(n, (uint64_t)(*text - '0'), &n))
            return false;
    }
    if (n < min || n > max)
        return false;
    *ret = n;
    return true;
}

/* strtod() without what only it knows: spaces, signs, hexadecimal, "inf" and "nan". */
static bool parse_decimal(const char *text, double *ret)
{
    char *end = NULL;
    if (!*text || strspn(text, "0123456789.eE-") != strlen(text) || *text == '-')
        return false;
    double d = strtod(text, &end);
    if (*end || end == text || !isfinite(d) || d < 0)
        return false;
    *ret = d;
    return true;
}

bool args_parse_seconds(const char *text, int64_t *ret_ns)
{
    double d = 0;
    if (!parse_decimal(text, &d) || d > 1e9)
        return false;
    *ret_ns = (int64_t)(d * 1e9 + 0.5);
    return true;
}

bool args_parse_rate(const char *text, double *ret)
{
    double d = 0;
    if (!parse_decimal(text, &d) || d < 1e-9 || d > 1e9)
        return false;
    *ret = d;
    return true;
}

static void skip_spaces(const char **p)
{
    while (**p == ' ')
        (*p)++;
}

bool args_parse_shape(const char *text, int64_t shape[64], int32_t *ret_ndim)
{
    const char *p = text;
    int32_t ndim = 0;
    skip_spaces(&p);
    bool tuple = *p == '(' || *p == '[';
    char close = *p == '[' ? ']' : ')';
    if (tuple)
        p++;
    skip_spaces(&p);
    while (*p && !(tuple && *p == close)) {
        int64_t n = 0;
        if (ndim == 64 || *p < '0' || *p > '9')
            return false;
        for (; *p >= '0' && *p <= '9'; p++)
            if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, *p - '0', &n))
                return false;
        shape[ndim++] = n;
        skip_spaces(&p);
        if (*p == ',' || *p == 'x')
            p++;
        else if (*p && !(tuple && *p == close))
            return false;
        skip_spaces(&p);
    }
    if (tuple) {
        if (*p != close)
            return false;
        p++;
        skip_spaces(&p);
    } else if (ndim == 0) {
        return false;
    }
    if (*p)
        return false;
    *ret_ndim = ndim;
    return true;
}

uint64_t args_number(struct argp_state *state, const char *option, const char *text, uint64_t min,
                     uint64_t max)
{
    uint64_t n = 0;
    if (!args_parse_number(text, min, max, &n))
        argp_error(state, "%s: '%s' is not a number from %" PRIu64 " to %" PRIu64, option, text,
                   min, max);
    return n;
}

int64_t args_seconds(struct argp_state *state, const char *option, const char *text)
{
    int64_t ns = 0;
    if (!args_parse_seconds(text, &ns))
        argp_error(state, "%s: '%s' is not a number of seconds from 0 to 1000000000", option, text);
    return ns;
}
