/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/drain.h"
#include "daemon/base/worker.h"
#include "daemon/users/share.h"

struct dlxd_drain *dlxd_drain_new(uint64_t link, struct dlxd_workers *workers, uint32_t max_held)
{
    struct dlxd_drain *drain = calloc(1, sizeof *drain);
    if (drain) {
        drain->link = link;
        drain->workers = workers;
        drain->page_fd = -1;
        drain->max_held = max_held;
        dlxd_list_init(&drain->cut);
    }
    return drain;
}

struct dlxd_drain *dlxd_drain_free(struct dlxd_drain *drain)
{
    if (drain) {
        (void)dlxd_workers_close(drain->workers, drain->links_charge.user, drain->page_fd);
        (void)dlxd_share_put(drain->share);
        dlxd_charge_deinit(&drain->links_charge);
        dlxd_charge_deinit(&drain->bytes_charge);
        free(drain);
    }
    return NULL;
}
