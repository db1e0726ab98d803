/* SPDX-License-Identifier: Apache-2.0 */

/* dlxctl get: the newest message of a topic, shown as echo shows it or saved as save saves it. */

#include "cli/cli.h"
#include "cli/describe.h"
#include "cli/npz.h"
#include "cli/output.h"
#include "cli/saving.h"
#include "cli/show.h"
#include <stdio.h>
#include <unistd.h>

#define INTERVAL_NS INT64_C(250000000)

struct get {
    struct saving to; /* without a file, the message is shown */
    int64_t timeout_ns;
    uint64_t n_values; /* SHOW_VALUES_MAX + 1: not given */
};

static void get_check(void *into, struct argp_state *state)
{
    struct get *g = into;
    if (g->to.file && !*g->to.file)
        argp_error(state, "the file name is empty");
    if (g->to.file && g->n_values <= SHOW_VALUES_MAX)
        argp_error(state, "--values is for showing a message; a file has all of them");
    if (!g->to.file && g->to.tensor != SAVING_NO_TENSOR)
        argp_error(state, "--tensor needs a file");
    if (g->to.file)
        saving_check(&g->to, state);
    if (g->n_values > SHOW_VALUES_MAX)
        g->n_values = SHOW_VALUES_DEFAULT;
}

static int get_report(const struct get *g, int code)
{
    char time[HUMAN_SIZE];
    const char *words = dlx_errmsg();
    if (code == DLX_E_EMPTY)
        return cli_report(g->to.cli, NULL, "%s (--timeout waits for one)", words);
    if (code != DLX_E_TIMEOUT)
        return cli_report_dlx(g->to.cli, g->to.topic, code);
    human_ns(g->timeout_ns, time);
    return cli_report(g->to.cli, NULL, "waited %s: %s", time, words);
}

static int get_save(struct get *g, const struct dlx_message *m)
{
    char bytes[HUMAN_SIZE];
    uint64_t size = 0;
    struct progress progress;
    progress_init(&progress, g->to.topic, stderr, !g->to.cli->json, INTERVAL_NS);
    g->to.progress = &progress;
    int status = saving_write(&g->to, m, g->to.file, &size);
    progress_clear();
    if (status == CLI_OK && !g->to.cli->json && isatty(STDERR_FILENO)) {
        human_bytes(size, bytes);
        fprintf(stderr, "%s: %s saved\n", dlx_message_topic(m), bytes);
    }
    return status;
}

static int get_show(const struct get *g, const struct dlx_message *m)
{
    struct cli *cli = g->to.cli;
    if (cli->json)
        return cli_json(cli, describe_message(m, g->n_values), false);
    show_message(m, cli_is_pattern(g->to.topic) ? dlx_message_topic(m) : NULL, g->n_values, false);
    return cli_finish(cli, CLI_OK);
}

int cmd_get(struct cli *cli, int argc, char **argv)
{
    static const struct cli_option options[] = {
        {NULL, 0, "TOPIC|PATTERN", CLI_TO(struct get, to.topic), "a topic is missing"},
        {NULL, 0, "FILE|-", CLI_TO(struct get, to.file), NULL},
        {"timeout", 't', "TIME", CLI_TO(struct get, timeout_ns),
         "Wait for the first message for this time (default: not at all)"},
        {"values", 'v', "N", CLI_IN(struct get, n_values, 0, SHOW_VALUES_MAX),
         "Show the first N values of each tensor (default: 6)"},
        {"tensor", 'T', "I", CLI_IN(struct get, to.tensor, 0, UINT16_MAX),
         "Of a message with several tensors, save tensor I to a .npy file (default: 0)"},
        {0},
    };
    static const struct cli_line line = {
        .options = options,
        .check = get_check,
        .doc = "Get the newest message of a topic, of its publishers and of what is retained: "
               "print it as echo does, or write it to a .npy file, or all of it to a "
               ".safetensors" NPZ_OR " file, as save does; '-' is the standard output, as .npy.\v"
               "Exits with status 1 if there is no message (after --timeout, if "
               "given). " CLI_PATTERN_HELP,
    };
    struct get get = {.to = {.cli = cli, .tensor = SAVING_NO_TENSOR},
                      .n_values = SHOW_VALUES_MAX + 1};
    struct dlx_message *m = NULL;

    if (cli_parse(cli, &line, argc, argv, &get) != CLI_OK)
        return CLI_FAILURE;
    if (cli_connect(cli) < 0)
        return CLI_FAILURE;
    int code = dlx_get(cli->client, get.to.topic, get.timeout_ns, &m);
    if (code < 0)
        return get_report(&get, code);
    int status = get.to.file ? get_save(&get, m) : get_show(&get, m);
    dlx_message_unref(m);
    return status;
}
