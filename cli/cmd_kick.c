/* SPDX-License-Identifier: Apache-2.0 */

/* dlxctl kick: cuts the connections of a program, which lives on. */

#include "cli/cli.h"
#include "cli/output.h"
#include <inttypes.h>
#include <stdio.h>

struct kick {
    uint64_t number;
};

/* Linux gives no greater number to a process (PID_MAX_LIMIT). Ids of connections count
 * microseconds since the machine's start. */
#define PID_MOST 4194304U

static int kick_ask(struct cli *cli, uint64_t number, struct dlx_kicked *kicked)
{
    if (number > PID_MOST)
        return dlx_kick(cli->client, number, kicked);
    return dlx_kick_process(cli->client, (uint32_t)number, kicked);
}

static int kick_tell(struct cli *cli, uint64_t number, const struct dlx_kicked *kicked)
{
    if (cli->json)
        return cli_json(cli,
                        json_pack("{s:o, s:I, s:I}", "kicked", output_json_u64(number), "n_kicked",
                                  (json_int_t)kicked->n_kicked, "n_older",
                                  (json_int_t)kicked->n_older),
                        true);
    printf("kicked %u connection%s\n", kicked->n_kicked, kicked->n_kicked == 1 ? "" : "s");
    if (kicked->n_older > 0)
        printf("%u of them will come back: their libdlx is older than protocol 2.10, and connects "
               "again by itself; end that process instead\n",
               kicked->n_older);
    return cli_finish(cli, CLI_OK);
}

int cmd_kick(struct cli *cli, int argc, char **argv)
{
    static const struct cli_option options[] = {
        {NULL, 0, "PID|ID", CLI_IN(struct kick, number, 1, UINT64_MAX),
         "which process, or which ID of `dlxctl clients`?"},
        {0},
    };
    static const struct cli_line line = {
        .options = options,
        .doc = "Cut the connections of a process, or the one with this ID of `dlxctl clients`, and "
               "all that was made with them. The process lives, and what it holds stays in its "
               "memory; but its library does not connect again by itself, and its calls fail and "
               "name who kicked. Root and the daemon's own user may kick all programs, others "
               "those of their own user.\vPublishers go on without a subscriber that was kicked; "
               "subscribers of a kicked publisher see it leave, and keep what they have. The "
               "daemon's log has both programs. A number above 4194304 is an ID. --json prints an "
               "object.",
    };
    struct kick kick = {0};
    struct dlx_kicked kicked = {.size = sizeof kicked};

    if (cli_parse(cli, &line, argc, argv, &kick) != CLI_OK || cli_connect(cli) < 0)
        return CLI_FAILURE;
    int code = kick_ask(cli, kick.number, &kicked);
    return code < 0 ? cli_report_dlx(cli, NULL, code) : kick_tell(cli, kick.number, &kicked);
}
