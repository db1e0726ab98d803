/* SPDX-License-Identifier: Apache-2.0 */

/* dlxctl echo: a line, or a JSON object, for each message. */

#include "cli/cli.h"
#include "cli/describe.h"
#include "cli/show.h"
#include "cli/stream.h"
#include "cli/wait.h"
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

struct echo {
    struct stream_args stream;
    const char *topic;
    uint64_t count; /* 0: without an end */
    uint64_t n_values;
    uint64_t publisher; /* of the first message */
    bool several;       /* messages of several publishers came: name them */
};

static void print_message(struct echo *e, const struct dlx_message *m)
{
    char publisher[48] = "";
    if (e->publisher == 0)
        e->publisher = dlx_message_publisher(m);
    e->several = e->several || e->publisher != dlx_message_publisher(m);
    if (e->several)
        (void)snprintf(publisher, sizeof publisher, "publisher %" PRIu64, dlx_message_publisher(m));
    if (cli_is_pattern(e->topic))
        show_message(m, dlx_message_topic(m), e->n_values, true);
    else
        show_message(m, e->several ? publisher : NULL, e->n_values, true);
}

static int echo_run(struct echo *e, struct stream *s)
{
    struct cli *cli = e->stream.cli;
    for (uint64_t n = 0; e->count == 0 || n < e->count; n++) {
        struct dlx_message *m = NULL;
        int code = stream_next(s, &m);
        if (code < 0)
            return CLI_FAILURE;
        if (code == 0)
            return wait_signal() ? cli_signal_status(e->count == 0) : CLI_OK;
        int status = CLI_OK;
        if (cli->json) {
            status = cli_json(cli, describe_message(m, e->n_values), false);
        } else {
            print_message(e, m);
            status = cli_finish(cli, CLI_OK);
        }
        if (status != CLI_OK) {
            dlx_message_unref(m);
            return status;
        }
        stream_finish(s, m);
    }
    return CLI_OK;
}

int cmd_echo(struct cli *cli, int argc, char **argv)
{
    static const struct cli_option options[] = {
        {NULL, 0, "TOPIC|PATTERN", CLI_TO(struct echo, topic), "a topic is missing"},
        {"count", 'n', "N", CLI_IN(struct echo, count, 1, UINT64_MAX), "End after N messages"},
        {"values", 'v', "N", CLI_IN(struct echo, n_values, 0, SHOW_VALUES_MAX),
         "Show the first N values of each tensor (default: 6)"},
        {0},
    };
    static const struct cli_line line = {
        .options = options,
        .more = stream_options,
        .check = stream_check,
        .doc =
            "Print a line for each message: its number in its publisher's stream, its age, data "
            "type, shape, size and first values.\v\"(gap N)\" tells that N messages before it were "
            "lost, or skipped because of --latest. --json prints an object a line; values that "
            "JSON "
            "has no numbers for are the strings \"nan\", \"inf\" and \"-inf\". Data types without "
            "a "
            "name are shown as code:bits:lanes, their values in hexadecimal. With a PATTERN each "
            "line begins with the topic. " CLI_PATTERN_HELP,
    };
    struct echo e = {.stream = {.cli = cli}, .n_values = SHOW_VALUES_DEFAULT};
    struct stream s = {0};
    int status = CLI_FAILURE;

    if (cli_parse(cli, &line, argc, argv, &e) != CLI_OK)
        return CLI_FAILURE;
    wait_catch_signals();
    if (stream_open(&s, &e.stream, e.topic) == 0)
        status = echo_run(&e, &s);
    struct dlx_subscription_stats stats = stream_stats(&s);
    if (s.subscription && isatty(STDERR_FILENO) && !cli->json && e.count == 0)
        fprintf(stderr, "%s%" PRIu64 " messages, %" PRIu64 " skipped, %" PRIu64 " lost\n",
                wait_signal() ? "\n" : "", stats.taken, stats.skipped, stats.lost);
    stream_close(&s);
    return status;
}
