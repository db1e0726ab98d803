/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/gpu/origin.h"
#include "common/error.h"
#include <assert.h>

void dlxd_gpu_origins_init(struct dlxd_gpu_origins *origins)
{
    dlxd_idmap_init(&origins->by_origin);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(origins->lists); i++)
        dlxd_list_init(&origins->lists[i]);
    origins->n_leaving = 0;
}

static void free_origin(struct dlxd_gpu_origins *origins, struct dlxd_gpu_origin *origin)
{
    assert(dlxd_list_empty(&origin->publishers));
    origins->n_leaving -= origin->state == DLXD_GPU_LEAVING;
    dlxd_list_remove(&origin->node);
    dlxd_idmap_remove(&origins->by_origin, &origin->by_origin);
    dlxd_charge_deinit(&origin->bytes);
    free(origin);
}

void dlxd_gpu_origins_deinit(struct dlxd_gpu_origins *origins)
{
    dlxd_gpu_origins_reset(origins);
    assert(dlxd_list_empty(&origins->lists[DLXD_GPU_UNTOLD]));
    dlxd_idmap_deinit(&origins->by_origin);
}

static void origin_set_state(struct dlxd_gpu_origins *origins, struct dlxd_gpu_origin *origin,
                             enum dlxd_gpu_origin_state state)
{
    origins->n_leaving -= origin->state == DLXD_GPU_LEAVING;
    origins->n_leaving += state == DLXD_GPU_LEAVING;
    origin->state = state;
    dlxd_list_remove(&origin->node);
    dlxd_list_push_back(&origins->lists[state], &origin->node);
}

/* The entries of one id share a bucket; there is one for each user that claims the id. */
struct dlxd_gpu_origin *dlxd_gpu_origins_find(const struct dlxd_gpu_origins *origins,
                                              struct dlxd_gpu_whose whose)
{
    for (struct dlxd_idmap_node *node = dlxd_idmap_find(&origins->by_origin, whose.origin); node;
         node = node->next) {
        struct dlxd_gpu_origin *origin = dlxd_container_of(node, struct dlxd_gpu_origin, by_origin);
        if (node->id == whose.origin && origin->user == whose.user)
            return origin;
    }
    return NULL;
}

int dlxd_gpu_origins_join(struct dlxd_gpu_origins *origins, struct dlxd_gpu_member *member,
                          struct dlxd_gpu_whose whose, struct dlxd_user *payer)
{
    if (member->origin)
        return 0;
    struct dlxd_gpu_origin *origin = dlxd_gpu_origins_find(origins, whose);
    if (!origin) {
        origin = calloc(1, sizeof *origin);
        if (!origin)
            return dlx__fail(DLX_E_NO_MEMORY, "out of memory for what the GPU keeper holds");
        origin->user = whose.user;
        dlxd_charge_restore(&origin->bytes, payer, DLXD_GPU_BYTES, 0);
        dlxd_list_init(&origin->publishers);
        dlxd_list_init(&origin->node);
        dlxd_idmap_add(&origins->by_origin, &origin->by_origin, whose.origin);
        origin_set_state(origins, origin, DLXD_GPU_UNTOLD);
    } else if (origin->state == DLXD_GPU_LEAVING) {
        origin_set_state(origins, origin, DLXD_GPU_TOLD); /* the keeper was not told otherwise */
    }
    member->origin = origin;
    dlxd_list_push_back(&origin->publishers, &member->node);
    return 0;
}

void dlxd_gpu_origins_leave(struct dlxd_gpu_origins *origins, struct dlxd_gpu_member *member)
{
    struct dlxd_gpu_origin *origin = member->origin;
    if (!origin)
        return;
    dlxd_list_remove(&member->node);
    member->origin = NULL;
    if (!dlxd_list_empty(&origin->publishers))
        return;
    if (origin->state == DLXD_GPU_TOLD)
        origin_set_state(origins, origin, DLXD_GPU_LEAVING);
    else
        free_origin(origins, origin);
}

struct dlxd_gpu_origin *dlxd_gpu_origins_first(const struct dlxd_gpu_origins *origins,
                                               enum dlxd_gpu_origin_state state)
{
    const struct dlxd_list *list = &origins->lists[state];
    return dlxd_list_empty(list) ? NULL
                                 : dlxd_container_of(list->next, struct dlxd_gpu_origin, node);
}

void dlxd_gpu_origins_told(struct dlxd_gpu_origins *origins, struct dlxd_gpu_origin *origin)
{
    if (origin->state == DLXD_GPU_LEAVING)
        free_origin(origins, origin);
    else
        origin_set_state(origins, origin, DLXD_GPU_TOLD);
}

void dlxd_gpu_origins_reset(struct dlxd_gpu_origins *origins)
{
    dlx_for_each (it, &origins->lists[DLXD_GPU_LEAVING])
        free_origin(origins, dlxd_container_of(it, struct dlxd_gpu_origin, node));
    dlx_for_each (it, &origins->lists[DLXD_GPU_TOLD]) {
        struct dlxd_gpu_origin *origin = dlxd_container_of(it, struct dlxd_gpu_origin, node);
        dlxd_charge_set(&origin->bytes, 0); /* the next keeper says what it has */
        origin_set_state(origins, origin, DLXD_GPU_UNTOLD);
    }
}
