/* SPDX-License-Identifier: Apache-2.0 */
#include "common/error.h"
#include "common/topic.h"
#include "daemon/server/config_parts.h"
#include <string.h>

#define SEPARATORS ", \t\n"

static int add_user(struct dlxd_rule *rule, const char *word)
{
    uid_t uid = 0;
    if (strcmp(word, "*") == 0) {
        rule->is_for_everybody = true;
        return 0;
    }
    int r = dlxd_config_parse_user(word, &uid);
    return r < 0 ? r : dlxd_rule_add_uid(rule, uid);
}

static int add_group(struct dlxd_rule *rule, const char *word)
{
    gid_t gid = 0;
    int r = dlxd_config_parse_group(word, &gid);
    return r < 0 ? r : dlxd_rule_add_gid(rule, gid);
}

static int rule_add_topic(struct dlxd_rule *rule, const char *word)
{
    int r = dlx__pattern_check(word);
    return r < 0 ? r : dlxd_rule_add_topic(rule, word);
}

static int add_socket(struct dlxd_rule *rule, const char *word)
{
    int r = strcmp(word, "*") == 0 ? 0 : dlxd_check_name("socket", word);
    return r < 0 ? r : dlxd_rule_add_socket(rule, word);
}

static int add_verb(uint32_t *verbs, uint32_t others, uint32_t all, const char *word)
{
    uint32_t found = strcmp(word, "all") == 0 ? all : 0;
    for (int verb = 0; verb < DLXD_N_VERBS; verb++)
        if (strcmp(word, dlxd_verb_name((enum dlxd_verb)verb)) == 0)
            found = DLXD_VERB(verb);
    if (found == 0)
        return dlx__fail(DLX_E_INVALID,
                         "'%.80s' is none of: publish, subscribe, observe, block, drop, gpu, all",
                         word);
    if (found & others)
        return dlx__fail(DLX_E_INVALID, "'%.80s' is both allowed and denied", word);
    *verbs |= found;
    return 0;
}

static int add_allowed(struct dlxd_rule *rule, const char *word)
{
    return add_verb(&rule->allow, rule->deny, DLXD_ALLOW_ALL, word);
}

static int add_denied(struct dlxd_rule *rule, const char *word)
{
    return add_verb(&rule->deny, rule->allow, DLXD_DENY_ALL, word);
}

static const struct list {
    const char *key;
    int (*add)(struct dlxd_rule *rule, const char *word);
} lists[] = {
    {"users", add_user},        {"groups", add_group},  {"sockets", add_socket},
    {"topics", rule_add_topic}, {"allow", add_allowed}, {"deny", add_denied},
};

static int check_sockets(const struct dlxd_config *config, const struct dlxd_rule *rule)
{
    for (size_t i = 0; i < rule->n_sockets; i++)
        if (strcmp(rule->sockets[i], "*") != 0 && !dlxd_socket_is_main(rule->sockets[i]) &&
            !dlxd_config_find_socket(config, rule->sockets[i]))
            return dlx__fail(DLX_E_INVALID,
                             "%s: rule \"%s\" is about a socket '%s': there is no [socket %s]",
                             rule->place, rule->name, rule->sockets[i], rule->sockets[i]);
    return 0;
}

int dlxd_config_check_rule(const struct dlxd_config *config, const struct dlxd_rule *rule)
{
    if (!rule->is_for_everybody && rule->n_uids + rule->n_gids == 0)
        return dlx__fail(DLX_E_INVALID, "%s: rule \"%s\" is about nobody: it needs users or groups",
                         rule->place, rule->name);
    if ((rule->allow | rule->deny) == 0)
        return dlx__fail(DLX_E_INVALID, "%s: rule \"%s\" says nothing: it needs allow or deny",
                         rule->place, rule->name);
    if (rule->n_topics == 0)
        return dlx__fail(DLX_E_INVALID,
                         "%s: rule \"%s\" is about no topics: it needs topics, such as **",
                         rule->place, rule->name);
    return check_sockets(config, rule);
}

int dlxd_config_set_in_rule(struct dlxd_rule *rule, const char *key, const char *value)
{
    const struct list *list = NULL;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0] && !list; i++)
        list = strcmp(key, lists[i].key) == 0 ? &lists[i] : NULL;
    if (!list)
        return dlx__fail(DLX_E_INVALID,
                         "a rule has no '%.80s': users, groups, sockets, topics, allow, deny", key);
    dlx_cleanup(dlx__freep) char *words = strdup(value);
    if (!words)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory");
    int r = 0;
    char *rest = NULL;
    for (char *word = strtok_r(words, SEPARATORS, &rest); word && r == 0;
         word = strtok_r(NULL, SEPARATORS, &rest))
        r = list->add(rule, word);
    return r;
}
