/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_RULES_H
#define DLXD_RULES_H

/*
 * Who may do what on which topics, as the administrator says: dlpackd.conf(5). Of the rules that apply
 * to a client, a topic and a verb, the first decides; where none applies, nothing is allowed. No I/O
 * here. policy.h decides with them.
 */

#include "daemon/users/principal.h"

enum dlxd_verb {
    DLXD_MAY_PUBLISH,
    DLXD_MAY_SUBSCRIBE,
    DLXD_MAY_OBSERVE, /* see publishers and links in lists */
    DLXD_MAY_BLOCK,   /* make publishers wait: a reliable subscription */
    DLXD_MAY_DROP,    /* what others retain; its own everybody may */
    /* Exchange descriptors of GPU memory with other users who may, too: whoever has one can hold up the
     * others and write to the memory. */
    DLXD_MAY_GPU,
    DLXD_N_VERBS,
};

/* Bits of verbs. */
#define DLXD_VERB(verb) (UINT32_C(1) << (verb))
/* To deny all denies GPU memory as well; to allow all does not allow it: it is said by name, as it is
 * about what may be done to a client. */
#define DLXD_DENY_ALL  (DLXD_VERB(DLXD_N_VERBS) - 1)
#define DLXD_ALLOW_ALL (DLXD_DENY_ALL & ~DLXD_VERB(DLXD_MAY_GPU))

/* "publish", "subscribe", "observe", "block", "drop", "gpu". */
const char *dlxd_verb_name(enum dlxd_verb verb);

struct dlxd_rule {
    char *name;
    char *place; /* where it was read: "FILE:LINE"; NULL: the command line */
    bool is_for_everybody;
    uid_t *uids;
    size_t n_uids;
    gid_t *gids;
    size_t n_gids;
    char **topics; /* patterns: common/topic.h */
    size_t n_topics;
    char **sockets; /* names; none: it is about every socket */
    size_t n_sockets;
    uint32_t allow; /* DLXD_VERB()s; none is in both */
    uint32_t deny;
};

/* All zero: there are none. */
struct dlxd_rules {
    struct dlxd_rule *items;
    size_t n;
};

/* An empty one at the end, of which the strings and arrays are its own. NULL: out of memory. */
struct dlxd_rule *dlxd_rules_add(struct dlxd_rules *rules, const char *name);
/* The user may do everything, but for GPU memory. Returns 0, DLX_E_NO_MEMORY. */
int dlxd_rules_add_user(struct dlxd_rules *rules, const char *name, uid_t uid);
void dlxd_rules_deinit(struct dlxd_rules *rules);

/* For the arrays of a rule: returns 0, DLX_E_NO_MEMORY. */
int dlxd_rule_add_uid(struct dlxd_rule *rule, uid_t uid);
int dlxd_rule_add_gid(struct dlxd_rule *rule, gid_t gid);
int dlxd_rule_add_topic(struct dlxd_rule *rule, const char *pattern);
int dlxd_rule_add_socket(struct dlxd_rule *rule, const char *name);

/* The rule that decides; NULL: there is none. */
const struct dlxd_rule *dlxd_rules_find(const struct dlxd_rules *rules,
                                        const struct dlxd_principal *who, enum dlxd_verb verb,
                                        const char *topic);
/* Is there anything that it may do? */
bool dlxd_rules_allow_something(const struct dlxd_rules *rules, const struct dlxd_principal *who);

#endif
