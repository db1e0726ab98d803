/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_COMMON_SHM_NAME_H
#define DLX_COMMON_SHM_NAME_H

/*
 * Names of POSIX shared memory: "/dlpackd.<uid>.<pid>.<start>.<random>". They exist only for the moment
 * in which the daemon opens the file a second time, and nobody can guess them. Uid, pid and the pid's
 * start time are there for the daemon that finds one which a killed daemon left.
 */

#include "common/util.h"
#include <sys/types.h>

#define DLX_SHM_NAME_PREFIX "dlpackd."
#define DLX_SHM_NAME_SIZE   128U

struct dlx_shm_name {
    uid_t uid;
    pid_t pid;
    uint64_t start; /* of the pid, clock ticks after boot; 0: not known (no /proc) */
};

/* A new name of this process, with the leading slash. Returns 0, DLX_E_SYSTEM. */
int dlx__shm_name_make(char ret[DLX_SHM_NAME_SIZE]);

/* Is it such a name, without the slash, exactly as dlx__shm_name_make() writes them? */
bool dlx__shm_name_parse(const char *name, struct dlx_shm_name *ret);

/* Can the process that made the name still exist? True when that is not known. */
bool dlx__shm_name_is_alive(const struct dlx_shm_name *name);

#endif
