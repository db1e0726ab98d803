/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/upgrade.h"
#include "common/error.h"
#include "daemon/base/child.h"
#include "daemon/base/log.h"
#include "daemon/base/worker.h"
#include "daemon/gpu/keeper.h"
#include "daemon/objects/objects.h"
#include "daemon/persist/handover.h"
#include "daemon/persist/store.h"
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define OPTION "--check-handover="
/* The limit for the new program to read its configuration and end. */
#define TRIAL_NS UINT64_C(10000000000)
/* execve(2) ends the threads and waits for their system calls. At some moment no job runs, or soon
 * only jobs that have just begun; longer ones may last as long as a client likes. */
#define LOOK_MS      5U
#define QUIET_NS     UINT64_C(1000000000)
#define SHORT_JOB_NS UINT64_C(100000000)
#define COMPLAIN_NS  UINT64_C(5000000000)

/* Runs on a worker, and may outlive the upgrade that began it. */
struct dlxd_upgrade_trial {
    struct dlxd_upgrade *upgrade; /* NULL: the upgrade was abandoned */
    char *program;
    char **argv;
    char **environment;
    char option[64];
    int status; /* of dlxd_child_run() */
    int error;
};

static struct dlxd_upgrade_trial *trial_free(struct dlxd_upgrade_trial *trial)
{
    if (trial) {
        free(trial->program);
        free(trial->argv);
        free(trial->environment);
        free(trial);
    }
    return NULL;
}

void dlxd_upgrade_block_signals(bool block)
{
    static const int ours[] = {SIGHUP, SIGINT, SIGTERM, SIGUSR2};
    sigset_t set;
    (void)sigemptyset(&set);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(ours); i++)
        (void)sigaddset(&set, ours[i]);
    (void)pthread_sigmask(block ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL);
}

/* ---- life ------------------------------------------------------------------------------------ */

void dlxd_upgrade_init(struct dlxd_upgrade *upgrade, uv_loop_t *loop, struct dlxd_broker *broker)
{
    *upgrade = (struct dlxd_upgrade){.broker = broker};
    (void)uv_timer_init(loop, &upgrade->timer);
    upgrade->timer.data = upgrade;
}

void dlxd_upgrade_enable(struct dlxd_upgrade *upgrade, char *const *argv,
                         int (*hand_over_sockets)(void *data, struct dlxd_handover *handover),
                         void (*fn)(void *data), void *data)
{
    char path[PATH_MAX];
    struct stat st;
    upgrade->argv = argv;
    upgrade->hand_over_sockets = hand_over_sockets;
    upgrade->fn = fn;
    upgrade->data = data;
    ssize_t n = readlink("/proc/self/exe", path, sizeof path);
    if (n <= 0 || n >= (ssize_t)sizeof path || stat("/proc/self/exe", &st) < 0)
        return;
    upgrade->program = strndup(path, (size_t)n);
    upgrade->dev = st.st_dev;
    upgrade->ino = st.st_ino;
}

void dlxd_upgrade_deinit(struct dlxd_upgrade *upgrade)
{
    if (upgrade->trial)
        upgrade->trial->upgrade = NULL;
    upgrade->trial = NULL;
    upgrade->argv = NULL;
    free(upgrade->program);
    upgrade->program = NULL;
}

static void upgrade_fail(struct dlxd_upgrade *upgrade)
{
    upgrade->state = DLXD_UPGRADE_IDLE;
    dlxd_log(DLXD_LOG_ERROR, "this daemon goes on: %s cannot take its place: %s", upgrade->program,
             dlx__error_message());
    upgrade->fn(upgrade->data);
}

/* ---- the new program takes over -------------------------------------------------------------- */

static int upgrade_hand_over(struct dlxd_upgrade *upgrade, struct dlxd_handover *handover)
{
    int r = dlxd_store_hand_over(upgrade->broker, handover);
    if (r == 0)
        r = upgrade->hand_over_sockets(upgrade->data, handover);
    return r < 0 ? r : dlxd_handover_write(handover);
}

/* Returns only on failure. */
static int execute(const struct dlxd_upgrade *upgrade, const struct dlxd_handover *handover)
{
    char variable[sizeof DLXD_HANDOVER_VARIABLE + 32];
    size_t n = 0;
    while (environ && environ[n])
        n++;
    dlx_cleanup(dlx__freep) char **environment = calloc(n + 2, sizeof *environment);
    if (!environment)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for an environment");
    (void)snprintf(variable, sizeof variable, DLXD_HANDOVER_VARIABLE "=%ld:%d", (long)getpid(),
                   handover->fd);
    if (n > 0)
        memcpy(environment, environ, n * sizeof *environment);
    environment[n] = variable;
    dlxd_log(DLXD_LOG_NOTICE, "%s takes the place of this daemon", upgrade->program);
    dlxd_upgrade_block_signals(true);
    dlxd_log_flush();
    (void)execve(upgrade->program, upgrade->argv, environment);
    int r = dlx__fail_errno("execve");
    dlxd_upgrade_block_signals(false);
    return r;
}

static void replace(struct dlxd_upgrade *upgrade)
{
    struct dlxd_handover handover;
    dlxd_handover_init(&handover);
    int r = upgrade_hand_over(upgrade, &handover);
    if (r == 0)
        (void)execute(upgrade, &handover);
    dlxd_handover_undo(&handover);
    dlxd_store_take_back(upgrade->broker);
    upgrade_fail(upgrade);
    dlxd_handover_deinit(&handover);
}

static bool may_replace(struct dlxd_upgrade *upgrade, uint64_t waited_ns)
{
    struct dlxd_broker *broker = upgrade->broker;
    uint64_t longest = dlxd_workers_longest_ns(broker->workers);
    /* The process that this job starts must not inherit the descriptors that are handed over. */
    if (dlxd_gpu_keeper_is_starting(broker->gpu))
        return false;
    return longest == 0 || (waited_ns >= QUIET_NS && longest < SHORT_JOB_NS);
}

static void on_timer(uv_timer_t *timer)
{
    struct dlxd_upgrade *upgrade = timer->data;
    uint64_t waited = dlx__now_ns() - upgrade->waits_since_ns;
    if (may_replace(upgrade, waited)) {
        (void)uv_timer_stop(timer);
        replace(upgrade);
    } else if (waited >= COMPLAIN_NS && !upgrade->has_complained) {
        upgrade->has_complained = true;
        dlxd_log(DLXD_LOG_WARNING,
                 "the upgrade waits for a job that a client keeps from ending, for %.3g s now",
                 (double)dlxd_workers_longest_ns(upgrade->broker->workers) / 1e9);
    }
}

/* ---- the trial ------------------------------------------------------------------------------- */

/* Runs on a worker. */
static void run_trial(void *data)
{
    struct dlxd_upgrade_trial *trial = data;
    trial->status = dlxd_child_run(trial->program, trial->argv, trial->environment, TRIAL_NS);
    trial->error = errno;
}

static int check_trial(const struct dlxd_upgrade_trial *trial)
{
    if (trial->status == DLXD_CHILD_ABSENT)
        return dlx__fail(DLX_E_SYSTEM, "%s", strerror(trial->error));
    if (trial->status == DLXD_CHILD_LATE)
        return dlx__fail(DLX_E_TIMEOUT, "it did not say within %u s whether it can",
                         (unsigned)(TRIAL_NS / 1000000000));
    if (trial->status > 128)
        return dlx__fail(DLX_E_SYSTEM, "asked whether it can, it was ended by signal %d (%s)",
                         trial->status - 128, strsignal(trial->status - 128));
    if (trial->status > 0)
        return dlx__fail(DLX_E_SYSTEM, "asked whether it can, it ended with status %d",
                         trial->status);
    return 0;
}

static void on_tried(void *data)
{
    struct dlxd_upgrade_trial *trial = data;
    struct dlxd_upgrade *upgrade = trial->upgrade;
    int r = check_trial(trial);
    (void)trial_free(trial);
    if (!upgrade)
        return;
    upgrade->trial = NULL;
    if (r < 0) {
        upgrade_fail(upgrade);
        return;
    }
    upgrade->state = DLXD_UPGRADE_WAITING;
    upgrade->waits_since_ns = dlx__now_ns();
    upgrade->has_complained = false;
    (void)uv_timer_start(&upgrade->timer, on_timer, 0, LOOK_MS);
}

static struct dlxd_upgrade_trial *trial_new(struct dlxd_upgrade *upgrade)
{
    size_t n = 0;
    while (upgrade->argv[n])
        n++;
    struct dlxd_upgrade_trial *trial = calloc(1, sizeof *trial);
    if (!trial)
        return NULL;
    trial->upgrade = upgrade;
    trial->program = strdup(upgrade->program);
    trial->argv = calloc(n + 2, sizeof *trial->argv);
    trial->environment = dlxd_child_environment();
    if (!trial->program || !trial->argv || !trial->environment)
        return trial_free(trial);
    (void)snprintf(trial->option, sizeof trial->option, OPTION "%s", dlxd_handover_version());
    memcpy(trial->argv, upgrade->argv, n * sizeof *trial->argv);
    trial->argv[n] = trial->option;
    return trial;
}

bool dlxd_upgrade_is_due(const struct dlxd_upgrade *upgrade)
{
    struct stat st;
    return upgrade->program && stat(upgrade->program, &st) == 0 &&
           (st.st_dev != upgrade->dev || st.st_ino != upgrade->ino);
}

int dlxd_upgrade_begin(struct dlxd_upgrade *upgrade)
{
    if (upgrade->state != DLXD_UPGRADE_IDLE)
        return 0;
    if (!upgrade->program)
        return dlx__fail(DLX_E_NOT_FOUND,
                         "the path of this program is not known (/proc/self/exe): restart it");
    struct dlxd_upgrade_trial *trial = trial_new(upgrade);
    if (!trial)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for an upgrade");
    int r = dlxd_workers_run(upgrade->broker->workers, NULL, run_trial, on_tried, trial);
    if (r < 0) {
        (void)trial_free(trial);
        return r;
    }
    upgrade->trial = trial;
    upgrade->state = DLXD_UPGRADE_TRYING;
    return 0;
}
