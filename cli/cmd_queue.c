/* SPDX-License-Identifier: Apache-2.0 */

/* dlxctl queue: the groups of workers of a topic, what is left to do, and who does it. */

#include "cli/cli.h"
#include "cli/describe.h"
#include "cli/output.h"
#include "cli/wait.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

struct queue_group {
    struct dlx_group_info info;
    struct dlx_claim_info *claims;
    size_t n_claims;
};

struct queue {
    struct cli *cli;
    const char *topic; /* or pattern; NULL: all topics */
    bool drop;
    struct queue_group *groups;
    size_t n_groups;
};

static void queue_check(void *into, struct argp_state *state)
{
    const struct queue *q = into;
    if (q->drop && !q->topic)
        argp_error(state, "--drop needs a topic");
}

/* ---- asking ---------------------------------------------------------------------------------- */

static int add_group(const struct dlx_group_info *info, void *userdata)
{
    struct queue *q = userdata;
    struct queue_group *groups = reallocarray(q->groups, q->n_groups + 1, sizeof *groups);
    if (!groups)
        return DLX_E_NO_MEMORY;
    q->groups = groups;
    groups[q->n_groups++] = (struct queue_group){.info = *info};
    return 0;
}

static int add_claim(const struct dlx_claim_info *info, void *userdata)
{
    struct queue_group *g = userdata;
    struct dlx_claim_info *claims = reallocarray(g->claims, g->n_claims + 1, sizeof *claims);
    if (!claims)
        return DLX_E_NO_MEMORY;
    g->claims = claims;
    claims[g->n_claims++] = *info;
    return 0;
}

static int queue_ask(struct queue *q)
{
    int code = dlx_list_groups(q->cli->client, q->topic, add_group, q);
    for (size_t i = 0; code == 0 && i < q->n_groups; i++) {
        struct queue_group *g = &q->groups[i];
        code = dlx_list_claims(q->cli->client, g->info.publisher, g->info.group, add_claim, g);
        if (code == DLX_E_NOT_FOUND) /* the group has ended meanwhile */
            code = 0;
    }
    return code;
}

static void queue_clear(struct queue *q)
{
    for (size_t i = 0; i < q->n_groups; i++)
        free(q->groups[i].claims);
    free(q->groups);
}

/* ---- telling --------------------------------------------------------------------------------- */

static int64_t age_of(uint64_t published_ns)
{
    return output_age(wait_now(), published_ns);
}

/* 0: the publisher has dropped the message, and its time. */
static json_t *age_json(uint64_t published_ns)
{
    return published_ns == 0 ? json_null() : json_integer(age_of(published_ns));
}

static json_t *group_json(const struct queue_group *g)
{
    json_t *claims = json_array();
    for (size_t i = 0; i < g->n_claims; i++)
        claims = output_json_append(claims, output_json_put(describe_claim(&g->claims[i]), "age_ns",
                                                            age_json(g->claims[i].published_ns)));
    json_t *group =
        output_json_put(describe_group(&g->info), "age_ns", age_json(g->info.oldest_ns));
    return output_json_put(group, "claims", claims);
}

static int print_claims(const struct queue_group *g)
{
    static const struct table_column columns[] = {
        {"PID", TABLE_RIGHT, false, 0},     {"PROGRAM", TABLE_LEFT, true, 0},
        {"UID", TABLE_RIGHT, false, 1},     {"MESSAGE", TABLE_RIGHT, false, 0},
        {"ATTEMPT", TABLE_RIGHT, false, 0}, {"AGE", TABLE_RIGHT, false, 0},
        {"NOTE", TABLE_LEFT, false, 0},
    };
    struct table *table = NULL;
    char name[256], pid[DESCRIBE_PID_SIZE], age[HUMAN_SIZE];
    if (table_new(&table, columns, sizeof columns / sizeof columns[0]) < 0)
        return DLX_E_NO_MEMORY;
    for (size_t i = 0; i < g->n_claims; i++) {
        const struct dlx_claim_info *claim = &g->claims[i];
        bool gone = claim->link == 0, dropped = claim->published_ns == 0;
        output_printable(claim->client_name, name, sizeof name);
        table_cell(table, "%s", gone ? "-" : describe_pid(claim->pid, pid));
        table_cell(table, "%s", gone ? "-" : name);
        if (gone)
            table_cell(table, "-");
        else
            table_cell(table, "%u", claim->uid);
        table_cell(table, "%" PRIu64, claim->seq);
        if (g->info.max_attempts > 0)
            table_cell(table, "%u of %u", claim->attempt, g->info.max_attempts);
        else
            table_cell(table, "%u", claim->attempt);
        human_ns(age_of(claim->published_ns), age);
        table_cell(table, "%s", dropped ? "-" : age);
        table_cell(table, "%s",
                   dropped ? "dropped by its publisher"
                   : gone  ? "worker GONE: the next one takes it"
                           : "");
    }
    int code = table_print(table, stdout, 2, output_width(stdout));
    table_free(table);
    return code;
}

static int print_group(const struct queue_group *g)
{
    const struct dlx_group_info *i = &g->info;
    char age[HUMAN_SIZE], lease[HUMAN_SIZE], name[256], pid[DESCRIBE_PID_SIZE];
    output_printable(i->client_name, name, sizeof name);
    printf("%s: group %s of publisher %" PRIu64 " (%s%spid %s)%s\n", i->topic, i->name,
           i->publisher, name, *name ? ", " : "", describe_pid(i->pid, pid),
           i->gone   ? ", which has gone"
           : i->away ? ", which made no call since dlpackd was started again"
                     : "");
    printf("  to do        %" PRIu64 " waiting, %" PRIu64 " in flight", i->waiting, i->in_flight);
    if (i->oldest_ns > 0) {
        human_ns(age_of(i->oldest_ns), age);
        printf("; the oldest, message %" PRIu64 ", is %s old", i->oldest, age);
    } else if (i->oldest > 0)
        printf("; the oldest, message %" PRIu64 ", was dropped by its publisher", i->oldest);
    printf("\n  done         %" PRIu64 ", %" PRIu64 " delivered again, %" PRIu64 " dead letter%s",
           i->done, i->redelivered, i->dead, i->dead == 1 ? "" : "s");
    if (i->lost > 0)
        printf(", %" PRIu64 " lost", i->lost);
    printf("\n  settings     %s", i->declared ? "declared by the publisher" : "not declared");
    if (i->max_attempts > 0) /* else it has had no worker, or has none now */
        printf(", %u attempt%s", i->max_attempts, i->max_attempts == 1 ? "" : "s");
    if (i->lease_ns > 0) {
        human_ns(i->lease_ns, lease);
        printf(", lease %s", lease);
    }
    printf("\n  workers      ");
    if (i->n_workers > 0)
        printf("%u of uid %u\n", i->n_workers, i->uid);
    else
        printf("none of uid %u%s\n", i->uid,
               i->waiting == 0 ? ""
               : i->away       ? ": none can join before the publisher makes a call, or ends"
                               : ": no worker takes the waiting messages");
    return g->n_claims > 0 ? print_claims(g) : 0;
}

static int queue_tell(const struct queue *q)
{
    int status = CLI_OK;
    if (q->cli->json) {
        json_t *array = json_array();
        for (size_t i = 0; i < q->n_groups; i++)
            array = output_json_append(array, group_json(&q->groups[i]));
        status = cli_json(q->cli, array, true);
    }
    for (size_t i = 0; !q->cli->json && i < q->n_groups; i++) {
        if (i > 0)
            putchar('\n');
        if (print_group(&q->groups[i]) < 0)
            return cli_report(q->cli, NULL, "out of memory");
    }
    if (q->n_groups == 0) {
        int failure = cli_report(q->cli, q->topic, "no work queue%s", q->topic ? "" : "s");
        status = q->topic ? failure : status;
    }
    return cli_finish(q->cli, status);
}

static int queue_drop(const struct queue *q)
{
    int code = dlx_drop_queue(q->cli->client, q->topic);
    if (code < 0)
        return cli_report_dlx(q->cli, q->topic, code);
    if (q->cli->json)
        return cli_json(q->cli, json_pack("{s:s, s:b}", "topic", q->topic, "dropped", 1), true);
    return CLI_OK;
}

int cmd_queue(struct cli *cli, int argc, char **argv)
{
    static const struct cli_option options[] = {
        {NULL, 0, "TOPIC|PATTERN", CLI_TO(struct queue, topic), NULL},
        {"drop", 'd', NULL, CLI_TO(struct queue, drop),
         "Drop what publishers that have gone left to do on this topic"},
        {0},
    };
    static const struct cli_line line = {
        .options = options,
        .check = queue_check,
        .doc =
            "Show work queues: for each group of workers of each publisher what waits, what is in "
            "flight by whom, what is done, what was delivered again, and dead letters.\vA message "
            "waits until a worker of the group takes it, and is in flight until that worker says "
            "that it is done or gives it back. AGE is the time since it was published. A message "
            "whose worker is GONE is taken by the next one that is free. A dead letter was "
            "delivered as often as the group allows, and never done. With --drop, what workers "
            "have stays valid, and messages of a publisher that is still running stay; if there is "
            "nothing to drop, the command fails. --json prints an array of "
            "objects. " CLI_PATTERN_HELP,
    };
    struct queue q = {.cli = cli};
    int status = CLI_FAILURE;

    if (cli_parse(cli, &line, argc, argv, &q) != CLI_OK)
        return CLI_FAILURE;
    if (cli_connect(cli) == 0) {
        int code = q.drop ? 0 : queue_ask(&q);
        if (q.drop)
            status = queue_drop(&q);
        else
            status = code < 0 ? cli_report_dlx(cli, q.topic, code) : queue_tell(&q);
    }
    queue_clear(&q);
    return status;
}
