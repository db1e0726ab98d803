/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/server/reload.h"
#include "daemon/objects/objects.h"
#include "common/error.h"
#include "daemon/base/log.h"
#include "daemon/base/worker.h"
#include "daemon/server/server.h"
#include <stdio.h>
#include <string.h>

/* Belongs to the worker until it is done. */
struct job {
    struct dlxd_reload *reload;
    struct dlxd_config_source source;
    struct dlxd_config config;
    int code;
    char text[DLX_ERROR_TEXT_SIZE];
};

int dlxd_reload_read(const struct dlxd_config_source *source, struct dlxd_config *ret)
{
    dlxd_config_init(ret);
    int r = source->path ? dlxd_config_read(ret, source->path) : 0;
    ret->quotas.borrow_file = source->path;
    if (r == 0 && source->memory_limit > 0)
        dlxd_config_limit_memory(ret, source->memory_limit);
    for (size_t i = 0; i < source->n_allowed && r == 0; i++)
        r = dlxd_rules_add_user(&ret->rules, "--allow-user", source->allowed[i]);
    if (r < 0)
        dlxd_config_deinit(ret);
    return r;
}

static bool is_same(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

static bool is_same_socket(const struct dlxd_config_socket *a, const struct dlxd_config_socket *b)
{
    return b && is_same(a->path, b->path) && a->mode == b->mode && a->has_group == b->has_group &&
           a->gid == b->gid;
}

/* What applies from the start of the daemon: the sockets, and most of [daemon]. */
static bool has_same_base(const struct dlxd_config *a, const struct dlxd_config *b)
{
    bool is = a->memory == b->memory && a->fd_store == b->fd_store &&
              is_same(a->socket, b->socket) && a->n_sockets == b->n_sockets;
    for (size_t i = 0; i < a->n_sockets && is; i++)
        is = is_same_socket(&a->sockets[i], dlxd_config_find_socket(b, a->sockets[i].name));
    return is;
}

static void run_read(void *data)
{
    struct job *job = data;
    job->code = dlxd_reload_read(&job->source, &job->config);
    (void)snprintf(job->text, sizeof job->text, "%s", dlx__error_message());
}

static void run_free(void *data)
{
    struct job *job = data;
    dlxd_config_deinit(&job->config);
    free(job);
}

/* A queue of its own: a file that cannot be read delays no other job. */
static int run_job(struct dlxd_reload *reload, dlxd_job_fn *run, dlxd_job_fn *done, struct job *job)
{
    return dlxd_workers_run(dlxd_server_workers(reload->server),
                            (const struct dlxd_user *)(const void *)reload, run, done, job);
}

/* Puts the new configuration into place, and leaves the old one in the job. */
static void use(struct dlxd_reload *reload, struct job *job)
{
    struct dlxd_config before = reload->config;
    if (!has_same_base(&job->config, &before))
        dlxd_log(DLXD_LOG_WARNING, "[daemon] or a socket has changed: that takes a restart");
    reload->config = job->config;
    job->config = before;
    dlxd_server_set_quotas(reload->server, &reload->config.quotas, reload->config.shared_bytes);
    if (dlxd_server_set_rules(reload->server, &reload->config.rules) < 0)
        dlxd_log(DLXD_LOG_WARNING, "%s", dlx__error_message());
    dlxd_log(DLXD_LOG_NOTICE, "read the configuration again: %zu rules", reload->config.rules.n);
}

static int reload_fail(const char *text, int code)
{
    dlxd_log(DLXD_LOG_ERROR, "the configuration stays as it was: %s", text);
    return dlx__fail(code, "%s", text);
}

static void on_read(void *data)
{
    struct job *job = data;
    struct dlxd_reload *reload = job->reload;
    int code = job->code;
    if (!reload->server) {
        run_free(job);
        return;
    }
    bool again = reload->state == DLXD_RELOAD_READING_AGAIN;
    reload->state = DLXD_RELOAD_IDLE;
    if (code == 0)
        use(reload, job);
    else
        (void)reload_fail(job->text, code);
    if (again)
        dlxd_reload_begin(reload);
    else
        dlxd_server_reloaded(reload->server, code);
    /* Many rules take milliseconds to free. */
    if (run_job(reload, run_free, NULL, job) < 0)
        run_free(job);
}

void dlxd_reload_begin(void *data)
{
    struct dlxd_reload *reload = data;
    if (reload->state != DLXD_RELOAD_IDLE) {
        reload->state = DLXD_RELOAD_READING_AGAIN;
        return;
    }
    struct job *job = calloc(1, sizeof *job);
    int r = job ? 0 : dlx__fail(DLX_E_NO_MEMORY, "out of memory to read the configuration");
    if (r == 0) {
        job->reload = reload;
        job->source = reload->source;
        r = run_job(reload, run_read, on_read, job);
    }
    if (r < 0) {
        char why[DLX_ERROR_TEXT_SIZE];
        (void)snprintf(why, sizeof why, "%s", dlx__error_message());
        free(job);
        dlxd_server_reloaded(reload->server, reload_fail(why, r));
        return;
    }
    reload->state = DLXD_RELOAD_READING;
}

void dlxd_reload_deinit(struct dlxd_reload *reload)
{
    dlxd_config_deinit(&reload->config);
}
