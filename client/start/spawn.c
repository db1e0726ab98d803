/* SPDX-License-Identifier: Apache-2.0 */
#include "client/start/spawn.h"
#include "client/start/start.h"
#include "common/error.h"
#include <assert.h>
#include <dlfcn.h>
#include <dlx/dlx.h>
#include <libgen.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* Seconds without a client after which a private daemon ends; $DLX_IDLE_EXIT says otherwise. */
#define IDLE_EXIT "10"

static_assert(DLX_PROGRAM_PATH_SIZE >= PATH_MAX, "realpath() writes PATH_MAX bytes");

/* ---- may this process start a daemon? ------------------------------------------------------ */

const char *dlx__spawn_refusal(uint32_t autospawn, const char *env, bool secure)
{
    if (autospawn == DLX_AUTOSPAWN_NEVER)
        return "this program only connects";
    if (env && (strcasecmp(env, "no") == 0 || strcasecmp(env, "off") == 0 || strcmp(env, "0") == 0))
        return "$DLX_AUTOSPAWN turns that off";
    if (secure)
        return "this program has rights that its caller does not have";
    return NULL;
}

bool dlx__spawn_is_secure(void)
{
    return getauxval(AT_SECURE) != 0 || getuid() != geteuid() || getgid() != getegid();
}

/* ---- which program? ------------------------------------------------------------------------ */

static bool is_program(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

static bool try_path(char ret[DLX_PROGRAM_PATH_SIZE], const char *folder, size_t size,
                     const char *name)
{
    int n = snprintf(ret, DLX_PROGRAM_PATH_SIZE, "%.*s/%s", (int)size, folder, name);
    return n > 0 && n < DLX_PROGRAM_PATH_SIZE && is_program(ret);
}

/* The folder of the file that this code was loaded from. */
static bool own_folder(char ret[DLX_PROGRAM_PATH_SIZE])
{
    Dl_info info;
    struct link_map *map = NULL;
    char real[DLX_PROGRAM_PATH_SIZE];
    /* Any function of this file will do. The executable's own entry has no name. */
    void *here = (void *)(uintptr_t)dlx__spawn_find;
    const char *file = "/proc/self/exe";
    if (dladdr1(here, &info, (void **)&map, RTLD_DL_LINKMAP) && map && map->l_name &&
        map->l_name[0])
        file = map->l_name;
    if (!realpath(file, real))
        return false;
    (void)snprintf(ret, DLX_PROGRAM_PATH_SIZE, "%s", dirname(real));
    return true;
}

/* A relative folder of PATH is skipped: it depends on the working directory. */
static bool find_on_path(char ret[DLX_PROGRAM_PATH_SIZE])
{
    const char *path = getenv("PATH");
    while (path && *path) {
        size_t size = strcspn(path, ":");
        if (path[0] == '/' && try_path(ret, path, size, "dlpackd"))
            return true;
        path += size + (path[size] == ':');
    }
    return false;
}

int dlx__spawn_find(char ret[DLX_PROGRAM_PATH_SIZE])
{
    static const char *const names[] = {"dlpackd", "../bin/dlpackd", "../../bin/dlpackd"};
    const char *given = getenv("DLX_DAEMON");
    char folder[DLX_PROGRAM_PATH_SIZE] = "";
    if (given && *given) {
        if (!realpath(given, ret))
            return dlx__fail(DLX_E_NO_DAEMON, "DLX_DAEMON=%s cannot be started: %s", given,
                             strerror(errno));
        if (!is_program(ret))
            return dlx__fail(DLX_E_NO_DAEMON, "DLX_DAEMON=%s is not a program", given);
        return 0;
    }
    if (own_folder(folder))
        for (size_t i = 0; i < DLX_ARRAY_SIZE(names); i++)
            if (try_path(ret, folder, strlen(folder), names[i]))
                return 0;
    if (find_on_path(ret))
        return 0;
    return dlx__fail(
        DLX_E_NO_DAEMON,
        "there is no program dlpackd in %s, in ../bin or ../../bin from there, or on PATH", folder);
}

/* ---- start --------------------------------------------------------------------------------- */

/* The variables of a service manager are for the caller, and not for the daemon, which would
 * answer. */
static bool is_for_caller_only(const char *variable)
{
    static const char *const names[] = {"NOTIFY_SOCKET=", "WATCHDOG_", "LISTEN_",
                                        "JOURNAL_STREAM=", "DLX_SOCKET="};
    for (size_t i = 0; i < DLX_ARRAY_SIZE(names); i++)
        if (strncmp(variable, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

/* Borrows the strings. NULL: out of memory. */
static char **make_environment(void)
{
    size_t n = 0, n_kept = 0;
    while (environ && environ[n])
        n++;
    char **kept = calloc(n + 1, sizeof *kept);
    if (!kept)
        return NULL;
    for (size_t i = 0; i < n; i++)
        if (!is_for_caller_only(environ[i]))
            kept[n_kept++] = environ[i];
    return kept;
}

static int explain_start(const struct dlx_start *start, const char *program)
{
    const char *said = start->words[0] ? "; it said: " : "";
    if (start->error != 0)
        return dlx__fail(DLX_E_NO_DAEMON, "%s: %s: %s", program, start->what,
                         strerror(start->error));
    if (!start->ended)
        return dlx__fail(DLX_E_TIMEOUT, "%s was not ready in time and was ended%s%s", program, said,
                         start->words);
    if (WIFSIGNALED(start->status))
        return dlx__fail(DLX_E_NO_DAEMON, "%s was ended by signal %d before it was ready%s%s",
                         program, WTERMSIG(start->status), said, start->words);
    return dlx__fail(DLX_E_NO_DAEMON, "%s exited with status %d before it was ready%s%s", program,
                     WEXITSTATUS(start->status), said, start->words);
}

int dlx__spawn(const struct dlx_client *c, const char *program, uint64_t deadline)
{
    const char *idle = getenv("DLX_IDLE_EXIT");
    const char *argv[] = {
        "dlpackd",    "--socket", c->path, "--idle-exit", idle && *idle ? idle : IDLE_EXIT,
        "--ready-fd", "2",        NULL};
    dlx_cleanup(dlx__freep) char **envp = make_environment();
    if (!envp)
        return dlx__fail(DLX_E_NO_MEMORY, "environment for %s", program);
    struct dlx_start start = {.program = program,
                              .argv = (char *const *)(uintptr_t)argv,
                              .envp = envp,
                              .deadline = deadline,
                              .client = c};
    int r = dlx__start(&start);
    if (r < 0)
        return r;
    if (start.interrupted && !start.ready)
        return dlx__fail(DLX_E_INTERRUPTED, "interrupted while %s for %s was starting", program,
                         c->path);
    return start.ready ? 0 : explain_start(&start, program);
}
