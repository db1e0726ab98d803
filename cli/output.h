/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_OUTPUT_H
#define CLI_OUTPUT_H

/** Output for people, and for programs. */

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define HUMAN_SIZE 32

/** "512 B", "5.93 MiB": three digits, powers of 1024. */
void human_bytes(uint64_t bytes, char text[HUMAN_SIZE]);

/** "812 ns", "2.14 ms", "3.40 s", "3 min 12 s", "2 h 5 min", "4 d 7 h"; a negative one with a sign.
 */
void human_ns(int64_t ns, char text[HUMAN_SIZE]);

/** How long ago something was. 0 if it was not (`at_ns` is 0) or is yet to come: other programs
 *  wrote when. */
int64_t output_age(int64_t now_ns, uint64_t at_ns);

/** Three digits, but all of those before the point: "0.0123", "29.9", "12345". */
void human_number(double n, char text[HUMAN_SIZE]);

/** Columns of text on a screen: wide characters have two, and marks above others none. */
size_t output_columns(const char *text);

/** Bytes of its first characters, so many as fit into these columns. */
size_t output_bytes_of(const char *text, size_t columns);

/**
 * Copy text that another process chose so that it can be shown on a terminal:
 * control characters and what is not UTF-8 become '?'. Truncates to `size`.
 */
void output_printable(const char *from, char *to, size_t size);

/** Copy `size` bytes of any kind, with everything but plain text escaped as in C: "\n", "\x1b".
 *  Returns how many bytes fitted. */
size_t output_escaped(const void *from, size_t from_size, char *to, size_t size);

/** Print in ASCII, as one line, or indented when `lines` is set, and drop the reference. Returns 0
 *  or a negative code when `json` is NULL (out of memory) or cannot be written. */
int output_json(FILE *file, json_t *json, bool lines);

/** A count that may exceed what jansson's integers hold. */
json_t *output_json_u64(uint64_t n);

/** Bytes as two hex digits each. NULL: out of memory. */
json_t *output_json_hex(const void *bytes, size_t size);

/** Add a member to an object, an item to an array, the members of `more` to an object. Each call
 *  owns its arguments from then on, and returns the object or array; NULL: out of memory, now or
 *  when an argument was made. */
json_t *output_json_put(json_t *object, const char *key, json_t *value);
json_t *output_json_append(json_t *array, json_t *item);
json_t *output_json_merge(json_t *object, json_t *more);

/** Text that another process chose, all of it; what is not UTF-8 becomes U+FFFD. NULL: out of
 *  memory. */
json_t *output_json_text(const char *text);

/* ---- tables ---------------------------------------------------------------------------------- */

struct table;

enum table_align { TABLE_LEFT, TABLE_RIGHT };

struct table_column {
    const char *title;
    enum table_align align;
    bool shrinks; /**< its cells may be cut when the terminal is too narrow */
    /** Which columns are left out when that is not enough: 1 is the first to go, 0 stays. */
    unsigned leaves;
};

/** `columns` must live as long as the table. Returns 0 or DLX_E_NO_MEMORY. */
int table_new(struct table **ret, const struct table_column *columns, size_t n_columns);
struct table *table_free(struct table *t);

/** Add the next cell; rows are filled from left to right. Lack of memory shows in table_print(). */
void table_cell(struct table *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** Print with every column as wide as it must be; one whose cells are all empty is left out.
 *  `width`: cut cells of shrinking columns, and leave columns out, so that rows fit; a last line
 *  names what was left out. 0 for any width. Each line begins with `indent` spaces. Returns 0 or
 *  DLX_E_NO_MEMORY. */
int table_print(const struct table *t, FILE *file, unsigned indent, unsigned width);

/** Columns of the terminal that `file` writes to, 0 when it is none. */
unsigned output_width(FILE *file);

/** Lines of the terminal, likewise. */
unsigned output_height(FILE *file);

/** Is it a terminal on which lines can be rewritten? */
bool output_is_screen(FILE *file);

#endif
