/* SPDX-License-Identifier: Apache-2.0 */
#include "common/pid_namespace.h"
#include <sys/stat.h>

uint64_t dlx__pid_namespace(void)
{
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
}
