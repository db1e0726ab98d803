/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_RESIDUE_H
#define DLXD_RESIDUE_H

/*
 * Names of POSIX shared memory (common/shm_name.h) that a daemon left which was killed in the moment in which
 * they exist.
 */

#include "common/util.h"

#define DLXD_RESIDUE_DIR "/dev/shm"

/* Remove from `dir` the files of this user with a name of a daemon of this user whose process is gone. Logs
 * how many, and those that cannot be removed. Returns how many were removed. */
size_t dlxd_residue_clean(const char *dir);

#endif
