/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_SAFETENSORS_H
#define CLI_SAFETENSORS_H

/**
 * The .safetensors format of Hugging Face: one set of named tensors a file. Pure functions over
 * memory; nothing in a header is trusted.
 *
 *     header size N (u64, little-endian)
 *     {"__metadata__":{"k":"v"},"name":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},...}
 *     spaces, so that N is a multiple of 8     (both together N bytes)
 *     data: row-major, little-endian, packed; the tensors cover all of it once
 *
 * Refusals and output beyond the format's README follow its reference implementation
 * (safetensors/src/tensor.rs).
 */

#include "cli/error.h"
#include <dlpack/dlpack.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** The size of the header, before the header. */
#define SAFETENSORS_PREFIX_SIZE 8
/** Of "__metadata__", which holds strings only: a JSON array of the keys whose values are JSON
 * text. */
#define SAFETENSORS_JSON_KEY "dlx.json"
/** Longest header that is accepted, the reference implementation's limit. */
#define SAFETENSORS_HEADER_SIZE_MAX 100000000
/** A file, or the rest of one, whose size is not known. */
#define SAFETENSORS_SIZE_UNKNOWN UINT64_MAX
/** Most JSON values in a header, which bounds the memory that parsing one takes. DLX_TENSORS_MAX
 *  tensors of DLX_NDIM_MAX dimensions have fewer. */
#define SAFETENSORS_VALUES_MAX 5000000
/** Room for "tensor_<i>". */
#define SAFETENSORS_MADE_NAME_SIZE 24

struct safetensors_tensor {
    const char *name; /**< UTF-8 without NUL */
    DLDataType dtype;
    int32_t ndim;
    const int64_t *shape;
    uint64_t offset; /**< from the beginning of the data */
    uint64_t size;   /**< bytes */
    uint32_t index;  /**< its place before they were brought into this order */
};

/** A header that was accepted. */
struct safetensors {
    struct safetensors_tensor *tensors; /**< in the order of their data, without holes */
    uint32_t n_tensors;                 /**< 1 to DLX_TENSORS_MAX */
    uint64_t data_size;                 /**< bytes of all of them, at most 2^63 - 1 */
    char *meta;                         /**< "__metadata__" as JSON text; NULL: there is none */
    size_t meta_size;                   /**< at most DLX_META_MAX */
    json_t *json;                       /**< owns the names */
    int64_t *shapes;                    /**< owns the shapes */
};

/** Whether these first bytes look like a .safetensors file: a size that can be, and then a '{'. */
bool safetensors_is(const uint8_t *data, size_t size);

/**
 * The size of the header, out of the first SAFETENSORS_PREFIX_SIZE bytes; `size` is how many there
 * are and `file_size` what the whole file has, or SAFETENSORS_SIZE_UNKNOWN. Returns 0;
 * DLX_E_INVALID (too short; longer than the file), DLX_E_LIMIT.
 */
int safetensors_header_size(const uint8_t *data, size_t size, uint64_t file_size, size_t *ret_size,
                            struct cli_error *e);

/**
 * Parse the header, the `size` bytes after the prefix. `data_size` is what the file has behind it,
 * or SAFETENSORS_SIZE_UNKNOWN. Returns 0; DLX_E_INVALID (malformed; offsets that do not fit),
 * DLX_E_SHAPE (a data type or shape that cannot be carried), DLX_E_LIMIT (more than a message can
 * have), DLX_E_NO_MEMORY. The words name the tensor.
 */
int safetensors_parse(struct safetensors **ret, const char *header, size_t size, uint64_t data_size,
                      struct cli_error *e);
struct safetensors *safetensors_free(struct safetensors *s);

/** The types that the format has a name for, with whole bytes an item. */
struct safetensors_dtype {
    const char *name;
    uint8_t code, bits; /* of DLPack; one lane */
};
extern const struct safetensors_dtype safetensors_dtypes[];
extern const size_t safetensors_n_dtypes;

/** Words with the name of a tensor, which another program may have chosen, cut to what fits. */
#define SAFETENSORS_LABEL_SIZE 200
void safetensors_label(const char *name, char label[SAFETENSORS_LABEL_SIZE]);

/** A prefix and header to be written. */
struct safetensors_header {
    uint8_t *data;
    size_t size;                               /**< a multiple of 8 */
    bool has_meta;                             /**< the metadata is in it */
    char (*names)[SAFETENSORS_MADE_NAME_SIZE]; /**< owns the names that were made */
};

/**
 * Make the header of a file for `n` tensors, 1 to DLX_TENSORS_MAX. Sorts the tensors into the order
 * of their data, the reference implementation's: by data type, wider ones first, so that each is
 * aligned, then by name; `index` is the former place of each. Sets their offset and size. A tensor
 * without a name (NULL or "") is called "tensor_<index>"; that name lives as long as the header.
 *
 * `meta` becomes "__metadata__" if it is the text of a JSON object, else it is left out. Values
 * that are no strings become JSON text, and SAFETENSORS_JSON_KEY names them; reading gives them
 * back.
 *
 * Returns 0; DLX_E_INVALID (a name that is no UTF-8, is there twice, or is "__metadata__"),
 * DLX_E_SHAPE (a data type that the format has no name for, a size that overflows), DLX_E_LIMIT
 * (the header's size), DLX_E_NO_MEMORY. The words name the tensor.
 */
int safetensors_header_make(struct safetensors_tensor *tensors, uint32_t n, const void *meta,
                            size_t meta_size, struct safetensors_header *ret_header,
                            struct cli_error *e);
void safetensors_header_free(struct safetensors_header *header);

#endif
