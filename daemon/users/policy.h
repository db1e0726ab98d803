/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_POLICY_H
#define DLXD_POLICY_H

/* Who may do what: the only place that decides. The daemon asks it when a publisher or subscription
 * is made, for each publisher offered to a pattern, for each list entry, and for each drop. */

#include "daemon/users/rules.h"

struct dlxd_policy {
    /* NULL: the default policy. On the main socket, the daemon's user and root may do everything,
     * and others what the rules allow. On other sockets, which containers mount, the rules apply to
     * everybody, because root of a container is uid 0, too. */
    bool (*may)(const struct dlxd_policy *policy, const struct dlxd_principal *who,
                enum dlxd_verb verb, const char *topic);
    uid_t uid;                             /* the daemon's user */
    const struct dlxd_rules *borrow_rules; /* NULL: no rules */
};

/* The uid of every user that the kernel cannot name in our namespace. It has no rights, whatever
 * the policy. */
#define DLXD_OVERFLOW_UID 65534U

/* Is it root or the daemon's own user, on the main socket? */
bool dlxd_policy_is_superuser(const struct dlxd_policy *policy, const struct dlxd_principal *who);
/* May the client do anything at all? Returns 0, or DLX_E_ACCESS naming it. */
int dlxd_policy_admit(const struct dlxd_policy *policy, const struct dlxd_principal *who);

bool dlxd_policy_may(const struct dlxd_policy *policy, const struct dlxd_principal *who,
                     enum dlxd_verb verb, const char *topic);
/* The same as an error: returns 0, or DLX_E_ACCESS naming the user, the action and the topic. Only
 * the log says which rule decided, because that is not for the client. */
int dlxd_policy_check(const struct dlxd_policy *policy, const struct dlxd_principal *who,
                      enum dlxd_verb verb, const char *topic);

/* Why `who` may not: "rule \"cameras\" (FILE:12) denies \"publish\"". "" if it may. */
void dlxd_policy_explain(const struct dlxd_policy *policy, const struct dlxd_principal *who,
                         enum dlxd_verb verb, const char *topic, char *ret, size_t size);

/* Does the rule by which `who` publishes on the topic say whose processes its workers are?
 * If so, `ret` is a principal, which the caller owns; else NULL. Returns 0, DLX_E_NO_MEMORY. */
int dlxd_policy_workers(const struct dlxd_policy *policy, const struct dlxd_principal *who,
                        const char *topic, struct dlxd_principal **ret);

/*
 * May `reader` receive descriptors of GPU memory that a publisher of `whose` made? Such a
 * descriptor can block its holder and lets the holder write to the memory. So only the same user
 * may, or users whom a rule lets exchange such descriptors on this topic; being a superuser does
 * not replace the rule. Returns 0, or DLX_E_ACCESS naming both users and the topic. The log says
 * which of them has no rule.
 */
int dlxd_policy_check_gpu(const struct dlxd_policy *policy, const struct dlxd_principal *reader,
                          const struct dlxd_principal *whose, const char *topic);

#endif
