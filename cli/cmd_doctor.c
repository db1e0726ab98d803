/* SPDX-License-Identifier: Apache-2.0 */

/* dlxctl doctor: looks for what keeps programs from exchanging tensors, and says what to do. */

#include "cli/doctor.h"
#include "cli/output.h"
#include <stdio.h>

static const char *plural(unsigned n)
{
    return n == 1 ? "" : "s";
}

static void print_sum(const struct doctor *d)
{
    const unsigned *n = d->n;
    if (n[DOCTOR_PROBLEM] + n[DOCTOR_WARNING] + n[DOCTOR_UNKNOWN] == 0)
        printf("\nAll is well.\n");
    else
        printf("\n%u problem%s, %u warning%s, %u check%s that could not be made.\n",
               n[DOCTOR_PROBLEM], plural(n[DOCTOR_PROBLEM]), n[DOCTOR_WARNING],
               plural(n[DOCTOR_WARNING]), n[DOCTOR_UNKNOWN], plural(n[DOCTOR_UNKNOWN]));
}

static int doctor_status_of(const struct doctor *d)
{
    if (d->n[DOCTOR_PROBLEM] > 0)
        return CLI_FAILURE;
    return d->n[DOCTOR_UNKNOWN] > 0 ? CLI_USAGE : CLI_OK;
}

static json_t *doctor_json(struct doctor *d)
{
    static const char *const verdicts[] = {
        [CLI_OK] = "ok", [CLI_FAILURE] = "problem", [CLI_USAGE] = "unknown"};
    json_t *checks = d->checks;
    d->checks = NULL;
    return json_pack("{s:s, s:I, s:I, s:I, s:o}", "status", verdicts[doctor_status_of(d)],
                     "n_problems", (json_int_t)d->n[DOCTOR_PROBLEM], "n_warnings",
                     (json_int_t)d->n[DOCTOR_WARNING], "n_unknown",
                     (json_int_t)d->n[DOCTOR_UNKNOWN], "checks", checks);
}

int cmd_doctor(struct cli *cli, int argc, char **argv)
{
    static const struct cli_line line = {
        .doc = "Look for what keeps programs from exchanging tensors: the kernel, limits of this "
               "process, memory, the daemons that are found and what they say, containers, GPUs, "
               "versions, quotas. Of each finding say what it means and what to do. No daemon is "
               "started.\vA problem is something that fails; a warning is something that is "
               "restricted or will soon fail. Exit status: 0 there is no problem, 1 there is one, "
               "2 there is none but a check could not be made, or wrong usage. Run it as the user "
               "and in the container whose programs have trouble.",
    };
    struct doctor d = {.cli = cli};

    if (cli_parse(cli, &line, argc, argv, &d) != CLI_OK)
        return CLI_FAILURE;
    d.checks = cli->json ? json_array() : NULL;
    d.width = output_width(stdout);
    doctor_kernel(&d);
    doctor_limits(&d);
    doctor_daemon(&d);
    if (d.has_daemon)
        doctor_answers(&d);
    doctor_memory(&d);
    doctor_gpu(&d);
    int status = doctor_status_of(&d);
    if (cli->json) {
        int failed = cli_json(cli, doctor_json(&d), true);
        return failed != CLI_OK ? CLI_USAGE : status;
    }
    print_sum(&d);
    return cli_finish(cli, status) == status ? status : CLI_USAGE;
}
