/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/users/policy.h"
#include "common/error.h"

static const char *const verb_names[DLXD_N_VERBS] = {
    [DLXD_MAY_PUBLISH] = "publish on",
    [DLXD_MAY_SUBSCRIBE] = "subscribe to",
    [DLXD_MAY_OBSERVE] = "observe",
    [DLXD_MAY_BLOCK] = "make publishers wait on",
    [DLXD_MAY_DROP] = "drop what others retain on",
};

static bool is_allowed(const struct dlxd_policy *policy, const struct dlxd_principal *who)
{
    bool allowed = who->uid == 0 || who->uid == policy->uid;
    for (size_t i = 0; i < policy->n_allowed && !allowed; i++)
        allowed = who->uid == policy->allowed_borrow[i];
    return allowed && who->uid != DLXD_OVERFLOW_UID;
}

int dlxd_policy_admit(const struct dlxd_policy *policy, const struct dlxd_principal *who)
{
    if (who->uid != DLXD_OVERFLOW_UID && (policy->may || is_allowed(policy, who)))
        return 0;
    return dlx__fail(DLX_E_ACCESS, "uid %u may not use this daemon, which serves uid %u%s root%s",
                     (unsigned)who->uid, (unsigned)policy->uid,
                     policy->n_allowed > 0 ? "," : " and",
                     policy->n_allowed > 0 ? " and the users of --allow-user" : "");
}

bool dlxd_policy_may(const struct dlxd_policy *policy, const struct dlxd_principal *who,
                     enum dlxd_verb verb, const char *topic)
{
    return policy->may ? policy->may(policy, who, verb, topic) : is_allowed(policy, who);
}

int dlxd_policy_check(const struct dlxd_policy *policy, const struct dlxd_principal *who,
                      enum dlxd_verb verb, const char *topic)
{
    if (dlxd_policy_may(policy, who, verb, topic))
        return 0;
    return dlx__fail(DLX_E_ACCESS, "uid %u may not %s %s", (unsigned)who->uid, verb_names[verb],
                     topic);
}
