/* SPDX-License-Identifier: Apache-2.0 */
#include "client/connect.h"
#include "client/call.h"
#include "client/place.h"
#include "client/spawn.h"
#include <assert.h>
#include <stdio.h>
#include <string.h>

/* How often a daemon may end between our connecting and its answer. */
#define TRIES_MAX 16

static_assert(sizeof(((struct dlx_client *)0)->path) == DLX_SOCKET_PATH_SIZE, "both are sun_path");

static int name_socket(struct dlx_client *c, const char *path)
{
    if (strlen(path) >= sizeof c->path)
        return dlx__fail(DLX_E_INVALID, "socket path %.200s is longer than %zu bytes", path,
                         sizeof c->path - 1);
    memcpy(c->path, path, strlen(path) + 1);
    return 0;
}

/* ---- nobody named a socket ----------------------------------------------------------------- */

static int open_place(struct dlx_client *c, const struct dlx_place_env *env, enum dlx_place place)
{
    int r = dlx__call_open(c);
    if (r == 0 && !dlx__place_is_trusted(env, place, c->sock)) {
        c->sock = dlx__close(c->sock);
        return dlx__fail(DLX_E_ACCESS, "%s belongs to a process of another user: it is not used",
                         c->path);
    }
    return r;
}

/* Connect to whoever answers first. */
static int look(struct dlx_client *c, const struct dlx_place_env *env)
{
    for (int i = 0; i < DLX_N_PLACES; i++) {
        enum dlx_place place = (enum dlx_place)i;
        if (!dlx__place_path(env, place, c->path))
            continue;
        int r = open_place(c, env, place);
        /* A runtime folder that we may not look into is somebody else's: left over from su. */
        if (r != DLX_E_NO_DAEMON && !(r == DLX_E_ACCESS && place == DLX_PLACE_RUNTIME))
            return r;
    }
    return DLX_E_NO_DAEMON;
}

/* Those who come here at the same time do so one after the other, and all but the first find a daemon. */
static int start_locked(struct dlx_client *c, const struct dlx_place_env *env, enum dlx_place place,
                        const char *program, uint64_t deadline)
{
    char words[DLX_ERROR_TEXT_SIZE];
    int r = open_place(c, env, place);
    if (r != DLX_E_NO_DAEMON)
        return r;
    int failure = dlx__spawn(program, c->path, deadline);
    (void)snprintf(words, sizeof words, "%s", dlx__error_message());
    r = open_place(c, env, place); /* also when it failed: it may have met another that got ready */
    if (r != DLX_E_NO_DAEMON)
        return r;
    if (failure < 0)
        return dlx__fail(failure, "%s", words);
    return dlx__fail(DLX_E_DISCONNECTED, "%s, started for %s, ended at once", program, c->path);
}

static int start(struct dlx_client *c, const struct dlx_place_env *env, uint32_t autospawn,
                 uint64_t deadline)
{
    char program[DLX_PROGRAM_PATH_SIZE];
    char places[DLX_ERROR_TEXT_SIZE - 128];
    dlx_cleanup(dlx__closep) int dir_fd = -1;
    enum dlx_place place;
    dlx__place_list(env, places, sizeof places);
    const char *refusal =
        dlx__spawn_refusal(autospawn, getenv("DLX_AUTOSPAWN"), dlx__spawn_is_secure());
    if (refusal)
        return dlx__fail(DLX_E_NO_DAEMON, "no dlpackd at %s, and none is started: %s", places,
                         refusal);
    int r = dlx__spawn_find(program);
    if (r < 0)
        return dlx__fail_prefix(r, "no dlpackd at %s", places);
    r = dlx__place_private(env, &place, c->path, &dir_fd);
    if (r < 0)
        return r;
    r = dlx__place_lock(dir_fd, c->path, deadline);
    if (r < 0)
        return r;
    r = start_locked(c, env, place, program, deadline);
    dlx__place_unlock(dir_fd);
    return r;
}

static int64_t time_left(uint64_t deadline)
{
    uint64_t now = dlx__now_ns();
    if (deadline == UINT64_MAX)
        return DLX_FOREVER;
    return deadline > now ? (int64_t)(deadline - now) : 0;
}

/* Somebody to greet. */
static int find(struct dlx_client *c, const struct dlx_place_env *env, uint32_t autospawn,
                uint64_t deadline)
{
    int r = look(c, env);
    return r == DLX_E_NO_DAEMON ? start(c, env, autospawn, deadline) : r;
}

int dlx__connect(struct dlx_client *c, const char *socket, uint32_t autospawn, const char *name)
{
    const char *path = socket ? socket : getenv("DLX_SOCKET");
    const bool is_named = path && path[0];
    struct dlx_place_env env = {0};
    const int64_t timeout_ns = c->timeout_ns;
    const uint64_t deadline = dlx__deadline(timeout_ns);
    int r = is_named ? name_socket(c, path) : 0;
    if (r < 0)
        return r;
    if (!is_named)
        env = dlx__place_env();
    for (int i = 0;; i++) {
        c->timeout_ns = time_left(deadline);
        r = is_named ? dlx__call_open(c) : find(c, &env, autospawn, deadline);
        if (r == 0) {
            c->timeout_ns = time_left(deadline);
            r = dlx__call_greet(c, name);
        }
        c->timeout_ns = timeout_ns;
        if (r == 0)
            dlx__error_clear(); /* of the places where nobody was */
        /* Lost before it greeted back: a daemon that was just ending, or we stood still for longer than it waits. Nothing
         * has happened yet. */
        if (r != DLX_E_DISCONNECTED || i == TRIES_MAX || time_left(deadline) == 0)
            return r;
    }
}
