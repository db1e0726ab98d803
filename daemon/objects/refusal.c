/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/objects/refusal.h"
#include "common/topic.h"
#include "daemon/users/policy.h"
#include "daemon/users/principal.h"
#include <stdio.h>
#include <string.h>

static struct dlxd_refusal *refusal_at(struct dlxd_list *node)
{
    return dlxd_container_of(node, struct dlxd_refusal, node);
}

static void refusal_free(struct dlxd_refusals *refusals, struct dlxd_refusal *refusal)
{
    dlxd_list_remove(&refusal->node);
    refusals->n--;
    dlxd_principal_unref(refusal->principal);
    free(refusal);
}

void dlxd_refusals_deinit(struct dlxd_refusals *refusals)
{
    dlx_for_each (it, &refusals->list)
        refusal_free(refusals, refusal_at(it));
}

/* Counts it. Returns false for a code that is no refusal: the request was wrong, say. */
static bool count_code(struct dlxd_refusals *refusals, int code)
{
    switch (code) {
    case DLX_E_ACCESS:
        refusals->n_access++;
        return true;
    case DLX_E_LIMIT:
        refusals->n_limit++;
        return true;
    case DLX_E_QOS:
        refusals->n_qos++;
        return true;
    case DLX_E_VERSION:
    case DLX_E_PUBLISHER_NOT_RESPONDING:
        refusals->n_other++;
        return true;
    default:
        return false;
    }
}

static struct dlxd_refusal *find_same(struct dlxd_refusals *refusals,
                                      const struct dlxd_client *client, enum dlxd_refused what,
                                      const char *topic, uint64_t subscription, int code)
{
    dlx_for_each (it, &refusals->list) {
        struct dlxd_refusal *refusal = refusal_at(it);
        if (refusal->pid == client->pid && refusal->what == what && refusal->code == code &&
            (what != DLXD_REFUSED_LINK || refusal->subscription == subscription) &&
            dlxd_principal_is_same_user(refusal->principal, client->principal) &&
            strcmp(refusal->topic, topic) == 0)
            return refusal;
    }
    return NULL;
}

/* The user's own oldest one goes first: no user pushes out what others were refused. */
static void refusal_make_room(struct dlxd_refusals *refusals, const struct dlxd_principal *who)
{
    struct dlxd_refusal *own = NULL;
    uint32_t n_own = 0;
    dlx_for_each (it, &refusals->list)
        if (dlxd_principal_is_same_user(refusal_at(it)->principal, who)) {
            own = own ? own : refusal_at(it);
            n_own++;
        }
    if (n_own >= DLXD_REFUSALS_OF_USER_MAX || (own && refusals->n >= DLXD_REFUSALS_MAX))
        refusal_free(refusals, own);
    else if (refusals->n >= DLXD_REFUSALS_MAX)
        refusal_free(refusals, refusal_at(refusals->list.next));
}

static struct dlxd_refusal *refusal_new(struct dlxd_refusals *refusals, struct dlxd_client *client)
{
    struct dlxd_refusal *refusal = calloc(1, sizeof *refusal);
    if (!refusal)
        return NULL;
    refusal_make_room(refusals, client->principal);
    dlxd_list_init(&refusal->node);
    refusal->principal = dlxd_principal_ref(client->principal);
    refusal->pid = client->pid;
    memcpy(refusal->client_name, client->name, sizeof refusal->client_name);
    refusals->n++;
    return refusal;
}

/* Which rule does not allow it, if that is why. */
static void explain(const struct dlxd_client *client, enum dlxd_refused what, const char *topic,
                    char ret[DLXD_RULE_TEXT_SIZE])
{
    const struct dlxd_policy *policy = &client->broker->policy;
    enum dlxd_verb verb = what == DLXD_REFUSED_PUBLISHER || what == DLXD_REFUSED_MEMORY
                              ? DLXD_MAY_PUBLISH
                          : dlxd_policy_may(policy, client->principal, DLXD_MAY_SUBSCRIBE, topic)
                              ? DLXD_MAY_BLOCK
                              : DLXD_MAY_SUBSCRIBE;
    dlxd_policy_explain(policy, client->principal, verb, topic, ret, DLXD_RULE_TEXT_SIZE);
}

void dlxd_refusal_note(struct dlxd_client *client, enum dlxd_refused what, const char *topic,
                       uint64_t subscription, int code, const char *text)
{
    struct dlxd_refusals *refusals = &client->broker->refusals;
    if (dlx__is_inbox(topic) || !count_code(refusals, code))
        return;
    struct dlxd_refusal *refusal = find_same(refusals, client, what, topic, subscription, code);
    if (!refusal)
        refusal = refusal_new(refusals, client);
    if (!refusal)
        return;
    refusal->what = what;
    refusal->code = code;
    refusal->subscription = subscription;
    refusal->at_ns = dlx__now_ns();
    refusal->number = ++refusals->last;
    refusal->n++;
    (void)snprintf(refusal->topic, sizeof refusal->topic, "%s", topic);
    (void)snprintf(refusal->text, sizeof refusal->text, "%s", *text ? text : dlx__error_text(code));
    refusal->rule[0] = '\0';
    if (code == DLX_E_ACCESS)
        explain(client, what, topic, refusal->rule);
    dlxd_list_remove(&refusal->node);
    dlxd_list_push_back(&refusals->list, &refusal->node);
}

const struct dlxd_refusal *dlxd_refusal_of(const struct dlxd_broker *broker, uint64_t subscription)
{
    const struct dlxd_list *list = &broker->refusals.list;
    for (struct dlxd_list *it = list->prev; it != list; it = it->prev)
        if (refusal_at(it)->subscription == subscription)
            return refusal_at(it);
    return NULL;
}

const char *dlxd_refusal_text(const struct dlxd_client *client, const struct dlxd_refusal *refusal)
{
    static char text[128];
    const struct dlxd_policy *policy = &client->broker->policy;
    if (dlxd_policy_is_superuser(policy, client->principal) ||
        dlxd_principal_is_same_user(client->principal, refusal->principal))
        return refusal->text;
    (void)snprintf(text, sizeof text,
                   "refused (%s): ask root or uid %u, the user of dlpackd, who can see why",
                   dlx__error_name(refusal->code), (unsigned)policy->uid);
    return text;
}
