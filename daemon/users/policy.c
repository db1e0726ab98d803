/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/users/policy.h"
#include "common/error.h"
#include "common/topic.h"
#include "daemon/base/log.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

static const char *const verb_texts[DLXD_N_VERBS] = {
    [DLXD_MAY_PUBLISH] = "publish on",
    [DLXD_MAY_SUBSCRIBE] = "subscribe to",
    [DLXD_MAY_OBSERVE] = "observe",
    [DLXD_MAY_BLOCK] = "make publishers wait on",
    [DLXD_MAY_DROP] = "drop what others retain on",
    [DLXD_MAY_GPU] = "exchange GPU memory with other users on",
};

bool dlxd_policy_is_superuser(const struct dlxd_policy *policy, const struct dlxd_principal *who)
{
    return (who->uid == 0 || who->uid == policy->uid) && who->uid != DLXD_OVERFLOW_UID &&
           dlxd_socket_is_main(who->socket);
}

static bool is_allowed(const struct dlxd_policy *policy, const struct dlxd_principal *who,
                       enum dlxd_verb verb, const char *topic)
{
    if (who->uid == DLXD_OVERFLOW_UID || dlxd_policy_is_superuser(policy, who))
        return who->uid != DLXD_OVERFLOW_UID;
    const struct dlxd_rule *rule = dlxd_rules_find(policy->borrow_rules, who, verb, topic);
    return rule && rule->allow & DLXD_VERB(verb);
}

/* A refusal as the journal records it. `topic` and `rule` may be NULL. */
struct refusal {
    char uid[16], pid[16];
    char program[17];  /* "": unknown */
    char process[112]; /* " (pid 5, python3)" */
    char whose[DLXD_PRINCIPAL_TEXT_SIZE];
    struct dlxd_log_field fields[9];
};

/* The name of the process, as comm in proc(5) has it: it can choose that name, so characters that
 * are not printable become question marks. Unknown where a sandbox hides /proc. */
static void read_program(pid_t pid, char ret[17])
{
    char path[40];
    (void)snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    dlx_cleanup(dlx__closep) int fd = pid > 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t n = fd < 0 ? 0 : read(fd, ret, 16);
    ret[DLX_MAX(n, 0)] = '\0';
    for (char *at = ret; *at; at++)
        if (*at == '\n')
            *at = '\0';
        else if (*at < 0x20 || *at > 0x7e)
            *at = '?';
}

static void refusal_init(struct refusal *refusal, const struct dlxd_principal *who,
                         const char *verb, const char *topic, const struct dlxd_rule *rule)
{
    (void)snprintf(refusal->uid, sizeof refusal->uid, "%u", (unsigned)who->uid);
    (void)snprintf(refusal->pid, sizeof refusal->pid, "%d", (int)who->pid);
    read_program(who->pid, refusal->program);
    refusal->process[0] = '\0';
    if (who->pid > 0) {
        bool calls_itself = !*refusal->program && *who->name;
        (void)snprintf(refusal->process, sizeof refusal->process, " (pid %s%s%s)", refusal->pid,
                       calls_itself        ? ", client "
                       : *refusal->program ? ", "
                                           : "",
                       calls_itself ? who->name : refusal->program);
    }
    dlxd_principal_text(who->uid, who->socket, refusal->whose);
    const struct dlxd_log_field fields[] = {
        {"DLPACKD_UID", refusal->uid},
        {"DLPACKD_PID", who->pid > 0 ? refusal->pid : NULL},
        {"DLPACKD_PROGRAM", refusal->program},
        {"DLPACKD_CLIENT", who->name},
        {"DLPACKD_SOCKET", who->socket},
        {"DLPACKD_ACTION", verb},
        {"DLPACKD_TOPIC", topic},
        {"DLPACKD_RULE", rule ? rule->name : NULL},
        {"DLPACKD_RULE_PLACE", rule ? rule->place : NULL},
    };
    _Static_assert(sizeof fields == sizeof refusal->fields, "one for each");
    memcpy(refusal->fields, fields, sizeof fields);
}

static void log_stranger(const struct dlxd_principal *who)
{
    struct refusal refusal;
    refusal_init(&refusal, who, "connect", NULL, NULL);
    dlxd_log_refusal(dlxd_principal_number(who), refusal.fields, DLX_ARRAY_SIZE(refusal.fields),
                     "refused: %s may not use this daemon: no rule allows it anything%s",
                     refusal.whose, refusal.process);
}

int dlxd_policy_admit(const struct dlxd_policy *policy, const struct dlxd_principal *who)
{
    if (who->uid != DLXD_OVERFLOW_UID && (policy->may || dlxd_policy_is_superuser(policy, who) ||
                                          dlxd_rules_allow_something(policy->borrow_rules, who)))
        return 0;
    log_stranger(who);
    if (who->uid == DLXD_OVERFLOW_UID)
        return dlx__fail(
            DLX_E_ACCESS,
            "uid %u may not use this daemon, since it stands for all users that have no "
            "number in dlpackd's user namespace: map this user into that namespace, or "
            "run dlpackd outside of its container",
            (unsigned)who->uid);
    if (!dlxd_socket_is_main(who->socket))
        return dlx__fail(
            DLX_E_ACCESS,
            "uid %u may not use this daemon by its socket %s, where only those may whom a rule of "
            "its configuration names: add one to dlpackd.conf, with sockets = %s",
            (unsigned)who->uid, who->socket, who->socket);
    if (policy->borrow_rules)
        return dlx__fail(DLX_E_ACCESS,
                         "uid %u may not use this daemon, which serves uid %u, root and those whom "
                         "its configuration names: add a rule to dlpackd.conf, or join a group "
                         "that has one",
                         (unsigned)who->uid, (unsigned)policy->uid);
    return dlx__fail(DLX_E_ACCESS,
                     "uid %u may not use this daemon, which serves uid %u and root: start it with "
                     "--allow-user=%u, or use a daemon of your own",
                     (unsigned)who->uid, (unsigned)policy->uid, (unsigned)who->uid);
}

bool dlxd_policy_may(const struct dlxd_policy *policy, const struct dlxd_principal *who,
                     enum dlxd_verb verb, const char *topic)
{
    if (dlx__is_inbox(topic)) /* to know its name is the right to it */
        return verb == DLXD_MAY_PUBLISH || verb == DLXD_MAY_SUBSCRIBE;
    return policy->may ? policy->may(policy, who, verb, topic)
                       : is_allowed(policy, who, verb, topic);
}

/* Which rule decided; NULL: none is about it. */
#define WHY_SIZE 512
static void tell_rule(const struct dlxd_rule *rule, enum dlxd_verb verb, char *ret, size_t size)
{
    if (rule)
        (void)snprintf(ret, size, "rule \"%s\" (%s) denies \"%s\"", rule->name,
                       rule->place ? rule->place : "command line", dlxd_verb_name(verb));
    else
        (void)snprintf(ret, size, "no rule allows it \"%s\"", dlxd_verb_name(verb));
}

static void log_refusal(const struct dlxd_policy *policy, const struct dlxd_principal *who,
                        enum dlxd_verb verb, const char *topic)
{
    const struct dlxd_rule *rule = dlxd_rules_find(policy->borrow_rules, who, verb, topic);
    struct refusal refusal;
    char why[WHY_SIZE];
    refusal_init(&refusal, who, dlxd_verb_name(verb), topic, rule);
    tell_rule(rule, verb, why, sizeof why);
    dlxd_log_refusal(dlxd_principal_number(who), refusal.fields, DLX_ARRAY_SIZE(refusal.fields),
                     "refused: %s may not %s %s: %s%s", refusal.whose, verb_texts[verb], topic, why,
                     refusal.process);
}

void dlxd_policy_explain(const struct dlxd_policy *policy, const struct dlxd_principal *who,
                         enum dlxd_verb verb, const char *topic, char *ret, size_t size)
{
    *ret = '\0';
    if (!dlxd_policy_may(policy, who, verb, topic))
        tell_rule(dlxd_rules_find(policy->borrow_rules, who, verb, topic), verb, ret, size);
}

int dlxd_policy_check(const struct dlxd_policy *policy, const struct dlxd_principal *who,
                      enum dlxd_verb verb, const char *topic)
{
    if (dlxd_policy_may(policy, who, verb, topic))
        return 0;
    char whose[DLXD_PRINCIPAL_TEXT_SIZE];
    log_refusal(policy, who, verb, topic);
    return dlx__fail(
        DLX_E_ACCESS,
        "%s may not %s %s: no rule of dlpackd.conf allows it, dlpackd's log says which "
        "decides",
        dlxd_principal_text(who->uid, who->socket, whose), verb_texts[verb], topic);
}

int dlxd_policy_workers(const struct dlxd_policy *policy, const struct dlxd_principal *who,
                        const char *topic, struct dlxd_principal **ret)
{
    const struct dlxd_rule *rule =
        dlxd_rules_find(policy->borrow_rules, who, DLXD_MAY_PUBLISH, topic);
    *ret = NULL;
    if (!rule || !rule->has_workers)
        return 0;
    return dlxd_principal_new_former(
        ret, rule->workers, *rule->workers_socket ? rule->workers_socket : DLXD_SOCKET_MAIN);
}

/* Has this user a rule for GPU memory? Being a superuser does not count, because the rule says whom
 * the user trusts. */
static bool trusts_others(const struct dlxd_policy *policy, const struct dlxd_principal *who,
                          const char *topic)
{
    const struct dlxd_rule *rule = dlxd_rules_find(policy->borrow_rules, who, DLXD_MAY_GPU, topic);
    if (rule && rule->allow & DLXD_VERB(DLXD_MAY_GPU))
        return true;
    log_refusal(policy, who, DLXD_MAY_GPU, topic);
    return false;
}

int dlxd_policy_check_gpu(const struct dlxd_policy *policy, const struct dlxd_principal *reader,
                          const struct dlxd_principal *whose, const char *topic)
{
    char reader_text[DLXD_PRINCIPAL_TEXT_SIZE], whose_text[DLXD_PRINCIPAL_TEXT_SIZE];
    bool has_name = reader->uid != DLXD_OVERFLOW_UID && whose->uid != DLXD_OVERFLOW_UID;
    if (has_name && (dlxd_principal_is_same_user(reader, whose) ||
                     (trusts_others(policy, reader, topic) && trusts_others(policy, whose, topic))))
        return 0;
    return dlx__fail(
        DLX_E_ACCESS,
        "%s may not map GPU memory of %s: its publisher is %s, and whoever has the descriptors of "
        "such memory can write to it, so only the same user gets them, and users whom the "
        "configuration lets exchange them",
        dlxd_principal_text(reader->uid, reader->socket, reader_text), topic,
        dlxd_principal_text(whose->uid, whose->socket, whose_text));
}
