/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_STALE_SHM_H
#define DLXD_STALE_SHM_H

/* Stale names of POSIX shared memory (common/shm_name.h), left by a daemon that was killed in the
 * moment in which such a name exists. */

#include "common/util.h"

#define DLXD_STALE_SHM_DIR "/dev/shm"

/* Removes the stale files of this user from `dir`: those whose names were made by a daemon of this
 * user that has ended. Logs how many, and those that cannot be removed. Returns how many were
 * removed. */
size_t dlxd_stale_shm_clean(const char *dir);

#endif
