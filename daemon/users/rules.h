/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_RULES_H
#define DLXD_RULES_H

/* Who may do what on which topics, as the administrator configures it: dlpackd.conf(5). The first
 * rule that applies to the client, topic and verb decides; without one, nothing is allowed.
 * policy.h uses the rules. No I/O here. */

#include "daemon/users/principal.h"

enum dlxd_verb {
    DLXD_MAY_PUBLISH,
    DLXD_MAY_SUBSCRIBE,
    DLXD_MAY_OBSERVE, /* see publishers and links in lists */
    DLXD_MAY_BLOCK,   /* make publishers wait: use a reliable subscription, or be in a group */
    DLXD_MAY_DROP,    /* drop what others retain; every user may drop its own */
    /* Exchange descriptors of GPU memory with other users who have this right: a holder of one can
     * block the others and write to the memory. */
    DLXD_MAY_GPU,
    DLXD_N_VERBS,
};

/* Verbs as bits. */
#define DLXD_VERB(verb) (UINT32_C(1) << (verb))
/* "all" in a denial includes GPU memory. "all" in a permission does not: it must be named, because
 * it concerns what others may do to the client. */
#define DLXD_DENY_ALL  (DLXD_VERB(DLXD_N_VERBS) - 1)
#define DLXD_ALLOW_ALL (DLXD_DENY_ALL & ~DLXD_VERB(DLXD_MAY_GPU))

/* "publish", "subscribe", "observe", "block", "drop", "gpu". */
const char *dlxd_verb_name(enum dlxd_verb verb);

struct dlxd_rule {
    char *name;
    char *place; /* where it was configured: "FILE:LINE"; NULL: the command line */
    bool is_for_everybody;
    uid_t *uids;
    size_t n_uids;
    gid_t *gids;
    size_t n_gids;
    char **topics; /* patterns: common/topic.h */
    size_t n_topics;
    /* Names, or "*" for every socket. Empty: the main socket alone, since a rule that was written
     * when it was the only one must not hold on sockets that are added later. */
    char **sockets;
    size_t n_sockets;
    uint32_t allow; /* DLXD_VERB() bits, disjoint from `deny` */
    uint32_t deny;
    /* Whose processes the workers of groups are, of publishers that this rule lets publish. */
    bool has_workers;
    uid_t workers;
    char workers_socket[DLXD_SOCKET_NAME_SIZE]; /* on which they connect; "": the main one */
};

/* All zero: there are none. */
struct dlxd_rules {
    struct dlxd_rule *items;
    size_t n;
};

/* Appends an empty rule, which owns its strings and arrays. Returns NULL if out of memory. */
struct dlxd_rule *dlxd_rules_add(struct dlxd_rules *rules, const char *name);
/* Appends a rule that allows the user everything except GPU memory. Returns 0, DLX_E_NO_MEMORY. */
int dlxd_rules_add_user(struct dlxd_rules *rules, const char *name, uid_t uid);
void dlxd_rules_deinit(struct dlxd_rules *rules);

/* Append to the arrays of a rule. Return 0 or DLX_E_NO_MEMORY. */
int dlxd_rule_add_uid(struct dlxd_rule *rule, uid_t uid);
int dlxd_rule_add_gid(struct dlxd_rule *rule, gid_t gid);
int dlxd_rule_add_topic(struct dlxd_rule *rule, const char *pattern);
int dlxd_rule_add_socket(struct dlxd_rule *rule, const char *name);

/* The rule that decides; NULL: there is none. */
const struct dlxd_rule *dlxd_rules_find(const struct dlxd_rules *rules,
                                        const struct dlxd_principal *who, enum dlxd_verb verb,
                                        const char *topic);
/* Do the rules let every user of the main socket do that, whatever its groups? */
bool dlxd_rules_let_everybody(const struct dlxd_rules *rules, enum dlxd_verb verb,
                              const char *topic);
/* Does any rule allow it anything? */
bool dlxd_rules_allow_something(const struct dlxd_rules *rules, const struct dlxd_principal *who);

#endif
