/* SPDX-License-Identifier: Apache-2.0 */

/* Which daemon programs of this user find, and what is at the other paths. */

#include "cli/doctor.h"
#include "cli/output.h"
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* A daemon that does not answer in that time hangs or is stopped. */
#define ANSWER_NS INT64_C(2000000000)

/* A socket's path has 107 bytes at most; a longer one is only shown. */
enum { PATHS_MAX = 3, SHOWN_PATH = 512 };

/* The paths that dlx_connect() tries, in that order. */
struct paths {
    char path[PATHS_MAX][SHOWN_PATH];
    enum dlx_daemon_place place[PATHS_MAX];
    size_t n;
    bool is_named; /* by --socket or DLX_SOCKET: the only one */
};

static void add_path(struct paths *paths, enum dlx_daemon_place place, const char *path)
{
    paths->place[paths->n] = place;
    (void)snprintf(paths->path[paths->n++], SHOWN_PATH, "%s", path);
}

static struct paths find_paths(const struct cli *cli)
{
    struct paths paths = {.n = 0};
    char path[SHOWN_PATH];
    const char *named = cli->socket ? cli->socket : getenv("DLX_SOCKET");
    const char *runtime_dir = getenv("XDG_RUNTIME_DIR");
    if (named && *named) {
        paths.is_named = true;
        add_path(&paths, DLX_DAEMON_NAMED, named);
        return paths;
    }
    (void)snprintf(path, sizeof path, "%s/dlpackd.sock", runtime_dir ? runtime_dir : "");
    if (runtime_dir && *runtime_dir)
        add_path(&paths, DLX_DAEMON_USER, path);
    add_path(&paths, DLX_DAEMON_SYSTEM, "/run/dlpackd/dlpackd.sock");
    (void)snprintf(path, sizeof path, "/tmp/dlpackd-%u/dlpackd.sock", (unsigned)getuid());
    add_path(&paths, DLX_DAEMON_TMP, path);
    return paths;
}

/* ---- folders --------------------------------------------------------------------------------- */

/* What is wrong with a folder in which only this user may make a socket; false: nothing. `open`:
 * mode bits that must not be set. */
static bool find_fault(const char *folder, mode_t open, char why[DOCTOR_TEXT_SIZE])
{
    struct stat st;
    if (lstat(folder, &st) < 0)
        (void)snprintf(why, DOCTOR_TEXT_SIZE, "%s: %s", folder, strerror(errno));
    else if (S_ISLNK(st.st_mode) && stat(folder, &st) < 0)
        (void)snprintf(why, DOCTOR_TEXT_SIZE, "%s is a link to nothing", folder);
    else if (!S_ISDIR(st.st_mode))
        (void)snprintf(why, DOCTOR_TEXT_SIZE, "%s is no folder", folder);
    else if (st.st_uid != getuid())
        (void)snprintf(why, DOCTOR_TEXT_SIZE, "%s belongs to uid %u, and this is uid %u", folder,
                       (unsigned)st.st_uid, (unsigned)getuid());
    else if ((st.st_mode & open) != 0)
        (void)snprintf(why, DOCTOR_TEXT_SIZE, "%s has mode %04o, so that others can reach into it",
                       folder, (unsigned)(st.st_mode & 07777));
    else
        return false;
    return true;
}

static bool is_link(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
}

/* The folder of private daemons where the runtime folder cannot have them. */
static bool check_tmp_folder(struct doctor *d)
{
    char folder[64], why[DOCTOR_TEXT_SIZE], todo[128];
    struct stat st;
    (void)snprintf(folder, sizeof folder, "/tmp/dlpackd-%u", (unsigned)getuid());
    if (lstat(folder, &st) < 0 && errno == ENOENT)
        return true;
    if (is_link(folder))
        (void)snprintf(why, sizeof why, "%s is a link", folder);
    else if (!find_fault(folder, 07077, why))
        return true;
    (void)snprintf(todo, sizeof todo, "remove %s, or `chmod 700` it if it is yours", folder);
    doctor_found(d, "daemon.tmp_folder", DOCTOR_PROBLEM,
                 (struct doctor_advice){"no private dlpackd is started or looked for there, since "
                                        "another user may have made it",
                                        todo},
                 "%s", why);
    return false;
}

/* Whether a private daemon can have its socket in XDG_RUNTIME_DIR. */
static bool check_runtime_dir(struct doctor *d)
{
    static const char check[] = "daemon.runtime_dir";
    const char *folder = getenv("XDG_RUNTIME_DIR");
    char why[DOCTOR_TEXT_SIZE], means[256];
    if (!folder || !*folder) {
        doctor_ok(d, check, "XDG_RUNTIME_DIR is not set: a private dlpackd is in /tmp/dlpackd-%u",
                  (unsigned)getuid());
        return false;
    }
    bool is_faulty = find_fault(folder, 066, why);
    if (!is_faulty &&
        strlen(folder) + sizeof "/dlpackd.sock" > sizeof(((struct sockaddr_un *)0)->sun_path)) {
        is_faulty = true;
        (void)snprintf(why, sizeof why, "%s is too long for the path of a socket", folder);
    }
    if (!is_faulty) {
        doctor_ok(d, check, "XDG_RUNTIME_DIR=%s can have a private dlpackd", folder);
        return true;
    }
    (void)snprintf(means, sizeof means,
                   "a private dlpackd is started in /tmp/dlpackd-%u instead; `dlpackd` without "
                   "--socket may fail",
                   (unsigned)getuid());
    doctor_found(d, check, DOCTOR_WARNING,
                 (struct doctor_advice){means,
                                        "let XDG_RUNTIME_DIR be a folder of this user with mode "
                                        "0700 (a login by systemd makes it; su and sudo keep that "
                                        "of another user), or unset it"},
                 "XDG_RUNTIME_DIR: %s", why);
    return false;
}

/* ---- a private daemon ------------------------------------------------------------------------ */

static bool is_executable(const char *format, int size, const char *folder, char path[PATH_MAX])
{
    struct stat st;
    char name[PATH_MAX];
    (void)snprintf(name, sizeof name, format, size, folder);
    return realpath(name, path) && stat(path, &st) == 0 && S_ISREG(st.st_mode) &&
           access(path, X_OK) == 0;
}

/* The program that dlx_connect() would start. */
static bool find_program(char path[PATH_MAX])
{
    static const char *const beside[] = {"%.*s/dlpackd", "%.*s/../bin/dlpackd",
                                         "%.*s/../../bin/dlpackd"};
    const char *given = getenv("DLX_DAEMON"), *at = getenv("PATH");
    char real[PATH_MAX];
    Dl_info info;
    if (given && *given)
        return is_executable("%.*s", INT_MAX, given, path);
    if (dladdr((void *)(uintptr_t)dlx_version, &info) != 0 && info.dli_fname &&
        realpath(info.dli_fname, real)) {
        int n = (int)(strrchr(real, '/') - real);
        for (size_t i = 0; i < sizeof beside / sizeof beside[0]; i++)
            if (is_executable(beside[i], n, real, path))
                return true;
    }
    for (; at && *at; at += strcspn(at, ":"), at += *at == ':')
        if (*at == '/' && is_executable("%.*s/dlpackd", (int)strcspn(at, ":"), at, path))
            return true;
    return false;
}

static bool is_autospawn_off(void)
{
    const char *set = getenv("DLX_AUTOSPAWN");
    return set &&
           (strcasecmp(set, "no") == 0 || strcasecmp(set, "off") == 0 || strcmp(set, "0") == 0);
}

/* ---- what is at a path ----------------------------------------------------------------------- */

/* Is the file of the socket a mount of its own? */
static bool is_mounted(const char *path)
{
    char line[2 * PATH_MAX], real[PATH_MAX], point[PATH_MAX];
    bool found = false;
    FILE *f = realpath(path, real) ? fopen("/proc/self/mountinfo", "re") : NULL;
    while (f && !found && fgets(line, sizeof line, f))
        found = sscanf(line, "%*s %*s %*s %*s %4095s", point) == 1 && strcmp(point, real) == 0;
    if (f)
        (void)fclose(f);
    return found;
}

#define MOUNT_MEANS                                                                                \
    "a dlpackd that makes its own socket makes a new one when it starts again, and this mount "    \
    "keeps the old one, on which no dlpackd answers (a socket unit of systemd keeps its socket)"
#define MOUNT_TODO                                                                                 \
    "mount the folder of the socket, not the socket: docs/CONTAINERS.md, \"What to mount\""

/* Who may pass, as `ls -ld` has it: the first folder on the way, or the socket itself, that this
 * user may not search or write to. */
static void explain_access(const char *path, char why[DOCTOR_TEXT_SIZE])
{
    char part[SHOWN_PATH];
    struct stat st;
    const char *end = path;
    for (bool is_last = false; !is_last; end++) {
        end = strchrnul(end + 1, '/');
        is_last = *end == '\0';
        (void)snprintf(part, sizeof part, "%.*s", (int)(end - path), path);
        if (access(part, is_last ? W_OK : X_OK) == 0)
            continue;
        if (stat(part, &st) < 0)
            (void)snprintf(why, DOCTOR_TEXT_SIZE, "%s: %s", part, strerror(errno));
        else
            (void)snprintf(why, DOCTOR_TEXT_SIZE,
                           "%s has mode %04o, uid %u and gid %u, and this is uid %u and gid %u",
                           part, (unsigned)(st.st_mode & 07777), (unsigned)st.st_uid,
                           (unsigned)st.st_gid, (unsigned)geteuid(), (unsigned)getegid());
        return;
    }
    (void)snprintf(why, DOCTOR_TEXT_SIZE, "%s is open to this user: a security module forbids it",
                   path);
}

static bool has_socket(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISSOCK(st.st_mode);
}

static int connect_to(const char *path, int64_t wait_ns, struct dlx_client **ret)
{
    const struct dlx_connect_args args = {.size = sizeof args,
                                          .socket = path,
                                          .autospawn = DLX_AUTOSPAWN_NEVER,
                                          .timeout_ns = ANSWER_NS,
                                          .wait_ns = wait_ns};
    return dlx_connect(&args, ret);
}

/* A socket is there, and no dlpackd listens on it. */
static void tell_left_over(struct doctor *d, const char *path, enum dlx_daemon_place place,
                           enum doctor_status status)
{
    static const struct doctor_advice of_place[] = {
        [DLX_DAEMON_NAMED] = {"programs fail: where a socket is named, none starts a dlpackd",
                              "start the dlpackd of that socket"},
        [DLX_DAEMON_USER] = {"a dlpackd was killed there; the next one replaces the socket",
                             "nothing, or remove the file"},
        [DLX_DAEMON_SYSTEM] = {"programs take it for a restart of the machine's dlpackd: they wait "
                               "for it, fail after 5 s, and start no private one",
                               "start it (`systemctl start dlpackd`), or remove the file if there "
                               "is none any more"},
        [DLX_DAEMON_TMP] = {"a dlpackd was killed there; the next one replaces the socket",
                            "nothing, or remove the file"},
    };
    const bool is_replaced = place == DLX_DAEMON_USER || place == DLX_DAEMON_TMP;
    doctor_found(d, "daemon.socket", is_replaced ? DOCTOR_WARNING : status, of_place[place],
                 "no dlpackd listens on the socket %s", path);
}

/* A socket that did not serve. `code` and dlx_errmsg() are of the attempt. */
static void tell_refused(struct doctor *d, const char *path, enum dlx_daemon_place place, int code,
                         enum doctor_status status)
{
    static const char check[] = "daemon.socket";
    char why[DOCTOR_TEXT_SIZE], words[DOCTOR_TEXT_SIZE];
    (void)snprintf(words, sizeof words, "%s", dlx_errmsg());
    if (code == DLX_E_ACCESS && access(path, W_OK) < 0) {
        explain_access(path, why);
        doctor_found(d, check, status,
                     (struct doctor_advice){"this user cannot reach the dlpackd on that socket",
                                            "let the folder be searched and the socket written to "
                                            "(mode 0711 and 0666, as of the service), or run as "
                                            "its user"},
                     "%s cannot be reached: %s", path, why);
    } else if (code == DLX_E_ACCESS) {
        doctor_found(d, check, status,
                     (struct doctor_advice){"dlpackd serves its own user, root, and those whom its "
                                            "configuration names",
                                            "add this user to the group dlpack, if the daemon is "
                                            "the service, write a rule (dlpackd.conf(5)), or start "
                                            "it with --allow-user"},
                     "%s refuses this user: %s", path, words);
    } else if (code == DLX_E_TIMEOUT) {
        doctor_found(d, check, DOCTOR_PROBLEM,
                     (struct doctor_advice){"dlpackd is stopped, hangs, or has too little CPU time",
                                            "look at its process and log (`systemctl status "
                                            "dlpackd`), and start it again: streams go on"},
                     "%s does not answer: %s", path, words);
    } else if (code == DLX_E_NO_DAEMON && has_socket(path) && is_mounted(path)) {
        doctor_found(d, check, status, (struct doctor_advice){MOUNT_MEANS, MOUNT_TODO},
                     "no dlpackd listens on the mounted socket %s", path);
    } else if (code == DLX_E_NO_DAEMON && has_socket(path)) {
        tell_left_over(d, path, place, status);
    } else if (code == DLX_E_NO_DAEMON) {
        char todo[SHOWN_PATH + 128];
        (void)snprintf(todo, sizeof todo,
                       "start it: `dlpackd --socket=%s`; or unset DLX_SOCKET, and leave out "
                       "--socket",
                       path);
        doctor_found(d, check, status,
                     (struct doctor_advice){"programs fail: where a socket is named, none starts a "
                                            "dlpackd",
                                            todo},
                     "%s", words);
    } else {
        doctor_found(d, check, DOCTOR_PROBLEM,
                     (struct doctor_advice){"programs cannot connect: what answers is another "
                                            "version, or no dlpackd; or it has too many "
                                            "connections",
                                            "compare the versions, and look at its log"},
                     "%s: %s", path, words);
    }
}

/* ---- all paths ------------------------------------------------------------------------------- */

/* The paths beside that of the daemon that serves, if one does. */
static void check_others(struct doctor *d, const struct paths *paths, bool is_served,
                         enum dlx_daemon_place serving)
{
    for (size_t i = 0; i < paths->n; i++) {
        struct dlx_client *other = NULL;
        const char *path = paths->path[i];
        if (is_served && paths->place[i] == serving)
            continue;
        if (!paths->is_named && access(path, F_OK) < 0 && errno == ENOENT)
            continue;
        int code = connect_to(path, 0, &other);
        if (code == 0)
            doctor_found(d, "daemon.other", DOCTOR_WARNING,
                         (struct doctor_advice){"programs use the first dlpackd that serves them; "
                                                "what is published by another one is not seen",
                                                "stop one of them, or set DLX_SOCKET for all "
                                                "programs that belong together"},
                         "another dlpackd answers on %s", path);
        else
            tell_refused(d, path, paths->place[i], code,
                         is_served ? DOCTOR_WARNING : DOCTOR_PROBLEM);
        dlx_client_unref(other);
    }
}

static void tell_no_daemon(struct doctor *d, bool has_folder)
{
    static const char check[] = "daemon.none";
    char program[PATH_MAX];
    const bool is_found = find_program(program);
    if (is_found && has_folder && !is_autospawn_off()) {
        doctor_ok(d, check, "no dlpackd runs: programs start %s when they need it", program);
        return;
    }
    doctor_found(d, check, DOCTOR_PROBLEM,
                 (struct doctor_advice){!is_found            ? "no program can start one: there is "
                                                               "no dlpackd beside libdlx, or on "
                                                               "PATH"
                                        : is_autospawn_off() ? "no program starts one: "
                                                               "DLX_AUTOSPAWN turns that off"
                                                             : "no program starts one: it has no "
                                                               "folder for its socket",
                                        "start `dlpackd`, or enable its socket unit "
                                        "(docs/SERVICE.md)"},
                 "no dlpackd runs");
}

/* Says where it was found, whatever else it says. */
static void tell_serving(struct doctor *d, const struct paths *paths)
{
    const enum dlx_daemon_place place = dlx_client_daemon_place(d->cli->client);
    for (size_t i = 0; i < paths->n; i++) {
        if (paths->place[i] != place)
            continue;
        if (is_mounted(paths->path[i]))
            doctor_found(d, "daemon.socket", DOCTOR_WARNING,
                         (struct doctor_advice){MOUNT_MEANS, MOUNT_TODO},
                         "%s answers, and is itself mounted", paths->path[i]);
        else
            doctor_ok(d, "daemon.socket", "%s answers%s", paths->path[i],
                      paths->is_named ? ", which --socket or DLX_SOCKET names" : "");
    }
}

void doctor_daemon(struct doctor *d)
{
    const struct paths paths = find_paths(d->cli);
    bool has_folder = true;
    if (!paths.is_named)
        has_folder = check_runtime_dir(d) || check_tmp_folder(d);
    d->has_daemon = connect_to(d->cli->socket, d->cli->wait_daemon_ns, &d->cli->client) == 0;
    const unsigned n_problems = d->n[DOCTOR_PROBLEM];
    if (d->has_daemon)
        tell_serving(d, &paths);
    check_others(d, &paths, d->has_daemon,
                 d->has_daemon ? dlx_client_daemon_place(d->cli->client) : DLX_DAEMON_NAMED);
    if (!d->has_daemon && n_problems == d->n[DOCTOR_PROBLEM])
        tell_no_daemon(d, has_folder);
}
