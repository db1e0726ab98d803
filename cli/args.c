/* SPDX-License-Identifier: Apache-2.0 */

/* Values of options, parsed by hand where strtod() and strtoull() accept more than is wanted. */

#include "cli/args.h"
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

struct unit {
    const char *name;
    double factor;
};

/* Parses a number with one of the units, of which "" is that of a bare number. strtod() also
 * accepts spaces, signs, hexadecimal, "inf" and "nan", which are refused here. */
static bool parse_with_unit(const char *text, const struct unit *units, size_t n_units, double *ret)
{
    char *end = NULL;
    if (strspn(text, "0123456789.") == 0)
        return false;
    double d = strtod(text, &end);
    if (text[1] == 'x' || text[1] == 'X' || !isfinite(d))
        return false;
    while (*end == ' ' && end[1])
        end++;
    for (size_t i = 0; i < n_units; i++)
        if (strcmp(end, units[i].name) == 0) {
            *ret = d * units[i].factor;
            return true;
        }
    return false;
}

bool args_parse_time(const char *text, int64_t *ret_ns)
{
    static const struct unit units[] = {{"", 1e9},  {"ns", 1},     {"us", 1e3},   {"ms", 1e6},
                                        {"s", 1e9}, {"min", 60e9}, {"h", 3600e9}, {"d", 86400e9}};
    double ns = 0;
    if (!parse_with_unit(text, units, sizeof units / sizeof units[0], &ns) || ns > 1e18)
        return false;
    *ret_ns = (int64_t)(ns + 0.5);
    return true;
}

bool args_parse_rate(const char *text, double *ret)
{
    static const struct unit units[] = {{"", 1}, {"Hz", 1}, {"kHz", 1e3}, {"MHz", 1e6}};
    double d = 0;
    if (!parse_with_unit(text, units, sizeof units / sizeof units[0], &d) || d < 1e-9 || d > 1e9)
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
