/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_SOURCE_INPUT_H
#define CLI_SOURCE_INPUT_H

/** An open file of a source, and the table of formats. Private to cli/source*.c. */

#include "cli/source_item.h"
#include <sys/uio.h>

struct input {
    const char *name;
    int fd; /**< -1: none is open */
    bool owned;
    bool regular;    /**< then `size` is known */
    uint64_t size;   /**< bytes from where it was opened to its end */
    uint64_t offset; /**< bytes read */
};

/** Open a file, "-" for the standard input. Returns 0 or DLX_E_SYSTEM with words. */
int input_open(struct input *in, const char *path, struct cli_error *e);
void input_close(struct input *in);

/** Read until `size` bytes or the end of the file, whichever comes first. Returns 0;
 *  DLX_E_INTERRUPTED; DLX_E_SYSTEM with words. */
int input_read(struct input *in, void *data, uint64_t size, uint64_t *ret_size,
               struct cli_error *e);

/** Read into several pieces of memory, one after the other, as input_read(). Changes `pieces`. */
int input_read_pieces(struct input *in, struct iovec *pieces, size_t n, uint64_t *ret_size,
                      struct cli_error *e);

struct source;

struct source_format {
    /** As source_next(), for the file that is open; 0 at its end. */
    int (*next)(struct source *s, struct source_item *item, struct cli_error *e);
    int (*read)(struct source *s, void *data, struct cli_error *e); /**< NULL: only sets */
    int (*read_set)(struct source *s, void *const *data, struct cli_error *e); /**< NULL: no sets */
};

extern const struct source_format source_npy, source_npz, source_safetensors;

/** One file of a joined source. */
struct joined_part {
    char name[JOINED_NAME_SIZE]; /**< of its tensors */
    char *file[1];
    struct source *source;
};

struct source {
    struct source_args args;
    struct joined_part *parts; /**< NULL: the files are read one after the other */
    size_t n_parts;
    struct input in;
    size_t next_file;
    const struct source_format *format; /**< NULL: no file is open */
    uint8_t prefix[NPY_PREFIX_SIZE];    /**< read to find out about the format, not consumed yet */
    size_t prefix_size;
    uint64_t item_size; /**< bytes of the current tensor */
    uint64_t n_items;   /**< tensors of this file so far, the current one included */
    struct npy_header npy;
    struct zip *zip;         /**< of .npz */
    char **npz_names;        /**< of its tensors, then NULL */
    struct safetensors *set; /**< of the current item */
    uint8_t *scratch;        /**< for data that must be rearranged */
    uint64_t scratch_size;
};

void source_npz_close(struct source *s);

/** As input_read(), with the bytes that were read ahead first. */
int source_take(struct source *s, void *data, uint64_t size, uint64_t *ret_size,
                struct cli_error *e);

/** Make `scratch` at least `size` bytes. Returns 0 or DLX_E_NO_MEMORY with words. */
int source_scratch(struct source *s, uint64_t size, struct cli_error *e);

/**
 * Words for data that ends early or goes on too long: what should be there, and what is.
 * Returns DLX_E_INVALID.
 */
int source_lies(struct source *s, uint64_t expected, uint64_t found, const char *what,
                struct cli_error *e);

#endif
