/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/access.h"
#include "common/error.h"

#define OVERFLOW_UID 65534U

int dlxd_access_check(uid_t client_uid, uid_t daemon_uid)
{
    if (client_uid != OVERFLOW_UID && (client_uid == 0 || client_uid == daemon_uid))
        return 0;
    return dlx__fail(DLX_E_ACCESS, "uid %u may not use this daemon, which serves uid %u and root",
                     (unsigned)client_uid, (unsigned)daemon_uid);
}
