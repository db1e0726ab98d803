/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_POLICY_H
#define DLXD_POLICY_H

/*
 * Who may do what: the one place that decides. It is asked when a publisher or a subscription is made, for each
 * publisher that is offered to a pattern, for each entry of a list, and for each drop.
 */

#include "daemon/users/principal.h"

enum dlxd_verb {
    DLXD_MAY_PUBLISH,
    DLXD_MAY_SUBSCRIBE,
    DLXD_MAY_OBSERVE, /* see publishers and links in lists */
    DLXD_MAY_BLOCK,   /* make publishers wait: a reliable subscription */
    DLXD_MAY_DROP,    /* what others retain; its own everybody may */
    DLXD_N_VERBS,
};

struct dlxd_policy {
    /* NULL: the default, by which the daemon's user, root and `allowed` may do everything, and
     * others nothing. */
    bool (*may)(const struct dlxd_policy *policy, const struct dlxd_principal *who,
                enum dlxd_verb verb, const char *topic);
    uid_t uid; /* whom the daemon runs as */
    const uid_t *allowed_borrow;
    size_t n_allowed;
};

/* Stands for everybody whom the kernel cannot name: it has no rights, whatever the policy. */
#define DLXD_OVERFLOW_UID 65534U

/* Is there anything that it may do? Returns 0, or DLX_E_ACCESS naming it. */
int dlxd_policy_admit(const struct dlxd_policy *policy, const struct dlxd_principal *who);

bool dlxd_policy_may(const struct dlxd_policy *policy, const struct dlxd_principal *who,
                     enum dlxd_verb verb, const char *topic);
/* The same as 0, or DLX_E_ACCESS naming who, what and the topic. */
int dlxd_policy_check(const struct dlxd_policy *policy, const struct dlxd_principal *who,
                      enum dlxd_verb verb, const char *topic);

#endif
