/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_DESCRIBE_H
#define CLI_DESCRIBE_H

/** The public API's structs as JSON, and tensors in words. Each returns NULL when out of memory. */

#include <dlx/dlx.h>
#include <jansson.h>

json_t *describe_publisher(const struct dlx_publisher_info *info);
json_t *describe_link(const struct dlx_link_info *info);
json_t *describe_group(const struct dlx_group_info *info);
json_t *describe_claim(const struct dlx_claim_info *info);
/** A figure; null if the daemon is too old to report it: DLX_FIGURE_UNKNOWN and its kin. */
json_t *describe_figure(uint64_t figure);
/** The daemon of this connection, and how it was found. */
json_t *describe_daemon(const struct dlx_client *client, const struct dlx_daemon_info *info);
const char *describe_place(const struct dlx_client *client);

/** The number, or "?": 0, of a process that the daemon cannot see. Returns `text`. */
#define DESCRIBE_PID_SIZE 16
const char *describe_pid(uint32_t pid, char text[DESCRIBE_PID_SIZE]);

/** dtype, shape, bytes, "device" of one on a GPU; with `n_values` > 0 the first values. */
json_t *describe_tensor(const DLTensor *tensor, uint64_t n_values);

/** seq, publisher, monotonic_ns, age_ns, gap, metadata ("meta" if it is text, else "meta_hex"), and
 *  the tensors as above. */
json_t *describe_message(const struct dlx_message *m, uint64_t n_values);

/** "uint8 (1080, 1920, 3)  5.93 MiB", and "  on cuda" where it is on a GPU. `text` should have room
 * for DESCRIBE_SIZE. */
#define DESCRIBE_SIZE 1700
void describe_tensor_text(const DLTensor *tensor, char text[DESCRIBE_SIZE]);

/** Tensors of a set that text shows; the rest is counted. */
#define DESCRIBE_TENSORS 16

/** Is the message a set: several tensors, a name or metadata? */
bool describe_is_set(const struct dlx_message *m);

/** "3 tensors, 1.50 MiB, 40 B of metadata". */
void describe_set_text(const struct dlx_message *m, char text[DESCRIBE_SIZE]);

/** "layer.0  float32 (2, 3)  24 B": tensor `i` of a set, its name safe for a terminal. */
#define DESCRIBE_ITEM_SIZE (DESCRIBE_SIZE + 258)
void describe_item_text(const struct dlx_message *m, uint32_t i, char text[DESCRIBE_ITEM_SIZE]);

/** The metadata, escaped. If it is long, its beginning, and how much that is, such as
 *  {"frame": 7, "exp... (the first 200 of 380 bytes). Returns false when there is none. */
#define DESCRIBE_META      200U
#define DESCRIBE_META_MORE 80
#define DESCRIBE_META_SIZE (4 * DESCRIBE_META + DESCRIBE_META_MORE)
bool describe_meta_text(const struct dlx_message *m, char text[DESCRIBE_META_SIZE]);

/** Nanoseconds since the message was published. */
int64_t describe_age(const struct dlx_message *m);

#endif
