/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/users/rules.h"
#include "common/error.h"
#include "common/topic.h"
#include <string.h>

static const char *const names[DLXD_N_VERBS] = {
    [DLXD_MAY_PUBLISH] = "publish", [DLXD_MAY_SUBSCRIBE] = "subscribe",
    [DLXD_MAY_OBSERVE] = "observe", [DLXD_MAY_BLOCK] = "block",
    [DLXD_MAY_DROP] = "drop",       [DLXD_MAY_GPU] = "gpu",
};

const char *dlxd_verb_name(enum dlxd_verb verb)
{
    return names[verb];
}

/* ---- made ---------------------------------------------------------------------------------- */

static void rule_deinit(struct dlxd_rule *rule)
{
    for (size_t i = 0; i < rule->n_topics; i++)
        free(rule->topics[i]);
    for (size_t i = 0; i < rule->n_sockets; i++)
        free(rule->sockets[i]);
    free(rule->topics);
    free(rule->sockets);
    free(rule->uids);
    free(rule->gids);
    free(rule->place);
    free(rule->name);
}

/* Room for one more item, of arrays that grow by one at a time: twice as much where the number is a
 * power of 2. Returns NULL if there is no memory; the array stays as it was. */
static void *room_for_one(void *items, size_t n, size_t size)
{
    return (n & (n - 1)) == 0 ? reallocarray(items, n == 0 ? 1 : 2 * n, size) : items;
}

struct dlxd_rule *dlxd_rules_add(struct dlxd_rules *rules, const char *name)
{
    struct dlxd_rule *more = room_for_one(rules->items, rules->n, sizeof *more);
    if (!more)
        return NULL;
    rules->items = more;
    struct dlxd_rule *rule = &more[rules->n];
    *rule = (struct dlxd_rule){.name = strdup(name)};
    if (!rule->name)
        return NULL;
    rules->n++;
    return rule;
}

int dlxd_rules_add_user(struct dlxd_rules *rules, const char *name, uid_t uid)
{
    struct dlxd_rule *rule = dlxd_rules_add(rules, name);
    if (!rule)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for a rule");
    rule->allow = DLXD_ALLOW_ALL;
    int r = dlxd_rule_add_uid(rule, uid);
    return r < 0 ? r : dlxd_rule_add_topic(rule, "**");
}

void dlxd_rules_deinit(struct dlxd_rules *rules)
{
    for (size_t i = 0; i < rules->n; i++)
        rule_deinit(&rules->items[i]);
    free(rules->items);
    *rules = (struct dlxd_rules){.n = 0};
}

static int fail_memory(const struct dlxd_rule *rule)
{
    return dlx__fail(DLX_E_NO_MEMORY, "out of memory for rule \"%s\"", rule->name);
}

int dlxd_rule_add_uid(struct dlxd_rule *rule, uid_t uid)
{
    uid_t *more = room_for_one(rule->uids, rule->n_uids, sizeof *more);
    if (!more)
        return fail_memory(rule);
    rule->uids = more;
    more[rule->n_uids++] = uid;
    return 0;
}

int dlxd_rule_add_gid(struct dlxd_rule *rule, gid_t gid)
{
    gid_t *more = room_for_one(rule->gids, rule->n_gids, sizeof *more);
    if (!more)
        return fail_memory(rule);
    rule->gids = more;
    more[rule->n_gids++] = gid;
    return 0;
}

static int add_text(const struct dlxd_rule *rule, char ***texts, size_t *n, const char *text)
{
    char **more = room_for_one(*texts, *n, sizeof *more);
    if (!more)
        return fail_memory(rule);
    *texts = more;
    more[*n] = strdup(text);
    if (!more[*n])
        return fail_memory(rule);
    ++*n;
    return 0;
}

int dlxd_rule_add_topic(struct dlxd_rule *rule, const char *pattern)
{
    return add_text(rule, &rule->topics, &rule->n_topics, pattern);
}

int dlxd_rule_add_socket(struct dlxd_rule *rule, const char *name)
{
    return add_text(rule, &rule->sockets, &rule->n_sockets, name);
}

/* ---- asked --------------------------------------------------------------------------------- */

static bool is_about_socket(const struct dlxd_rule *rule, const char *socket)
{
    bool is = rule->n_sockets == 0 && dlxd_socket_is_main(socket);
    for (size_t i = 0; i < rule->n_sockets && !is; i++)
        is = strcmp(rule->sockets[i], "*") == 0 || strcmp(rule->sockets[i], socket) == 0;
    return is;
}

static bool is_about(const struct dlxd_rule *rule, const struct dlxd_principal *who)
{
    if (!is_about_socket(rule, who->socket))
        return false;
    bool is = rule->is_for_everybody;
    for (size_t i = 0; i < rule->n_uids && !is; i++)
        is = rule->uids[i] == who->uid;
    for (size_t i = 0; i < rule->n_gids && !is; i++)
        is = dlxd_principal_has_group(who, rule->gids[i]);
    return is;
}

static bool is_for(const struct dlxd_rule *rule, const char *topic)
{
    bool is = false;
    for (size_t i = 0; i < rule->n_topics && !is; i++)
        is = dlx__pattern_matches(rule->topics[i], topic);
    return is;
}

const struct dlxd_rule *dlxd_rules_find(const struct dlxd_rules *rules,
                                        const struct dlxd_principal *who, enum dlxd_verb verb,
                                        const char *topic)
{
    for (size_t i = 0; rules && i < rules->n; i++) {
        const struct dlxd_rule *rule = &rules->items[i];
        if ((rule->allow | rule->deny) & DLXD_VERB(verb) && is_about(rule, who) &&
            is_for(rule, topic))
            return rule;
    }
    return NULL;
}

bool dlxd_rules_let_everybody(const struct dlxd_rules *rules, enum dlxd_verb verb,
                              const char *topic)
{
    for (size_t i = 0; rules && i < rules->n; i++) {
        const struct dlxd_rule *rule = &rules->items[i];
        bool is_for_somebody = rule->is_for_everybody || rule->n_uids > 0 || rule->n_gids > 0;
        bool denies = rule->deny & DLXD_VERB(verb) && is_for_somebody;
        bool allows = rule->allow & DLXD_VERB(verb) && rule->is_for_everybody;
        if ((denies || allows) && is_about_socket(rule, DLXD_SOCKET_MAIN) && is_for(rule, topic))
            return allows;
    }
    return false;
}

bool dlxd_rules_allow_something(const struct dlxd_rules *rules, const struct dlxd_principal *who)
{
    bool may = false;
    for (size_t i = 0; rules && i < rules->n && !may; i++)
        may = rules->items[i].allow && is_about(&rules->items[i], who);
    return may;
}
