/* SPDX-License-Identifier: Apache-2.0 */

/* dlxctl rm: drop the messages that the daemon retains on a topic. */

#include "cli/cli.h"

struct rm {
    struct cli *cli;
    const char *topic;
};

int cmd_rm(struct cli *cli, int argc, char **argv)
{
    static const struct cli_option options[] = {
        {NULL, 0, "TOPIC", CLI_TO(struct rm, topic), "a topic is missing"},
        {0},
    };
    static const struct cli_line line = {
        .options = options,
        .doc = "Drop what publishers that have gone retain on a topic.\vSubscribers keep the "
               "messages that they hold. Messages of a publisher that is still running stay. If "
               "nothing is retained, the command fails.",
    };
    struct rm rm = {.cli = cli};

    if (cli_parse(cli, &line, argc, argv, &rm) != CLI_OK)
        return CLI_FAILURE;
    if (cli_connect(cli) < 0)
        return CLI_FAILURE;
    int code = dlx_drop_retained(cli->client, rm.topic);
    if (code < 0)
        return cli_report_dlx(cli, rm.topic, code);
    if (cli->json)
        return cli_json(cli, json_pack("{s:s, s:b}", "topic", rm.topic, "dropped", 1), true);
    return CLI_OK;
}
