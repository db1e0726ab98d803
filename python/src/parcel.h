/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXPY_PARCEL_H
#define DLXPY_PARCEL_H

/* A message to be published, as libdlx takes it: one tensor, or a set, with metadata. */

#include "source.h"

struct dlxpy_parcel {
    uint32_t n;
    bool is_set;
    struct dlxpy_source *sources; /* n; &first if there is one */
    struct dlx_item *items;       /* n, of a set */
    PyObject *names;              /* tuple that keeps the names, of a set with names */
    PyObject *meta;               /* bytes; NULL: none */
    struct dlxpy_source first;
};

/* An empty parcel, to be unpacked in any case. The caller does not move it. */
void dlxpy_parcel_init(struct dlxpy_parcel *parcel);

/* Sets the metadata from `meta` of publish(); NULL and None are none. Returns 0, or -1 with an
 * exception. */
int dlxpy_parcel_add_meta(struct dlxpy_parcel *parcel, PyObject *meta);

/* Pack the message argument of publish(). Returns 0, or -1 with an exception. */
int dlxpy_parcel_pack(struct dlxpy_parcel *parcel, PyObject *object,
                      const struct dlxpy_sender *sender);

/* Can a message have `n` tensors? Returns 0, or -1 with an exception. */
int dlxpy_parcel_check_size(Py_ssize_t n);

/* Let go of everything. `spent`: libdlx has taken its tensors. */
void dlxpy_parcel_unpack(struct dlxpy_parcel *parcel, bool spent);

/* The key and value, borrowed, of an item of a mapping's items(). Returns 0, or -1 with TypeError.
 */
int dlxpy_pair(PyObject *item, PyObject **ret_key, PyObject **ret_value);

/* Is there a tensor on a GPU, which libdlx waits for? */
bool dlxpy_parcel_has_gpu(const struct dlxpy_parcel *parcel);

/* Tensors that libdlx has to copy. */
uint32_t dlxpy_parcel_n_copied(const struct dlxpy_parcel *parcel);

/* Bytes of such tensors, roughly; of each no more than about `most` are counted. */
size_t dlxpy_parcel_copied_bytes(const struct dlxpy_parcel *parcel, size_t most);

#endif
