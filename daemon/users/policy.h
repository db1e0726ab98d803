/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_POLICY_H
#define DLXD_POLICY_H

/*
 * Who may do what: the one place that decides. It is asked when a publisher or a subscription is made, for each
 * publisher that is offered to a pattern, for each entry of a list, and for each drop.
 */

#include "daemon/users/rules.h"

struct dlxd_policy {
    /* NULL: the default, by which the daemon's user and root may do everything by the main socket, and
     * others what the rules say. Root of a container is uid 0, too: so by another socket, which
     * containers mount, the rules bind everybody. */
    bool (*may)(const struct dlxd_policy *policy, const struct dlxd_principal *who,
                enum dlxd_verb verb, const char *topic);
    uid_t uid;                             /* whom the daemon runs as */
    const struct dlxd_rules *rules_borrow; /* NULL: there are none */
};

/* Stands for everybody whom the kernel cannot name: it has no rights, whatever the policy. */
#define DLXD_OVERFLOW_UID 65534U

/* Root, or the daemon's own user, by the main socket. */
bool dlxd_policy_is_superuser(const struct dlxd_policy *policy, const struct dlxd_principal *who);
/* Is there anything that it may do? Returns 0, or DLX_E_ACCESS naming it. */
int dlxd_policy_admit(const struct dlxd_policy *policy, const struct dlxd_principal *who);

bool dlxd_policy_may(const struct dlxd_policy *policy, const struct dlxd_principal *who,
                     enum dlxd_verb verb, const char *topic);
/* The same as 0, or DLX_E_ACCESS naming who, what and the topic. The log says which rule decided: it
 * is not for the client. */
int dlxd_policy_check(const struct dlxd_policy *policy, const struct dlxd_principal *who,
                      enum dlxd_verb verb, const char *topic);

/*
 * May `reader` receive descriptors of GPU memory that a publisher of `whose` made? Such a descriptor
 * can hold up whoever has it, and lets it write to the memory: so only of the same user, or if a rule
 * lets both of them exchange such on this topic. No right of a superuser stands for that rule. Returns
 * 0, or DLX_E_ACCESS naming both and the topic. The log says which of them has no rule.
 */
int dlxd_policy_check_gpu(const struct dlxd_policy *policy, const struct dlxd_principal *reader,
                          const struct dlxd_principal *whose, const char *topic);

#endif
