/* SPDX-License-Identifier: Apache-2.0 */

/* dlx_connect(): find a daemon, or start one, and greet. */

#include "client/control/call.h"
#include "client/start/socket_path.h"
#include "client/start/spawn.h"
#include <assert.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

#define DEFAULT_TIMEOUT_NS INT64_C(5000000000)
#define NAME_MAX_SIZE      63U

/* How often a daemon may end between the connection and its answer. */
#define TRIES_MAX 16
/* Time between two looks for a daemon that restarts. */
#define RESTART_POLL_NS UINT64_C(10000000)
/*
 * How often a caller that waits (`wait_ns`) looks for a daemon: first after WAIT_FIRST_NS, then
 * twice as long each time. No event to sleep on tells that a daemon listens: inotify(7) reports the
 * file of a socket before the daemon listens, needs a folder that is there, and a user has 128
 * instances of it. A look takes some microseconds.
 */
#define WAIT_FIRST_NS UINT64_C(1000000)
#define WAIT_MOST_NS  UINT64_C(50000000)

static_assert(sizeof(((struct dlx_client *)0)->path) == DLX_SOCKET_PATH_SIZE, "both are sun_path");

static int name_socket(struct dlx_client *c, const char *path)
{
    if (strlen(path) >= sizeof c->path)
        return dlx__fail(DLX_E_INVALID, "socket path %.200s is longer than %zu bytes", path,
                         sizeof c->path - 1);
    memcpy(c->path, path, strlen(path) + 1);
    return 0;
}

/* ---- no socket was named ------------------------------------------------------------------- */

static int64_t time_left(uint64_t deadline)
{
    uint64_t now = dlx__now_ns();
    if (deadline == UINT64_MAX)
        return DLX_FOREVER;
    return deadline > now ? (int64_t)(deadline - now) : 0;
}

static int open_socket_path(struct dlx_client *c, const struct dlx_socket_path_env *env,
                            enum dlx_socket_path path_kind, uint64_t deadline)
{
    c->path_kind = DLX_DAEMON_USER + (uint32_t)path_kind;
    int r = dlx__call_open_within(c, time_left(deadline));
    if (r == 0 && !dlx__socket_path_is_trusted(env, path_kind, c->sock)) {
        c->sock = dlx__close(c->sock);
        return dlx__fail(DLX_E_ACCESS, "%s belongs to a process of another user: it is not used",
                         c->path);
    }
    return r;
}

/*
 * The machine's daemon is restarting: its socket is there, and no process listens. A program
 * that started a private daemon now would not see the topics of programs that wait. Returns as
 * open_socket_path() does.
 */
static int await_restart(struct dlx_client *c, const struct dlx_socket_path_env *env,
                         uint64_t deadline)
{
    int64_t timeout_ns = c->timeout_ns;
    if (c->wait_ns < 0 || c->wait_ns > timeout_ns) {
        timeout_ns = c->wait_ns;
        deadline = dlx__deadline(timeout_ns);
    }
    for (;;) {
        uint64_t now = dlx__now_ns();
        int r = open_socket_path(c, env, DLX_SOCKET_PATH_SYSTEM, deadline);
        if (r != DLX_E_NO_DAEMON || !dlx__socket_path_has_socket(c->path))
            return r;
        if (now >= deadline)
            return dlx__fail(DLX_E_TIMEOUT,
                             "the machine's dlpackd does not listen on %s and did not come back "
                             "within %.3g s: start it, or name another daemon with DLX_SOCKET; if "
                             "there is none any more, remove the socket",
                             c->path, (double)timeout_ns / 1e9);
        r = dlx__call_check_interrupt(c);
        if (r < 0)
            return r;
        (void)poll(NULL, 0, dlx__deadline_ms(DLX_MIN(deadline, now + RESTART_POLL_NS), now));
    }
}

static int greet(struct dlx_client *c, uint64_t deadline)
{
    return dlx__call_greet_within(c, c->name, time_left(deadline));
}

static int try_socket_path(struct dlx_client *c, const struct dlx_socket_path_env *env,
                           enum dlx_socket_path path_kind, uint64_t deadline)
{
    int r = open_socket_path(c, env, path_kind, deadline);
    if (r == DLX_E_NO_DAEMON && path_kind == DLX_SOCKET_PATH_SYSTEM &&
        dlx__socket_path_has_socket(c->path)) {
        r = await_restart(c, env, deadline);
        if (c->wait_ns != 0)
            deadline = dlx__deadline(c->timeout_ns); /* to answer */
    }
    /* A runtime folder that this user may not enter is another user's: left over from su. */
    if (r == DLX_E_ACCESS && path_kind == DLX_SOCKET_PATH_RUNTIME)
        return DLX_E_NO_DAEMON;
    return r == 0 ? greet(c, deadline) : r;
}

/* A daemon that refuses this user is skipped: another one may serve it. */
static void skip_refusing(struct dlx_client *c)
{
    size_t used = strlen(c->refused_by);
    c->sock = dlx__close(c->sock);
    (void)snprintf(c->refused_by + used, sizeof c->refused_by - used, "%s%s: %s",
                   used > 0 ? "; " : "", c->path, dlx__error_message());
}

/* Greet the daemon that answers first. */
static int look(struct dlx_client *c, const struct dlx_socket_path_env *env, uint64_t deadline)
{
    c->refused_by[0] = '\0';
    for (int i = 0; i < DLX_N_SOCKET_PATHS; i++) {
        enum dlx_socket_path path_kind = (enum dlx_socket_path)i;
        if (!dlx__socket_path_of(env, path_kind, c->path))
            continue;
        int r = try_socket_path(c, env, path_kind, deadline);
        if (r == DLX_E_ACCESS && path_kind != DLX_SOCKET_PATH_TMP)
            skip_refusing(c);
        else if (r != DLX_E_NO_DAEMON)
            return r;
    }
    return DLX_E_NO_DAEMON;
}

/* Programs that come here at the same time go on one after the other, and all but the first find a
 * daemon. */
static int start_locked(struct dlx_client *c, const struct dlx_socket_path_env *env,
                        enum dlx_socket_path path_kind, const char *program, uint64_t deadline)
{
    char words[DLX_ERROR_TEXT_SIZE];
    int r = open_socket_path(c, env, path_kind, deadline);
    if (r != DLX_E_NO_DAEMON)
        return r;
    int failure = dlx__spawn(c, program, deadline);
    if (failure == DLX_E_INTERRUPTED)
        return failure;
    (void)snprintf(words, sizeof words, "%s", dlx__error_message());
    /* Look also when the start failed: another daemon may have got ready. */
    r = open_socket_path(c, env, path_kind, deadline);
    if (r != DLX_E_NO_DAEMON)
        return r;
    if (failure < 0)
        return dlx__fail(failure, "%s", words);
    return dlx__fail(DLX_E_DISCONNECTED, "%s, started for %s, ended at once", program, c->path);
}

/* While another process starts a daemon on the same path. */
static int lock_socket_path(const struct dlx_client *c, int dir_fd, uint64_t deadline)
{
    struct dlx_wait wait = {.deadline = deadline};
    for (;;) {
        int r = dlx__socket_path_lock(dir_fd, c->path, dlx__wait_part(&wait, c, dlx__now_ns()));
        if (r != DLX_E_TIMEOUT || dlx__now_ns() >= deadline)
            return r;
        if (dlx__wait_ask(&wait, c, NULL, false) < 0)
            return dlx__call_interrupted(c);
    }
}

/* `ret_tried`: there is a program, which may be started. */
static int start_daemon(struct dlx_client *c, const struct dlx_socket_path_env *env,
                        uint32_t autospawn, uint64_t deadline, bool *ret_tried)
{
    char program[DLX_PROGRAM_PATH_SIZE];
    char paths[DLX_ERROR_TEXT_SIZE - 128];
    dlx_cleanup(dlx__closep) int dir_fd = -1;
    enum dlx_socket_path path_kind;
    dlx__socket_path_list(env, paths, sizeof paths);
    const char *refusal =
        dlx__spawn_refusal(autospawn, getenv("DLX_AUTOSPAWN"), dlx__spawn_is_secure());
    if (refusal)
        return *c->refused_by
                   ? dlx__fail(DLX_E_NO_DAEMON, "%s", refusal)
                   : dlx__fail(DLX_E_NO_DAEMON, "no dlpackd at %s, and none is started: %s", paths,
                               refusal);
    int r = dlx__spawn_find(program);
    if (r < 0)
        return *c->refused_by ? r : dlx__fail_prefix(r, "no dlpackd at %s", paths);
    *ret_tried = true;
    r = dlx__socket_path_private(env, &path_kind, c->path, &dir_fd);
    if (r < 0)
        return r;
    r = lock_socket_path(c, dir_fd, deadline);
    if (r < 0)
        return r;
    r = start_locked(c, env, path_kind, program, deadline);
    dlx__socket_path_unlock(dir_fd);
    return r;
}

/* For paths at which no daemon is, or only daemons that refuse this user. */
static int start_and_greet(struct dlx_client *c, const struct dlx_socket_path_env *env,
                           uint32_t autospawn, uint64_t deadline, bool *ret_tried)
{
    int r = start_daemon(c, env, autospawn, deadline, ret_tried);
    if (r == DLX_E_NO_DAEMON && *c->refused_by)
        return dlx__fail_prefix(DLX_E_ACCESS, "%s; and no private one is started", c->refused_by);
    return r == 0 ? greet(c, deadline) : r;
}

/* `env` is NULL if a socket was named. */
static int try_all(struct dlx_client *c, const struct dlx_socket_path_env *env, uint32_t autospawn,
                   bool *ret_tried)
{
    const uint64_t deadline = dlx__deadline(c->timeout_ns);
    int r;
    for (int i = 0;; i++) {
        if (!env) {
            r = dlx__call_open_within(c, time_left(deadline));
            r = r == 0 ? greet(c, deadline) : r;
        } else {
            r = look(c, env, deadline);
            if (r == DLX_E_NO_DAEMON)
                r = start_and_greet(c, env, autospawn, deadline, ret_tried);
        }
        if (r == 0)
            dlx__error_clear(); /* of the paths without a daemon */
        /* The daemon closed the connection before it answered: it was ending, or this process stood
         * still for longer than the daemon waits. Nothing has happened yet. */
        if (r != DLX_E_DISCONNECTED || i == TRIES_MAX || time_left(deadline) == 0)
            return r;
    }
}

/* ---- waiting for a daemon to come ------------------------------------------------------------ */

/* Can a daemon still come? A socket has its name a moment before it has its mode, and a daemon that
 * refuses this user is not the awaited one where others may come. */
static bool may_daemon_come(const struct dlx_client *c, int r, bool has_tried, uint32_t n_refused)
{
    if (has_tried) /* a daemon that failed to start is not started again */
        return false;
    return r == DLX_E_NO_DAEMON || (r == DLX_E_ACCESS && (*c->refused_by || n_refused <= 1));
}

static int await_daemon(struct dlx_client *c, const struct dlx_socket_path_env *env,
                        uint32_t autospawn)
{
    const uint64_t wait_until = dlx__deadline(c->wait_ns);
    uint64_t pause = WAIT_FIRST_NS;
    uint32_t n_refused = 0;
    for (;;) {
        bool has_tried = false;
        int r = try_all(c, env, autospawn, &has_tried);
        n_refused += r == DLX_E_ACCESS;
        if (!may_daemon_come(c, r, has_tried, n_refused))
            return r;
        uint64_t now = dlx__now_ns();
        if (now >= wait_until)
            return dlx__fail_prefix(r, "waited %.3g s", (double)c->wait_ns / 1e9);
        int interrupted = dlx__call_check_interrupt(c);
        if (interrupted < 0)
            return interrupted;
        (void)poll(NULL, 0, dlx__deadline_ms(DLX_MIN(wait_until, now + pause), now));
        pause = DLX_MIN(2 * pause, WAIT_MOST_NS);
    }
}

/* A user who expects a daemon to be started may not know of the variable. */
static int fail_where_variable_says(const char *path)
{
    char why[DLX_ERROR_TEXT_SIZE];
    (void)snprintf(why, sizeof why, "%s", dlx__error_message());
    if (access(path, F_OK) == 0 && !dlx__socket_path_has_socket(path))
        return dlx__fail(DLX_E_NO_DAEMON,
                         "%s; DLX_SOCKET is set to it: name another path, or unset DLX_SOCKET",
                         why);
    return dlx__fail(DLX_E_NO_DAEMON,
                     "%s; DLX_SOCKET is set, so none is started: run dlpackd --socket=%s, or unset "
                     "DLX_SOCKET",
                     why, path);
}

/*
 * Find a daemon, or start one, and greet as c->name. `socket` is the caller's, or NULL. Waits
 * c->wait_ns at most for a daemon that is not there, and c->timeout_ns for the rest. Sets c->path,
 * path_kind, refused_by, sock, call and id. Returns what dlx_connect() says.
 */
static int find_and_greet(struct dlx_client *c, const char *socket, uint32_t autospawn)
{
    const char *path = socket ? socket : getenv("DLX_SOCKET");
    const bool is_named = path && path[0];
    struct dlx_socket_path_env env = {0};
    bool has_tried = false;
    int r = is_named ? name_socket(c, path) : 0;
    if (r < 0)
        return r;
    if (!is_named)
        env = dlx__socket_path_env();
    const struct dlx_socket_path_env *paths = is_named ? NULL : &env;
    r = c->wait_ns == 0 ? try_all(c, paths, autospawn, &has_tried)
                        : await_daemon(c, paths, autospawn);
    return r == DLX_E_NO_DAEMON && is_named && !socket ? fail_where_variable_says(path) : r;
}

int dlx_connect(const struct dlx_connect_args *user_args, struct dlx_client **ret)
{
    struct dlx_connect_args args;
    uint64_t generation;
    dlx__error_clear();
    if (!ret)
        return dlx__fail(DLX_E_INVALID, "dlx_connect: ret is NULL");
    int r = dlx__args_copy(&args, sizeof args, offsetof(struct dlx_connect_args, interrupt_free),
                           user_args);
    if (r == 0 && args.name && strlen(args.name) > NAME_MAX_SIZE)
        r = dlx__fail(DLX_E_INVALID, "client name of %zu bytes must have at most %u",
                      strlen(args.name), NAME_MAX_SIZE);
    if (r == 0 && args.autospawn > DLX_AUTOSPAWN_NEVER)
        r = dlx__fail(DLX_E_INVALID, "autospawn is %u, no value of enum dlx_autospawn",
                      args.autospawn);
    if (r == 0)
        r = dlx__fork_init(&generation);
    if (r < 0)
        return r;
    struct dlx_client *c = calloc(1, sizeof *c);
    struct dlx_mapped *mapped = dlx__mapped_new(generation);
    if (!c || !mapped || dlx__lock_init(&c->lock) != 0) {
        dlx__mapped_unref(mapped);
        free(c);
        return dlx__fail(DLX_E_NO_MEMORY, "state of a connection");
    }
    atomic_init(&c->refs, 1);
    c->generation = generation;
    c->mapped = mapped;
    c->sock = -1;
    c->timeout_ns = args.timeout_ns ? args.timeout_ns : DEFAULT_TIMEOUT_NS;
    c->wait_ns = args.wait_ns;
    c->interrupt = args.interrupt;
    c->interrupt_data = args.interrupt_data;
    dlx__peers_init(&c->peers);
    if (args.name)
        memcpy(c->name, args.name, strlen(args.name) + 1);
    else
        prctl(PR_GET_NAME, c->name); /* at most 16 bytes, terminated */
    r = find_and_greet(c, args.socket, args.autospawn);
    if (r < 0) {
        dlx__client_unref(c);
        return r;
    }
    c->interrupt_free = args.interrupt_free;
    *ret = c;
    return 0;
}
