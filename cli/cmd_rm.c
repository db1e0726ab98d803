/* SPDX-License-Identifier: Apache-2.0 */

/* dlxctl rm: drop the messages that the daemon retains on a topic. */

#include "cli/cli.h"

struct rm {
    struct cli *cli;
    const char *topic;
};

static error_t rm_parse(int key, char *arg, struct argp_state *state)
{
    struct rm *rm = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = rm->cli;
        return 0;
    case ARGP_KEY_ARG:
        if (rm->topic)
            argp_error(state, "extra argument '%s'", arg);
        rm->topic = arg;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "a topic is missing");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int cmd_rm(struct cli *cli, int argc, char **argv)
{
    static const struct argp_child children[] = {{&cli_argp_common, 0, NULL, 0}, {0}};
    static const struct argp argp = {
        .parser = rm_parse,
        .args_doc = "TOPIC",
        .doc = "Drop what publishers that have gone retain on a topic.\vWho holds a message of it "
               "keeps it. Messages of a publisher that is still running stay. That nothing is "
               "retained is a failure.",
        .children = children,
    };
    struct rm rm = {.cli = cli};

    if (cli_parse(cli, &argp, argc, argv, &rm) != CLI_OK)
        return CLI_FAILURE;
    if (cli_connect(cli) < 0)
        return CLI_FAILURE;
    int code = dlx_retained_drop(cli->client, rm.topic);
    if (code < 0)
        return cli_report_dlx(cli, rm.topic, code);
    if (cli->json)
        return cli_json(cli, json_pack("{s:s, s:b}", "topic", rm.topic, "dropped", 1), true);
    return CLI_OK;
}
