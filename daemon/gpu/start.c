/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/gpu/start.h"
#include "daemon/base/child.h"
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define PROGRAM     "dlpackd-keeper"
#define PATIENCE_NS UINT64_C(4000000000)

_Static_assert(DLXD_GPU_PROGRAM_SIZE >= PATH_MAX, "realpath() writes PATH_MAX bytes");

static bool is_program(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

static int find_program(char ret[DLXD_GPU_PROGRAM_SIZE])
{
    static const char *const folders[] = {".", "../libexec"};
    const char *given = getenv("DLX_KEEPER");
    char self[PATH_MAX];
    if (given && *given) {
        if (!realpath(given, ret) || !is_program(ret))
            return dlx__fail(DLX_E_NO_DAEMON, "the GPU keeper: DLX_KEEPER=%.300s is not a program",
                             given);
        return 0;
    }
    if (!realpath("/proc/self/exe", self))
        return dlx__fail_errno("the GPU keeper: /proc/self/exe");
    const char *folder = dirname(self);
    for (size_t i = 0; i < DLX_ARRAY_SIZE(folders); i++) {
        int n = snprintf(ret, DLXD_GPU_PROGRAM_SIZE, "%s/%s/" PROGRAM, folder, folders[i]);
        if (n < DLXD_GPU_PROGRAM_SIZE && is_program(ret))
            return 0;
    }
    return dlx__fail(DLX_E_NO_DAEMON,
                     "there is no program " PROGRAM " in %.300s, or in ../libexec from there: "
                     "install it, or set DLX_KEEPER",
                     folder);
}

/* Which GPUs the program that started the daemon sees is no matter of other users: the keeper finds
 * each GPU by its UUID. A unit of the service manager can limit the keeper, and its variables
 * stay. */
static void show_all_gpus(char **environment)
{
    static const char *const names[] = {"CUDA_VISIBLE_DEVICES=", "HIP_VISIBLE_DEVICES=",
                                        "ROCR_VISIBLE_DEVICES=", "GPU_DEVICE_ORDINAL="};
    size_t n_kept = 0;
    for (size_t i = 0; environment[i]; i++) {
        bool is_kept = true;
        for (size_t n = 0; n < DLX_ARRAY_SIZE(names); n++)
            is_kept = is_kept && strncmp(environment[i], names[n], strlen(names[n])) != 0;
        if (is_kept)
            environment[n_kept++] = environment[i];
    }
    environment[n_kept] = NULL;
}

int dlxd_gpu_start_init(struct dlxd_gpu_start *start, const char *socket)
{
    *start = (struct dlxd_gpu_start){.code = DLX_E_SYSTEM};
    (void)snprintf(start->socket, sizeof start->socket, "%s", socket);
    start->environment = dlxd_child_environment();
    if (!start->environment)
        return dlx__fail(DLX_E_NO_MEMORY, "out of memory for the environment of the GPU keeper");
    show_all_gpus(start->environment);
    return find_program(start->program);
}

void dlxd_gpu_start_deinit(struct dlxd_gpu_start *start)
{
    free(start->environment);
    start->environment = NULL;
}

static void start_fail(struct dlxd_gpu_start *start, int code, const char *what)
{
    start->code = code;
    (void)snprintf(start->text, sizeof start->text, "the GPU keeper, %.300s, %s", start->program,
                   what);
}

/* The keeper listens once the started process has ended. */
void dlxd_gpu_start_run(struct dlxd_gpu_start *start)
{
    char what[64];
    char *const argv[] = {(char[]){PROGRAM}, (char[]){"--detach"}, (char[]){"--socket"},
                          start->socket, NULL};
    int status = dlxd_child_run(start->program, argv, start->environment, PATIENCE_NS);
    if (status == DLXD_CHILD_ABSENT) {
        int error = errno;
        start_fail(start, dlx__error_from_errno(error), strerror(error));
    } else if (status == DLXD_CHILD_LATE) {
        start_fail(start, DLX_E_TIMEOUT, "was not ready in time and was ended");
    } else if (status != 0) {
        (void)snprintf(what, sizeof what, "ended with status %d", status);
        start_fail(start, DLX_E_NO_DAEMON, what);
    } else {
        start->code = 0;
    }
}
