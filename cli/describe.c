/* SPDX-License-Identifier: Apache-2.0 */

/* Infos, messages and tensors as JSON objects and as words. Keys are the names of the C structs. */

#include "cli/describe.h"
#include "cli/dtype.h"
#include "cli/output.h"
#include "cli/tensor.h"
#include "cli/value.h"
#include "cli/wait.h"
#include <assert.h>
#include <stdio.h>
#include <string.h>

static_assert(DLX_BEHIND_UNKNOWN == DLX_FIGURE_UNKNOWN && DLX_REFUSED_UNKNOWN == DLX_FIGURE_UNKNOWN,
              "one value says that a figure is unknown");

json_t *describe_figure(uint64_t figure)
{
    return figure == DLX_FIGURE_UNKNOWN ? json_null() : output_json_u64(figure);
}

json_t *describe_publisher(const struct dlx_publisher_info *i)
{
    return json_pack(
        "{s:o, s:o, s:I, s:I, s:o, s:I, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:s, s:I, s:b, s:o, "
        "s:o, s:o, s:o, s:o, s:o, s:b}",
        "topic", output_json_text(i->topic), "publisher", output_json_u64(i->publisher), "pid",
        (json_int_t)i->pid, "uid", (json_int_t)i->uid, "client_name",
        output_json_text(i->client_name), "n_subscribers", (json_int_t)i->n_subscribers,
        "published", output_json_u64(i->published), "published_bytes",
        output_json_u64(i->published_bytes), "arena_bytes", output_json_u64(i->arena_bytes),
        "control_bytes", output_json_u64(i->control_bytes), "n_arenas", (json_int_t)i->n_arenas,
        "depth", (json_int_t)i->depth, "history", (json_int_t)i->history, "on_full",
        i->on_full == DLX_ON_FULL_BLOCK ? "block" : "drop", "retain", (json_int_t)i->retain,
        "retained", (int)i->retained, "refused", describe_figure(i->refused), "former",
        output_json_u64(i->former), "copied", describe_figure(i->copied), "copied_bytes",
        describe_figure(i->copied_bytes), "blocked_ns", describe_figure(i->blocked_ns),
        "blocked_at_ns", describe_figure(i->blocked_at_ns), "for_everybody", (int)i->for_everybody);
}

json_t *describe_link(const struct dlx_link_info *i)
{
    return json_pack("{s:o, s:I, s:I, s:o, s:b, s:b, s:o, s:o, s:o, s:I, s:I, s:o, s:b, s:b, s:o, "
                     "s:b, s:I, s:o, s:o}",
                     "link", output_json_u64(i->link), "pid", (json_int_t)i->pid, "uid",
                     (json_int_t)i->uid, "client_name", output_json_text(i->client_name), "latest",
                     (int)(i->mode == DLX_MODE_LATEST), "reliable", (int)i->reliable, "taken",
                     output_json_u64(i->taken), "skipped", output_json_u64(i->skipped), "lost",
                     output_json_u64(i->lost), "n_held", (json_int_t)i->n_held, "max_held",
                     (json_int_t)i->max_held, "behind", describe_figure(i->behind), "blocks",
                     (int)i->blocks, "joining", (int)i->joining, "former_bytes",
                     output_json_u64(i->former_bytes), "is_publisher", (int)i->is_publisher,
                     "group", (json_int_t)i->group, "next_ns", output_json_u64(i->next_ns),
                     "held_ns", output_json_u64(i->held_ns));
}

json_t *describe_group(const struct dlx_group_info *i)
{
    return json_pack(
        "{s:o, s:o, s:I, s:o, s:I, s:I, s:I, s:I, s:b, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
        "s:o, s:o, s:I, s:b}",
        "topic", output_json_text(i->topic), "publisher", output_json_u64(i->publisher), "group",
        (json_int_t)i->group, "name", output_json_text(i->name), "uid", (json_int_t)i->uid,
        "n_workers", (json_int_t)i->n_workers, "max_attempts", (json_int_t)i->max_attempts,
        "lease_ns", (json_int_t)i->lease_ns, "declared", (int)i->declared, "gone", (int)i->gone,
        "waiting", output_json_u64(i->waiting), "in_flight", output_json_u64(i->in_flight), "done",
        output_json_u64(i->done), "redelivered", output_json_u64(i->redelivered), "dead",
        output_json_u64(i->dead), "lost", output_json_u64(i->lost), "oldest",
        output_json_u64(i->oldest), "oldest_ns", output_json_u64(i->oldest_ns), "client_name",
        output_json_text(i->client_name), "pid", (json_int_t)i->pid, "away", (int)i->away);
}

json_t *describe_claim(const struct dlx_claim_info *i)
{
    return json_pack("{s:o, s:o, s:I, s:I, s:o, s:I, s:o}", "seq", output_json_u64(i->seq), "link",
                     output_json_u64(i->link), "pid", (json_int_t)i->pid, "uid", (json_int_t)i->uid,
                     "client_name", output_json_text(i->client_name), "attempt",
                     (json_int_t)i->attempt, "published_ns", output_json_u64(i->published_ns));
}

const char *describe_pid(uint32_t pid, char text[DESCRIBE_PID_SIZE])
{
    if (pid == 0)
        (void)snprintf(text, DESCRIBE_PID_SIZE, "?");
    else
        (void)snprintf(text, DESCRIBE_PID_SIZE, "%u", pid);
    return text;
}

const char *describe_place(const struct dlx_client *client)
{
    static const char *const places[] = {"by --socket or DLX_SOCKET", "in $XDG_RUNTIME_DIR",
                                         "in /run/dlpackd", "in /tmp"};
    return places[dlx_client_daemon_place(client)];
}

json_t *describe_daemon(const struct dlx_client *client, const struct dlx_daemon_info *i)
{
    static const char *const scopes[] = {"unknown", "here", "elsewhere"};
    static const char *const places[] = {"named", "user", "system", "tmp"};
    return json_pack(
        "{s:o, s:o, s:s, s:o, s:I, s:s, s:[I,I], s:I, s:I, s:I, s:I, s:s, s:o, s:o, "
        "s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
        "version", output_json_text(i->version), "socket", output_json_text(i->socket), "place",
        places[dlx_client_daemon_place(client)], "refused_by",
        output_json_text(dlx_client_refused_by(client)), "pid", (json_int_t)i->pid, "pid_scope",
        scopes[i->pid_scope], "protocol", (json_int_t)i->protocol_major,
        (json_int_t)i->protocol_minor, "n_clients", (json_int_t)i->n_clients, "n_topics",
        (json_int_t)i->n_topics, "n_publishers", (json_int_t)i->n_publishers, "n_links",
        (json_int_t)i->n_links, "memory", i->memory, "shared_bytes",
        output_json_u64(i->shared_bytes), "former_bytes", output_json_u64(i->former_bytes),
        "uptime_ns", output_json_u64(i->uptime_ns), "longest_turn_ns",
        output_json_u64(i->longest_turn_ns), "lack", output_json_text(i->lack), "refused_access",
        output_json_u64(i->refused_access), "refused_limit", output_json_u64(i->refused_limit),
        "refused_qos", output_json_u64(i->refused_qos), "refused_other",
        output_json_u64(i->refused_other), "reclaimed", output_json_u64(i->reclaimed));
}

static json_t *tensor_values(const DLTensor *t, uint64_t n_items, uint64_t n_values)
{
    json_t *array = json_array();
    uint64_t lanes = t->dtype.lanes, n = n_values / lanes < n_items ? n_values : n_items * lanes;
    bool compact = tensor_is_compact(t);
    for (uint64_t i = 0; array && i < n; i++) {
        json_t *v = compact ? value_json(t->dtype, tensor_data(t), i)
                            : value_json(t->dtype, tensor_item(t, i / lanes), i % lanes);
        array = output_json_append(array, v);
    }
    return array;
}

/* Returns NULL for a tensor in memory of the host. */
static const char *gpu_name(const DLTensor *t)
{
    switch (t->device.device_type) {
    case kDLCUDA:
        return "cuda";
    case kDLROCM:
        return "rocm";
    default:
        return NULL;
    }
}

json_t *describe_tensor(const DLTensor *t, uint64_t n_values)
{
    char dtype[DLX_DTYPE_NAME_SIZE];
    uint64_t n_items = 0, size = 0;
    if (!tensor_size(t, &n_items, &size))
        return json_pack("{s:s}", "error", "its size overflows");
    (void)dlx_dtype_name(t->dtype, dtype);
    json_t *shape = json_array();
    for (int32_t i = 0; i < t->ndim; i++)
        shape = output_json_append(shape, json_integer(t->shape[i]));
    json_t *json = json_pack("{s:s, s:o, s:o}", "dtype", dtype, "shape", shape, "nbytes",
                             output_json_u64(size));
    if (gpu_name(t))
        json = output_json_put(json, "device", json_string(gpu_name(t)));
    if (n_values > 0 && tensor_is_readable(t))
        json = output_json_put(json, "values", tensor_values(t, n_items, n_values));
    return json;
}

/* Adds metadata as text if it is UTF-8, as JSON is, and in hexadecimal otherwise. */
static json_t *put_meta(json_t *json, const struct dlx_message *m)
{
    size_t size = 0;
    const void *meta = dlx_message_meta(m, &size);
    json_t *text = meta ? json_stringn(meta, size) : NULL;
    if (!meta)
        return json;
    return text ? output_json_put(json, "meta", text)
                : output_json_put(json, "meta_hex", output_json_hex(meta, size));
}

json_t *describe_message(const struct dlx_message *m, uint64_t n_values)
{
    json_t *tensors = json_array();
    for (uint32_t i = 0; i < dlx_message_n_tensors(m); i++) {
        json_t *tensor = describe_tensor(dlx_message_tensor_peek(m, i), n_values);
        if (dlx_message_tensor_name(m, i)[0])
            tensor =
                output_json_put(tensor, "name", output_json_text(dlx_message_tensor_name(m, i)));
        tensors = output_json_append(tensors, tensor);
    }
    size_t meta_size = 0;
    (void)dlx_message_meta(m, &meta_size);
    json_t *json = json_pack(
        "{s:o, s:o, s:o, s:o, s:I, s:o, s:o, s:o}", "topic", output_json_text(dlx_message_topic(m)),
        "publisher", output_json_u64(dlx_message_publisher(m)), "seq",
        output_json_u64(dlx_message_seq(m)), "monotonic_ns",
        output_json_u64(dlx_message_monotonic_ns(m)), "age_ns", (json_int_t)describe_age(m), "gap",
        output_json_u64(dlx_message_gap(m)), "meta_bytes", output_json_u64(meta_size), "tensors",
        tensors);
    return put_meta(json, m);
}

void describe_tensor_text(const DLTensor *t, char text[DESCRIBE_SIZE])
{
    char dtype[DLX_DTYPE_NAME_SIZE], shape[SHAPE_NAME_SIZE], bytes[HUMAN_SIZE];
    uint64_t n_items = 0, size = 0;
    if (!tensor_size(t, &n_items, &size)) {
        (void)snprintf(text, DESCRIBE_SIZE, "(its size overflows)");
        return;
    }
    (void)dlx_dtype_name(t->dtype, dtype);
    shape_name(t->shape, t->ndim, shape);
    human_bytes(size, bytes);
    (void)snprintf(text, DESCRIBE_SIZE, "%s %s  %s%s%s", dtype, shape, bytes,
                   gpu_name(t) ? "  on " : "", gpu_name(t) ? gpu_name(t) : "");
}

bool describe_is_set(const struct dlx_message *m)
{
    return dlx_message_n_tensors(m) > 1 || dlx_message_tensor_name(m, 0)[0] ||
           dlx_message_meta(m, NULL) != NULL;
}

void describe_set_text(const struct dlx_message *m, char text[DESCRIBE_SIZE])
{
    char bytes[HUMAN_SIZE], meta[HUMAN_SIZE];
    uint32_t n = dlx_message_n_tensors(m);
    uint64_t sum = 0, n_items, size;
    size_t meta_size = 0;
    for (uint32_t i = 0; i < n; i++)
        if (tensor_size(dlx_message_tensor_peek(m, i), &n_items, &size))
            sum += size;
    (void)dlx_message_meta(m, &meta_size);
    human_bytes(sum, bytes);
    human_bytes(meta_size, meta);
    (void)snprintf(text, DESCRIBE_SIZE, "%u tensor%s, %s%s%s%s", n, n == 1 ? "" : "s", bytes,
                   meta_size ? ", " : "", meta_size ? meta : "", meta_size ? " of metadata" : "");
}

void describe_item_text(const struct dlx_message *m, uint32_t i, char text[DESCRIBE_ITEM_SIZE])
{
    output_printable(dlx_message_tensor_name(m, i), text, DESCRIBE_ITEM_SIZE - DESCRIBE_SIZE - 2);
    size_t used = strlen(text);
    if (used > 0) {
        memcpy(text + used, "  ", 2);
        used += 2;
    }
    describe_tensor_text(dlx_message_tensor_peek(m, i), text + used);
}

bool describe_meta_text(const struct dlx_message *m, char text[DESCRIBE_META_SIZE])
{
    size_t size = 0;
    const void *meta = dlx_message_meta(m, &size);
    if (!meta || size == 0)
        return false;
    size_t shown = output_escaped(meta, size < DESCRIBE_META ? size : DESCRIBE_META, text,
                                  4 * (size_t)DESCRIBE_META + 1);
    if (shown < size)
        (void)snprintf(text + strlen(text), DESCRIBE_META_MORE, "... (the first %zu of %zu bytes)",
                       shown, size);
    return true;
}

int64_t describe_age(const struct dlx_message *m)
{
    return output_age(wait_now(), dlx_message_monotonic_ns(m));
}
