/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLX_COMMON_SHM_NAME_H
#define DLX_COMMON_SHM_NAME_H

/* Names of POSIX shared memory: "/dlpackd.<uid>.<pid>.<start>.<random>". A name exists only until
 * the daemon has opened the file a second time, and nobody can guess it. From the uid, pid and
 * start time, a later daemon recognizes stale names of a killed daemon. */

#include "common/util.h"
#include <sys/types.h>

#define DLX_SHM_NAME_PREFIX "dlpackd."
#define DLX_SHM_NAME_SIZE   128U

struct dlx_shm_name {
    uid_t uid;
    pid_t pid;
    uint64_t start; /* of the pid, in clock ticks after boot; 0: unknown (no /proc) */
};

/* Makes a new name of this process, with the leading slash. Returns 0 or DLX_E_SYSTEM. */
int dlx__shm_name_make(char ret[DLX_SHM_NAME_SIZE]);

/* Is it such a name, without the slash, exactly as dlx__shm_name_make() writes it? */
bool dlx__shm_name_parse(const char *name, struct dlx_shm_name *ret);

/* Can the process that made the name still exist? Returns true if that is unknown. */
bool dlx__shm_name_is_alive(const struct dlx_shm_name *name);

#endif
