/* SPDX-License-Identifier: Apache-2.0 */

/* What the daemon that answers says of itself, of versions and of quotas. */

#include "cli/doctor.h"
#include "cli/output.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- versions -------------------------------------------------------------------------------- */

/* Requests that a daemon of an older protocol does not know. */
static int ignore_quota(const struct dlx_quota_info *info, void *userdata)
{
    (void)info;
    (void)userdata;
    return 0;
}

static int ignore_publisher(const struct dlx_publisher_info *info, void *userdata)
{
    (void)info;
    (void)userdata;
    return 0;
}

static int ignore_group(const struct dlx_group_info *info, void *userdata)
{
    (void)info;
    (void)userdata;
    return 0;
}

static int ask_quotas(struct dlx_client *c)
{
    return dlx_list_quotas(c, ignore_quota, NULL);
}

static int ask_gone(struct dlx_client *c)
{
    return dlx_list_gone_publishers(c, NULL, ignore_publisher, NULL);
}

static int ask_groups(struct dlx_client *c)
{
    return dlx_list_groups(c, NULL, ignore_group, NULL);
}

static int ask_observer(struct dlx_client *c)
{
    struct dlx_observer *o = NULL;
    int code = dlx_observer_new(c, "dlxctl/doctor", NULL, &o);
    dlx_observer_unref(o);
    return code;
}

static void check_versions(struct doctor *d, const struct dlx_daemon_info *info)
{
    static const struct {
        const char *name;
        int (*ask)(struct dlx_client *c);
    } requests[] = {
        {"quotas", ask_quotas},
        {"publishers that are gone", ask_gone},
        {"work queues", ask_groups},
        {"observers", ask_observer},
    };
    char missing[256] = "", means[512];
    for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++)
        if (requests[i].ask(d->cli->client) == DLX_E_VERSION)
            (void)snprintf(missing + strlen(missing), sizeof missing - strlen(missing), "%s%s",
                           *missing ? ", " : "", requests[i].name);
    (void)snprintf(means, sizeof means,
                   "it does not know: %s. Requests for them fail (DLX_E_VERSION)", missing);
    if (*missing)
        doctor_found(d, "versions.protocol", DOCTOR_WARNING,
                     (struct doctor_advice){means, "upgrade dlpackd: it takes over in mid-stream "
                                                   "(docs/SERVICE.md)"},
                     "dlpackd %s speaks protocol %u.%u, which is older than libdlx %s",
                     info->version, info->protocol_major, info->protocol_minor, dlx_version());
    if (strcmp(dlx_version(), DLX_VERSION_STRING) != 0)
        doctor_found(d, "versions.library", DOCTOR_WARNING,
                     (struct doctor_advice){"two installations are mixed",
                                            "look at LD_LIBRARY_PATH and at the order of PATH"},
                     "dlxctl is %s, and the libdlx that it loads is %s", DLX_VERSION_STRING,
                     dlx_version());
    doctor_ok(d, "versions.all", "dlxctl %s, libdlx %s, dlpackd %s (protocol %u.%u)",
              DLX_VERSION_STRING, dlx_version(), info->version, info->protocol_major,
              info->protocol_minor);
}

/* ---- quotas ---------------------------------------------------------------------------------- */

/* Of a quota: the part in percent from which it is nearly used. */
enum { NEARLY = 90 };

struct fullest {
    struct doctor *doctor;
    struct dlx_quota_info info;
    double part; /* of it */
};

static const char *quota_text(const struct dlx_quota_info *info, uint64_t n, char text[HUMAN_SIZE])
{
    if (strcmp(info->name, "bytes") == 0 || strstr(info->name, "-bytes"))
        human_bytes(n, text);
    else
        (void)snprintf(text, HUMAN_SIZE, "%" PRIu64, n);
    return text;
}

static int check_quota(const struct dlx_quota_info *info, void *userdata)
{
    struct fullest *fullest = userdata;
    char used[HUMAN_SIZE], max[HUMAN_SIZE];
    if (info->max == DLX_QUOTA_UNLIMITED || info->max == 0)
        return 0;
    const double part = (double)info->used / (double)info->max;
    if (part >= fullest->part) {
        fullest->part = part;
        fullest->info = *info;
    }
    if (part * 100 >= NEARLY)
        doctor_found(
            fullest->doctor, "quotas.used",
            info->used >= info->max ? DOCTOR_PROBLEM : DOCTOR_WARNING,
            (struct doctor_advice){"dlpackd refuses what would exceed it (DLX_E_LIMIT), or "
                                   "lets links wait",
                                   "end or close what is not needed (`dlxctl holds`, "
                                   "`dlxctl ls`), or raise it in the class of the user: "
                                   "dlpackd.conf(5), --memory-limit"},
            "%s: %s of %s used by uid %u on socket %s (class %s)", info->name,
            quota_text(info, info->used, used), quota_text(info, info->max, max), info->uid,
            info->socket, info->quota_class);
    return 0;
}

static void check_quotas(struct doctor *d)
{
    struct fullest fullest = {.doctor = d};
    char used[HUMAN_SIZE], max[HUMAN_SIZE];
    int code = dlx_list_quotas(d->cli->client, check_quota, &fullest);
    if (code < 0 && code != DLX_E_VERSION)
        doctor_found(d, "quotas.list", DOCTOR_UNKNOWN,
                     (struct doctor_advice){"whether a quota is used up is not known",
                                            "try again; look at the log of dlpackd"},
                     "dlpackd does not say: %s", dlx_errmsg());
    else if (code == 0 && fullest.part * 100 < NEARLY)
        doctor_ok(d, "quotas.used", "most used: %s, %s of %s", fullest.info.name,
                  quota_text(&fullest.info, fullest.info.used, used),
                  quota_text(&fullest.info, fullest.info.max, max));
}

/* ---- the daemon ------------------------------------------------------------------------------ */

static void check_scope(struct doctor *d, const struct dlx_daemon_info *info)
{
    if (info->pid_scope == DLX_PID_ELSEWHERE)
        doctor_ok(d, "daemon.process",
                  "pid %u of another pid namespace, as all pids in lists: dlpackd or dlxctl is in "
                  "a container",
                  info->pid);
    else if (access("/proc/self/ns/pid", F_OK) < 0)
        doctor_found(d, "daemon.process", DOCTOR_WARNING,
                     (struct doctor_advice){"pids in lists may be those of another pid namespace, "
                                            "and limits of this process are guessed",
                                            "mount /proc in this container"},
                     "pid %u; there is no /proc here", info->pid);
    else
        doctor_ok(d, "daemon.process", "pid %u%s", info->pid,
                  info->pid_scope == DLX_PID_UNKNOWN ? ", whose pid namespace is not known" : "");
}

void doctor_answers(struct doctor *d)
{
    struct dlx_daemon_info info = {.size = sizeof info};
    char hidden[CLI_HIDDEN_SIZE];
    int code = dlx_client_get_daemon_info(d->cli->client, &info);
    if (code < 0) {
        doctor_found(d, "daemon.process", DOCTOR_UNKNOWN,
                     (struct doctor_advice){"its version, and what it lacks, are not known",
                                            "try again; look at the log of dlpackd"},
                     "dlpackd does not say what it is: %s", dlx_errmsg());
        return;
    }
    d->is_posix_memory = strcmp(info.memory, "posix") == 0;
    d->is_elsewhere = info.pid_scope == DLX_PID_ELSEWHERE;
    check_scope(d, &info);
    if (info.lack[0])
        doctor_found(d, "daemon.lack", DOCTOR_PROBLEM,
                     (struct doctor_advice){"new links wait until dlpackd has that again; streams "
                                            "go on",
                                            "raise LimitNOFILE= or MemoryMax= of the service, or "
                                            "`ulimit -n` before dlpackd starts"},
                     "dlpackd lacks: %s", info.lack);
    if (*cli_hidden_publishers(d->cli, hidden))
        doctor_ok(d, "daemon.rules", "lists have the publishers%s", hidden);
    check_quotas(d);
    check_versions(d, &info);
}
