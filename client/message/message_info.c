/* SPDX-License-Identifier: Apache-2.0 */

/* What a received message says of itself: names, numbers, metadata. */

#include "client/gpu/gpu.h"
#include "client/message/message_table.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- names --------------------------------------------------------------------------------- */

const char *dlx_message_name(const struct dlx_message *m, uint32_t i)
{
    if (!m)
        return NULL;
    dlx__message_check(m);
    if (i >= m->n_tensors)
        return NULL;
    return m->table ? m->table->text + m->table->names[i] : "";
}

/* Any number of threads may be here at once: one of their indexes stays. */
static int make_index(struct dlx_message *m, struct dlx_nametable **ret)
{
    struct dlx_nametable *index, *other = NULL;
    int r = dlx__nametable_new(&index, m->n_tensors);
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        const char *name = m->table->text + m->table->names[i];
        uint32_t size = (uint32_t)strlen(name);
        if (size > 0)
            (void)dlx__nametable_add(index, name, size, dlx__nametable_hash(index, name, size), i);
    }
    if (!atomic_compare_exchange_strong_explicit(&m->table->index, &other, index,
                                                 memory_order_acq_rel, memory_order_acquire)) {
        dlx__nametable_free(index);
        index = other;
    }
    *ret = index;
    return 0;
}

/* With the names that there are, as many as there is room for. */
static int fail_name(const struct dlx_message *m, const char *name)
{
    char names[200] = "", all[240];
    size_t used = 0;
    uint32_t i = 0;
    for (; i < m->n_tensors; i++) {
        const char *one = dlx_message_name(m, i);
        size_t size = one ? strlen(one) + 4 : 0; /* with quotes and a comma */
        if (size <= 4 || size >= sizeof names - used)
            break;
        used +=
            (size_t)snprintf(names + used, sizeof names - used, "%s\"%s\"", i > 0 ? ", " : "", one);
    }
    if (used == 0)
        (void)snprintf(all, sizeof all, "its %u tensors have no names%s", m->n_tensors,
                       m->table && m->n_tensors > 0 && *dlx_message_name(m, 0) ? " that fit here"
                                                                               : "");
    else
        (void)snprintf(all, sizeof all, "it has %s%s", names,
                       i < m->n_tensors ? " and others" : "");
    return dlx__fail(DLX_E_NOT_FOUND, "topic %s, message %" PRIu64 " has no tensor \"%.200s\": %s",
                     m->link->topic, m->seq, name, all);
}

int dlx_message_find(struct dlx_message *m, const char *name, uint32_t *ret_i)
{
    dlx__error_clear();
    if (!m || !name || !ret_i)
        return DLX_NAME_NULL(0, "dlx_message_find", {"message", m}, {"name", name},
                             {"ret_i", ret_i});
    if (dlx__forked(m->link->generation))
        return dlx__fail_forked(m->link->generation);
    uint32_t found = DLX_NAMETABLE_NONE;
    size_t size = strnlen(name, DLX_SHM_NAME_MAX + 1);
    if (m->table && size > 0 && size <= DLX_SHM_NAME_MAX) {
        struct dlx_nametable *index = atomic_load_explicit(&m->table->index, memory_order_acquire);
        int r = index ? 0 : make_index(m, &index);
        if (r < 0)
            return r;
        found = dlx__nametable_find(index, name, (uint32_t)size);
    }
    if (found == DLX_NAMETABLE_NONE)
        return fail_name(m, name);
    *ret_i = found;
    return 0;
}

/* ---- what is known of it ------------------------------------------------------------------- */

uint32_t dlx_message_n_tensors(const struct dlx_message *m)
{
    dlx__message_check(m);
    return m->n_tensors;
}

uint64_t dlx_message_seq(const struct dlx_message *m)
{
    dlx__message_check(m);
    return m->seq;
}

uint64_t dlx_message_gap(const struct dlx_message *m)
{
    dlx__message_check(m);
    return m->gap;
}

uint64_t dlx_message_monotonic_ns(const struct dlx_message *m)
{
    dlx__message_check(m);
    return m->monotonic_ns;
}

const void *dlx_message_meta(const struct dlx_message *m, size_t *ret_size)
{
    dlx__message_check(m);
    uint32_t size = m->table ? m->table->meta_size : 0;
    if (ret_size)
        *ret_size = size;
    return size > 0 ? m->table->meta : NULL;
}

const char *dlx_message_topic(const struct dlx_message *m)
{
    dlx__message_check(m);
    return m->link->topic;
}

uint64_t dlx_message_publisher(const struct dlx_message *m)
{
    dlx__message_check(m);
    return m->link->publisher;
}

int dlx_message_describe(struct dlx_message *m, uint32_t i, DLManagedTensorVersioned *ret)
{
    dlx__error_clear();
    if (!m || !ret)
        return DLX_NAME_NULL(0, "dlx_message_describe", {"message", m}, {"ret", ret});
    if (dlx__forked(m->link->generation))
        return dlx__fail_forked(m->link->generation);
    if (i >= m->n_tensors)
        return dlx__fail(DLX_E_INVALID, "tensor %u of a message of %u", i, m->n_tensors);
    DLTensor tensor = m->tensors[i];
    int r = m->gpu ? dlx__gpu_receiver.open(m, i, &tensor) : 0;
    if (r < 0)
        return r;
    tensor.data = m->tensors[i].data; /* on a GPU: it may not be ready */
    *ret = (DLManagedTensorVersioned){
        .version = dlx__message_version(m->flags[i]), .flags = m->flags[i], .dl_tensor = tensor};
    return 0;
}
