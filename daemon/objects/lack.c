/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/lack.h"
#include "daemon/base/log.h"
#include <stdio.h>

#define WAIT_NS     UINT64_C(20000000)
#define WAIT_MAX_NS UINT64_C(1000000000)

void dlxd_lack_begin(struct dlxd_subscription *subscription)
{
    struct dlxd_lack *lack = &subscription->broker->lack;
    uint64_t now = dlx__now_ns();
    bool is_first = subscription->lack_wait_ns == 0;
    (void)snprintf(lack->text, sizeof lack->text, "%s", dlx__error_message());
    if (now < subscription->lack_until_ns)
        return;
    subscription->lack_wait_ns =
        is_first ? WAIT_NS : DLX_MIN(2 * subscription->lack_wait_ns, WAIT_MAX_NS);
    subscription->lack_until_ns = now + subscription->lack_wait_ns;
    if (!is_first || lack->n_waiting++ > 0)
        return;
    lack->since_ns = now;
    dlxd_log(DLXD_LOG_WARNING,
             "subscription to %s of %s (pid %d), and perhaps others, wait for links, which dlpackd "
             "cannot make: %s; it tries again, at least every second",
             subscription->topic_name, subscription->client->name, (int)subscription->client->pid,
             lack->text);
}

void dlxd_lack_end(struct dlxd_subscription *subscription)
{
    struct dlxd_lack *lack = &subscription->broker->lack;
    if (subscription->lack_wait_ns == 0)
        return;
    subscription->lack_wait_ns = subscription->lack_until_ns = 0;
    if (--lack->n_waiting > 0)
        return;
    dlxd_log(DLXD_LOG_NOTICE,
             "no subscription waits any more for links that dlpackd could not make: %.1f s",
             (double)(dlx__now_ns() - lack->since_ns) / 1e9);
    lack->text[0] = '\0';
}
