/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_SAVE_H
#define CLI_SAVE_H

/** Tensors into .npy files, sets into .safetensors files. */

#include "cli/dtype.h"
#include "cli/error.h"
#include "cli/save_file.h"
#include <dlx/dlx.h>
#include <stdbool.h>
#include <stddef.h>

/** Check a file name that may hold one %d or %0Nd, any number of {seq} and {topic}, and "%%".
 *  Returns 0 or DLX_E_INVALID. */
int save_pattern_check(const char *pattern, struct cli_error *e);

/** The parts of a file's name. */
struct save_name {
    const char *pattern;
    uint64_t number;   /**< for %0Nd */
    uint64_t seq;      /**< for {seq} */
    const char *topic; /**< for {topic}, with '+' for '/', which no topic has */
    bool several; /**< there are more: without %0Nd and {seq} the number goes before the suffix */
};

/** The name of a file. "-" stays. Returns 0, DLX_E_INVALID or DLX_E_LIMIT. */
int save_path(const struct save_name *name, char *path, size_t size, struct cli_error *e);

/** Could files of two topics get the same name? */
bool save_pattern_mixes_topics(const char *pattern);

struct save_report {
    char dtype[DLX_DTYPE_NAME_SIZE]; /**< of .npy, like the next two */
    char descr[16];
    char shape[256];       /**< as stored, perhaps cut */
    bool exact;            /**< the file says the type */
    uint64_t size;         /**< bytes of the file */
    size_t lost_meta_size; /**< bytes of metadata that a .safetensors file cannot hold */
};

/**
 * Write a tensor to a file that appears when it is complete, or to the standard output ("-").
 * Returns 0; DLX_E_SHAPE, DLX_E_DEVICE, DLX_E_SYSTEM, DLX_E_NO_MEMORY with words.
 */
int save_tensor(const DLTensor *t, const char *path, struct save_report *ret_report,
                struct cli_error *e);

/** Whether this program can read a tensor, and how much it is. Returns 0, DLX_E_SHAPE,
 *  DLX_E_DEVICE. */
int save_look(const DLTensor *t, uint64_t *ret_n_items, uint64_t *ret_size, struct cli_error *e);

/** Set dtype, descr, shape and exact. */
struct npy_storage;
void save_report_storage(struct save_report *r, DLDataType dtype,
                         const struct npy_storage *storage);

/** Whether a file of that name, or pattern, is of a kind that can be written: .npy, .npz,
 *  .safetensors, or without a suffix, which is .npy. */
bool save_knows_suffix(const char *pattern);

/** Whether a file of that name, or pattern, is to be .npz. */
bool save_is_npz(const char *pattern);

/** Whether a file of that name, or pattern, is to be .safetensors. */
bool save_is_set(const char *pattern);

/**
 * Write all tensors of a message to a .safetensors file, likewise. Metadata that is no JSON object
 * of strings is left out. Returns as save_tensor(), and DLX_E_INVALID, DLX_E_LIMIT
 * (safetensors_header_make()).
 */
int save_set(const struct dlx_message *m, const char *path, struct save_report *ret_report,
             struct cli_error *e);

#endif
