/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/user.h"
#include "tests/harness/stream.h"
#include <grp.h>

bool dlx_test_user_may(void)
{
    if (geteuid() == 0)
        return true;
    puts("SKIP: needs root to become another user");
    return false;
}

void dlx_test_user_become(uid_t uid)
{
    if (chdir(dlx_test_stream_daemon.dir) < 0)
        _exit(100);
    (void)snprintf(dlx_test_stream_daemon.path, sizeof dlx_test_stream_daemon.path, "s");
    if (uid != 0 && (setgroups(0, NULL) < 0 || setgid(uid) < 0 || setuid(uid) < 0))
        _exit(100);
}
