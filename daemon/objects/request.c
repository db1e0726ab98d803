/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/request.h"
#include "daemon/objects/offer.h"

void dlxd_request_init(struct dlxd_request *request)
{
    *request = (struct dlxd_request){.fd = -1};
}

int dlxd_request_begin(struct dlxd_client *client, uint32_t serial,
                       int (*step)(struct dlxd_client *client))
{
    client->request.step = step;
    client->request.serial = serial;
    return dlxd_request_continue(client);
}

int dlxd_request_continue(struct dlxd_client *client)
{
    int r = client->request.step(client);
    if (r != 1)
        dlxd_request_end(client);
    return r;
}

void dlxd_request_end(struct dlxd_client *client)
{
    dlxd_offers_deinit(&client->request.offers);
    dlx__close(client->request.fd);
    dlxd_request_init(&client->request);
}
