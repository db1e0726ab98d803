/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/users/share.h"
#include "common/error.h"
#include "daemon/users/user.h"

static struct dlxd_share *share_find(const struct dlxd_list *shares, const struct dlxd_user *user)
{
    for (struct dlxd_list *it = shares->next; it != shares; it = it->next) {
        struct dlxd_share *share = dlxd_container_of(it, struct dlxd_share, node);
        if (share->user == user)
            return share;
    }
    return NULL;
}

uint32_t dlxd_share_of(const struct dlxd_list *shares, const struct dlxd_user *user)
{
    const struct dlxd_share *share = share_find(shares, user);
    return share ? share->n : 0;
}

struct dlxd_share *dlxd_share_take(struct dlxd_list *shares, struct dlxd_user *user)
{
    struct dlxd_share *share = share_find(shares, user);
    if (!share) {
        share = calloc(1, sizeof *share);
        if (!share) {
            (void)dlx__fail(DLX_E_NO_MEMORY, "out of memory for a share of uid %u",
                            (unsigned)user->uid);
            return NULL;
        }
        share->user = dlxd_user_ref(user);
        dlxd_list_push_back(shares, &share->node);
    }
    share->n++;
    return share;
}

struct dlxd_share *dlxd_share_put(struct dlxd_share *share)
{
    if (share && --share->n == 0) {
        dlxd_list_remove(&share->node);
        dlxd_user_unref(share->user);
        free(share);
    }
    return NULL;
}
