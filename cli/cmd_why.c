/* SPDX-License-Identifier: Apache-2.0 */

/* dlxctl why: why does a topic not flow? One answer in words, and what to do. */

#include "cli/output.h"
#include "cli/wait.h"
#include "cli/why.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FOR_DEFAULT_NS INT64_C(1000000000)
/* Older refusals are no news. */
#define REFUSAL_MOST_NS INT64_C(600000000000)
/* How much of its quota is as good as all. */
#define QUOTA_FULL_PERCENT 95U

static void why_check(void *into, struct argp_state *state)
{
    struct why *why = into;
    if (why->topic && cli_is_pattern(why->topic))
        argp_error(state, "why is about one topic: '%s' is a pattern", why->topic);
    if (!why->for_ns)
        why->for_ns = FOR_DEFAULT_NS;
}

/* ---- looking --------------------------------------------------------------------------------- */

static int look_now(struct why *why, struct why_view *view)
{
    view->look.cli = why->cli;
    view->look.topic = why->topic;
    view->look.include_alone = true;
    int code = look_ask(&view->look);
    view->at_ns = wait_now();
    return code;
}

static int add_refusal(const struct dlx_refusal_info *info, void *userdata)
{
    struct why_refusals *all = userdata;
    struct dlx_refusal_info *items = reallocarray(all->items, all->n + 1, sizeof *items);
    if (!items)
        return DLX_E_NO_MEMORY;
    all->items = items;
    items[all->n++] = *info;
    return 0;
}

/* Older daemons know no refusals, and the rest is known all the same. */
static int look_twice(struct why *why)
{
    int code = look_now(why, &why->before);
    int64_t until = wait_deadline(why->for_ns);
    while (code == 0 && !wait_signal() && wait_now() < until)
        (void)wait_until(-1, until);
    if (code == 0)
        code = look_now(why, &why->now);
    if (code == 0)
        code = dlx_client_get_daemon_info(why->cli->client, &why->daemon);
    if (code == 0)
        code = dlx_list_refusals(why->cli->client, why->topic, add_refusal, &why->refusals);
    return code == DLX_E_VERSION ? 0 : code;
}

/* ---- what was refused ------------------------------------------------------------------------ */

struct quota_user {
    struct dlx_quota_info most;
};

static int find_quota_user(const struct dlx_quota_info *info, void *userdata)
{
    struct quota_user *user = userdata;
    if (strcmp(info->name, "bytes") == 0 && info->used >= user->most.used)
        user->most = *info;
    return 0;
}

/* Who uses most of the memory, of those whose quotas this program may see. */
static void say_quota(struct why *why, struct why_finding *finding)
{
    struct quota_user user = {.most = {.used = 0}};
    char used[HUMAN_SIZE], most[HUMAN_SIZE];
    if (dlx_list_quotas(why->cli->client, find_quota_user, &user) < 0 || user.most.used == 0)
        return;
    human_bytes(user.most.used, used);
    why_say(finding, "; uid %u by socket %s uses most: %s", user.most.uid, user.most.socket, used);
    if (user.most.max == DLX_QUOTA_UNLIMITED)
        return;
    human_bytes(user.most.max, most);
    bool is_full = user.most.used >= user.most.max / 100 * QUOTA_FULL_PERCENT;
    why_say(finding, " of %s%s", most, is_full ? ", which is full" : "");
}

static void advise_refusal(struct why_finding *finding, const struct dlx_refusal_info *refusal)
{
    switch (refusal->code) {
    case DLX_E_ACCESS:
        why_advise(finding, *refusal->rule
                                ? "let a rule of dlpackd.conf allow it, and reload dlpackd (SIGHUP)"
                                : "ask root or the user of dlpackd for a rule that allows it");
        break;
    case DLX_E_LIMIT:
        why_advise(finding, "`dlxctl quota` shows what is used, `dlxctl holds` who holds messages, "
                            "and `dlxctl clients` whose memory it is; dlpackd.conf has the limits");
        break;
    case DLX_E_QOS:
        why_advise(finding, "subscribe without `reliable`, or let the publisher block (on_full)");
        break;
    default:
        why_advise(finding, "the program must change what the text names");
        break;
    }
}

static const char *words_of(const char *what)
{
    if (strcmp(what, "publish") == 0)
        return "was refused a publisher";
    if (strcmp(what, "memory") == 0)
        return "was refused shared memory to publish with";
    return strcmp(what, "link") == 0 ? "was refused a link of its subscription"
                                     : "was refused a subscription";
}

static void look_at_refusal(struct why *why, const struct dlx_refusal_info *refusal)
{
    char program[WHY_PROGRAM_SIZE], age[HUMAN_SIZE];
    int64_t ns = output_age(why->now.at_ns, refusal->at_ns);
    if (ns > REFUSAL_MOST_NS)
        return;
    bool is_quota = refusal->code == DLX_E_LIMIT;
    struct why_finding *finding = why_find(why, is_quota ? "limit" : "refused");
    human_ns(ns, age);
    why_say(finding, "%s %s",
            why_program(refusal->client_name, refusal->pid, refusal->uid, program),
            words_of(refusal->what));
    if (refusal->n > 1)
        why_say(finding, " %" PRIu64 " times, the last time", refusal->n);
    why_say(finding, " %s ago: %s", age, refusal->text);
    if (*refusal->rule)
        why_say(finding, " (%s)", refusal->rule);
    if (is_quota)
        say_quota(why, finding);
    advise_refusal(finding, refusal);
}

/* ---- subscriptions without a publisher ------------------------------------------------------- */

struct names {
    char text[400];
    size_t n;
};

static int add_name(const struct dlx_publisher_info *info, void *userdata)
{
    struct names *names = userdata;
    size_t at = strlen(names->text);
    if (names->n++ < 5)
        (void)snprintf(names->text + at, sizeof names->text - at, "%s%s", at > 0 ? ", " : "",
                       info->topic);
    return 0;
}

static void advise_publisher(struct why *why, struct why_finding *finding)
{
    struct names names = {.n = 0};
    char hidden[CLI_HIDDEN_SIZE];
    (void)dlx_list_publishers(why->cli->client, NULL, add_name, &names);
    if (names.n == 0)
        why_advise(finding, "start a publisher on %s: no topic has one%s", why->topic,
                   cli_hidden_publishers(why->cli, hidden));
    else
        why_advise(finding, "start a publisher on %s, or check the name: there are %s%s",
                   why->topic, names.text, names.n > 5 ? ", ..." : "");
}

static void look_at_alone(struct why *why, const struct dlx_subscription_info *s)
{
    char program[WHY_PROGRAM_SIZE];
    bool is_pattern = cli_is_pattern(s->topic);
    if (why->now.look.n_entries > 0 && !*s->refusal && is_pattern)
        return; /* its rules may hide the topic from it */
    struct why_finding *finding = why_find(why, "unserved");
    why_say(finding, "no publisher serves the subscription of %s%s%s",
            why_program(s->client_name, s->pid, s->uid, program), is_pattern ? " to " : "",
            is_pattern ? s->topic : "");
    if (*s->refusal)
        why_say(finding, ": %s", s->refusal);
    if (why->now.look.n_entries == 0)
        advise_publisher(why, finding);
    else
        why_advise(finding, "see what kept it from the publishers that are there");
}

/* ---- all of it ------------------------------------------------------------------------------- */

static void look_at_all(struct why *why)
{
    const struct look *look = &why->now.look;
    if (*why->daemon.lack) {
        struct why_finding *finding = why_find(why, "lack");
        why_say(finding, "dlpackd lacks what links need, so subscribers wait: %s",
                why->daemon.lack);
        why_advise(finding, "raise what it lacks (LimitNOFILE= of its unit, memory), or end "
                            "programs that use it: `dlxctl clients`");
    }
    for (size_t i = 0; i < look->n_entries; i++)
        why_look_at_publisher(why, &look->entries[i]);
    for (size_t i = why->refusals.n; i-- > 0;)
        look_at_refusal(why, &why->refusals.items[i]);
    for (size_t i = 0; i < look->n_alone; i++)
        look_at_alone(why, &look->alone[i]);
    if (look->n_entries == 0 && look->n_alone == 0 && why->n_findings == 0) {
        struct why_finding *finding = why_find(why, "nothing");
        why_say(finding, "%s has no publisher and no subscriber", why->topic);
        advise_publisher(why, finding);
    }
}

/* "All is well: 2 publishers, 120 messages in 1.00 s, 3 subscribers." */
static void why_well(const struct why *why)
{
    uint64_t n_published = 0;
    size_t n_links = 0;
    char time[HUMAN_SIZE];
    const struct look *now = &why->now.look;
    for (size_t i = 0; i < now->n_entries; i++) {
        n_published += now->entries[i].info.published;
        n_links += now->entries[i].n_links;
    }
    for (size_t i = 0; i < why->before.look.n_entries; i++)
        n_published -= why->before.look.entries[i].info.published;
    human_ns(why->now.at_ns - why->before.at_ns, time);
    printf("%s flows: %zu publisher%s, %" PRIu64 " messages in %s, %zu subscriber%s\n", why->topic,
           now->n_entries, now->n_entries == 1 ? "" : "s", n_published, time, n_links,
           n_links == 1 ? "" : "s");
}

static json_t *why_json(const struct why *why)
{
    json_t *findings = json_array();
    for (size_t i = 0; i < why->n_findings; i++) {
        const struct why_finding *f = &why->findings[i];
        findings = output_json_append(findings, json_pack("{s:s, s:o, s:o}", "kind", f->kind,
                                                          "text", output_json_text(f->text), "do",
                                                          output_json_text(f->remedy)));
    }
    return json_pack("{s:o, s:b, s:o}", "topic", output_json_text(why->topic), "flows",
                     why->n_findings == 0, "findings", findings);
}

static int why_tell(const struct why *why)
{
    int status = why->n_findings > 0 ? CLI_FAILURE : CLI_OK;
    char text[sizeof why->findings->text];
    if (why->cli->json)
        return cli_json(why->cli, why_json(why), true) == CLI_OK ? status : CLI_USAGE;
    for (size_t i = 0; i < why->n_findings; i++) {
        output_printable(why->findings[i].text, text, sizeof text);
        printf("%s%s.\n", i > 0 ? "\n" : "", text);
        output_printable(why->findings[i].remedy, text, sizeof text);
        printf("  do: %s\n", text);
    }
    if (why->n_left_out > 0)
        printf("\n... and %zu more\n", why->n_left_out);
    if (why->n_findings == 0)
        why_well(why);
    return cli_finish(why->cli, CLI_OK) == CLI_OK ? status : CLI_USAGE;
}

static int why_run(struct why *why)
{
    why->findings = calloc(WHY_FINDINGS_MAX, sizeof *why->findings);
    if (!why->findings) {
        (void)cli_report(why->cli, NULL, "out of memory");
        return CLI_USAGE;
    }
    wait_catch_signals();
    int code = look_twice(why);
    if (wait_signal())
        return cli_signal_status(false);
    if (code < 0) {
        (void)cli_report_dlx(why->cli, why->topic, code);
        return CLI_USAGE;
    }
    look_at_all(why);
    return why_tell(why);
}

int cmd_why(struct cli *cli, int argc, char **argv)
{
    static const struct cli_option options[] = {
        {NULL, 0, "TOPIC", CLI_TO(struct why, topic), "which topic?"},
        {"for", 'f', "TIME", CLI_IN(struct why, for_ns, 1, 0),
         "Time between the two looks (default: 1s)"},
        {0},
    };
    static const struct cli_line line = {
        .options = options,
        .check = why_check,
        .doc =
            "Say why a topic does not flow, and what to do: nothing is published, no publisher "
            "serves a subscription, a publisher waits for a subscriber that takes nothing, workers "
            "finish nothing, something was refused or a quota is used up, the daemon lacks "
            "something. It looks twice, and names programs, processes and users.\vWhich rule "
            "refused, and what other users use, is told to root and the daemon's own user; others "
            "read whom to ask. Exit status: 0 the topic flows, 1 something hinders it, 2 the "
            "command could not look, or wrong usage. --json prints an object with an array of "
            "findings.",
    };
    struct why why = {.cli = cli, .daemon = {.size = sizeof why.daemon}};
    int status = CLI_USAGE;

    if (cli_parse(cli, &line, argc, argv, &why) != CLI_OK)
        return CLI_USAGE;
    if (cli_connect(cli) == 0)
        status = why_run(&why);
    look_clear(&why.before.look);
    look_clear(&why.now.look);
    free(why.refusals.items);
    free(why.findings);
    return status;
}
