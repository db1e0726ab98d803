/* SPDX-License-Identifier: Apache-2.0 */

/* Numbers for people, text that other processes chose, JSON, and the size of the terminal. */

#include "cli/output.h"
#include <dlx/error.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

void human_number(double n, char text[HUMAN_SIZE])
{
    double magnitude = fabs(n);
    if (!isfinite(n))
        (void)snprintf(text, HUMAN_SIZE, "-");
    else if (magnitude >= 99.95)
        (void)snprintf(text, HUMAN_SIZE, "%.0f", n);
    else if (magnitude >= 9.995)
        (void)snprintf(text, HUMAN_SIZE, "%.1f", n);
    else if (magnitude >= 0.9995 || magnitude == 0)
        (void)snprintf(text, HUMAN_SIZE, "%.*f", magnitude == 0 ? 0 : 2, n);
    else
        (void)snprintf(text, HUMAN_SIZE, "%.3g", n);
}

void human_bytes(uint64_t bytes, char text[HUMAN_SIZE])
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (bytes < 1024) {
        (void)snprintf(text, HUMAN_SIZE, "%" PRIu64 " B", bytes);
        return;
    }
    double n = (double)bytes / 1024;
    size_t unit = 0;
    for (; n >= 1023.5 && unit + 1 < sizeof units / sizeof units[0]; unit++)
        n /= 1024;
    char number[HUMAN_SIZE];
    human_number(n, number);
    (void)snprintf(text, HUMAN_SIZE, "%.20s %s", number, units[unit]);
}

int64_t output_age(int64_t now_ns, uint64_t at_ns)
{
    const uint64_t now = (uint64_t)now_ns;
    return at_ns > 0 && now > at_ns ? (int64_t)(now - at_ns) : 0;
}

void human_ns(int64_t ns, char text[HUMAN_SIZE])
{
    const char *sign = ns < 0 ? "-" : "";
    uint64_t n = ns < 0 ? 0 - (uint64_t)ns : (uint64_t)ns, s = n / 1000000000;
    char number[HUMAN_SIZE];
    const char *unit;
    if (s >= 2 * 86400) {
        (void)snprintf(text, HUMAN_SIZE, "%s%" PRIu64 " d %" PRIu64 " h", sign, s / 86400,
                       s % 86400 / 3600);
        return;
    }
    if (s >= 3600) {
        (void)snprintf(text, HUMAN_SIZE, "%s%" PRIu64 " h %" PRIu64 " min", sign, s / 3600,
                       s % 3600 / 60);
        return;
    }
    if (s >= 60) {
        (void)snprintf(text, HUMAN_SIZE, "%s%" PRIu64 " min %" PRIu64 " s", sign, s / 60, s % 60);
        return;
    }
    if (n < 1000) {
        (void)snprintf(text, HUMAN_SIZE, "%s%" PRIu64 " ns", sign, n);
        return;
    }
    double d = (double)n / 1e3;
    if (d < 999.5) {
        unit = "us";
    } else if ((d /= 1e3) < 999.5) {
        unit = "ms";
    } else {
        d /= 1e3;
        unit = "s";
    }
    human_number(d, number);
    (void)snprintf(text, HUMAN_SIZE, "%s%.20s %s", sign, number, unit);
}

/* Length of the valid UTF-8 sequence at `p`, 0 when there is none; and its character. */
static size_t utf8_length(const unsigned char *p, uint32_t *ret)
{
    size_t n;
    uint32_t c, min;
    *ret = p[0];
    if (p[0] < 0x80)
        return 1;
    if (p[0] >= 0xc2 && p[0] < 0xe0) {
        n = 2;
        c = p[0] & 0x1fU;
        min = 0x80;
    } else if (p[0] >= 0xe0 && p[0] < 0xf0) {
        n = 3;
        c = p[0] & 0x0fU;
        min = 0x800;
    } else if (p[0] >= 0xf0 && p[0] < 0xf5) {
        n = 4;
        c = p[0] & 0x07U;
        min = 0x10000;
    } else {
        return 0;
    }
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (p[i] & 0x3fU);
    }
    *ret = c;
    return c < min || c > 0x10ffff || (c >= 0xd800 && c < 0xe000) ? 0 : n;
}

/* 0x80 to 0x9f are control characters too; U+200E to U+206F hold the ones that turn the direction
 * of what follows. */
static bool is_plain(uint32_t c)
{
    return !(c < 0x20 || (c >= 0x7f && c < 0xa0) || (c >= 0x200b && c <= 0x200f) ||
             (c >= 0x2028 && c <= 0x202e) || (c >= 0x2060 && c <= 0x206f));
}

/* Ranges of characters, of Unicode 15. */
struct range {
    uint32_t first, last;
};

static bool is_in(const struct range *ranges, size_t n, uint32_t c)
{
    for (size_t i = 0; i < n && ranges[i].first <= c; i++)
        if (c <= ranges[i].last)
            return true;
    return false;
}

/* The C library knows these widths only in a locale of UTF-8, which few containers set. */
static size_t columns_of(uint32_t c)
{
    static const struct range marks[] = {
        {0x300, 0x36f},   {0x483, 0x489},    {0x591, 0x5bd},   {0x610, 0x61a},   {0x64b, 0x65f},
        {0x93c, 0x93c},   {0x941, 0x948},    {0xe31, 0xe31},   {0xe34, 0xe3a},   {0xe47, 0xe4e},
        {0x1ab0, 0x1aff}, {0x1dc0, 0x1dff},  {0x20d0, 0x20ff}, {0xfe00, 0xfe0f}, {0xfe20, 0xfe2f},
        {0xfeff, 0xfeff}, {0xe0100, 0xe01ef}};
    static const struct range wide[] = {
        {0x1100, 0x115f},   {0x231a, 0x231b},   {0x23e9, 0x23ec},   {0x2614, 0x2615},
        {0x26a1, 0x26a1},   {0x26bd, 0x26be},   {0x2705, 0x2705},   {0x2728, 0x2728},
        {0x274c, 0x274c},   {0x2753, 0x2755},   {0x2b50, 0x2b50},   {0x2e80, 0x303e},
        {0x3041, 0x33ff},   {0x3400, 0x4dbf},   {0x4e00, 0xa4cf},   {0xa960, 0xa97c},
        {0xac00, 0xd7a3},   {0xf900, 0xfaff},   {0xfe30, 0xfe6f},   {0xff01, 0xff60},
        {0xffe0, 0xffe6},   {0x16fe0, 0x18cd5}, {0x1b000, 0x1b2fb}, {0x1f004, 0x1f004},
        {0x1f0cf, 0x1f0cf}, {0x1f18e, 0x1f19a}, {0x1f200, 0x1f320}, {0x1f32d, 0x1f64f},
        {0x1f680, 0x1f6fc}, {0x1f7e0, 0x1f7f0}, {0x1f90c, 0x1faff}, {0x20000, 0x3fffd}};
    if (c < 0x300)
        return 1;
    if (is_in(marks, sizeof marks / sizeof marks[0], c))
        return 0;
    return is_in(wide, sizeof wide / sizeof wide[0], c) ? 2 : 1;
}

/* The next character of a text; what is not UTF-8 counts byte by byte. Returns its length. */
static size_t next_character(const char *text, size_t *ret_columns)
{
    uint32_t c;
    size_t n = utf8_length((const unsigned char *)text, &c);
    *ret_columns = n > 0 ? columns_of(c) : 1;
    return n > 0 ? n : 1;
}

size_t output_columns(const char *text)
{
    size_t n = 0, columns;
    for (; *text; n += columns)
        text += next_character(text, &columns);
    return n;
}

size_t output_bytes_of(const char *text, size_t columns)
{
    size_t n = 0, at = 0, more;
    while (text[at]) {
        size_t length = next_character(text + at, &more);
        if (n + more > columns)
            break;
        n += more;
        at += length;
    }
    return at;
}

void output_printable(const char *from, char *to, size_t size)
{
    const unsigned char *p = (const unsigned char *)from;
    size_t at = 0;
    while (*p) {
        uint32_t c;
        size_t n = utf8_length(p, &c);
        bool plain = n > 0 && is_plain(c);
        if (at + (plain ? n : 1) >= size)
            break;
        if (plain)
            memcpy(to + at, p, n);
        else
            to[at] = '?';
        at += plain ? n : 1;
        p += plain ? n : 1;
    }
    to[at] = '\0';
}

size_t output_escaped(const void *from, size_t from_size, char *to, size_t size)
{
    const unsigned char *p = from, *end = p + from_size;
    size_t at = 0;
    while (p < end) {
        unsigned char c[5] = {0}; /* a character of UTF-8 that ends where the bytes do */
        char text[8];
        uint32_t code;
        memcpy(c, p, end - p < 4 ? (size_t)(end - p) : 4);
        size_t n = *p ? utf8_length(c, &code) : 0, step = n ? n : 1;
        if (n > 0 && is_plain(code))
            (void)snprintf(text, sizeof text, "%.*s", (int)n, (const char *)c);
        else if (*p == '\n' || *p == '\t' || *p == '\r')
            (void)snprintf(text, sizeof text, "\\%c", *p == '\n' ? 'n' : *p == '\t' ? 't' : 'r');
        else
            (void)snprintf(text, sizeof text, "\\x%02x", (unsigned)*p), step = 1;
        size_t length = strlen(text);
        if (at + length >= size)
            break;
        memcpy(to + at, text, length);
        at += length;
        p += step;
    }
    to[at] = '\0';
    return (size_t)(p - (const unsigned char *)from);
}

int output_json(FILE *file, json_t *json, bool lines)
{
    if (!json)
        return DLX_E_NO_MEMORY;
    /* ASCII: what would do something to a terminal is escaped, too */
    int r = json_dumpf(json, file, JSON_ENSURE_ASCII | (lines ? JSON_INDENT(2) : JSON_COMPACT));
    json_decref(json);
    if (r < 0 || putc('\n', file) == EOF)
        return DLX_E_SYSTEM;
    return 0;
}

json_t *output_json_u64(uint64_t n)
{
    return n <= INT64_MAX ? json_integer((json_int_t)n) : json_real((double)n);
}

static json_t *unless_failed(json_t *json, bool failed)
{
    if (!failed)
        return json;
    json_decref(json);
    return NULL;
}

json_t *output_json_put(json_t *object, const char *key, json_t *value)
{
    return unless_failed(object, json_object_set_new(object, key, value) < 0);
}

json_t *output_json_append(json_t *array, json_t *item)
{
    return unless_failed(array, json_array_append_new(array, item) < 0);
}

json_t *output_json_merge(json_t *object, json_t *more)
{
    bool failed = !object || !more || json_object_update(object, more) < 0;
    json_decref(more);
    return unless_failed(object, failed);
}

json_t *output_json_hex(const void *bytes, size_t size)
{
    char *text = malloc(2 * size + 1);
    if (!text)
        return NULL;
    for (size_t i = 0; i < size; i++)
        (void)snprintf(text + 2 * i, 3, "%02x", ((const unsigned char *)bytes)[i]);
    json_t *json = json_stringn(text, 2 * size);
    free(text);
    return json;
}

json_t *output_json_text(const char *text)
{
    static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */
    size_t at = 0, size = strlen(text);
    char *to = malloc(3 * size + 1);
    if (!to)
        return NULL;
    for (const char *p = text; *p;) {
        uint32_t c;
        size_t n = utf8_length((const unsigned char *)p, &c), step = n ? n : 1;
        memcpy(to + at, n ? p : replacement, n ? n : 3);
        at += n ? n : 3;
        p += step;
    }
    json_t *json = json_stringn(to, at);
    free(to);
    return json;
}

static struct winsize terminal_size(FILE *file)
{
    struct winsize size = {0};
    int fd = fileno(file);
    if (fd < 0 || !isatty(fd) || ioctl(fd, TIOCGWINSZ, &size) < 0)
        return (struct winsize){0};
    return size;
}

unsigned output_width(FILE *file)
{
    return terminal_size(file).ws_col;
}

unsigned output_height(FILE *file)
{
    return terminal_size(file).ws_row;
}

bool output_is_screen(FILE *file)
{
    const char *term = getenv("TERM");
    int fd = fileno(file);
    return fd >= 0 && isatty(fd) && term && strcmp(term, "dumb") != 0;
}
