/* SPDX-License-Identifier: Apache-2.0 */
#include "common/shm_name.h"
#include "common/error.h"
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define RANDOM_SIZE 16U

/* Returns the start time of a process and sets its state. Returns 0 if they are unknown. */
static uint64_t start_time(pid_t pid, char *ret_state)
{
    char path[64], text[1024];
    unsigned long long start;
    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    dlx_cleanup(dlx__closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (n <= 0)
        return 0;
    text[n] = '\0';
    /* "pid (name) state ...": the name may contain anything. The start time is field 22. */
    const char *at = strrchr(text, ')');
    if (!at || sscanf(at + 1,
                      " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s"
                      " %llu",
                      ret_state, &start) != 2)
        return 0;
    return start;
}

int dlx__shm_name_make(char ret[DLX_SHM_NAME_SIZE])
{
    uint8_t random[RANDOM_SIZE];
    char hex[2 * RANDOM_SIZE + 1], state;
    ssize_t got;
    do
        got = getrandom(random, sizeof random, 0); /* this few bytes always come whole */
    while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof random)
        return dlx__fail_errno("getrandom");
    for (size_t i = 0; i < sizeof random; i++)
        (void)snprintf(hex + 2 * i, 3, "%02x", random[i]);
    (void)snprintf(ret, DLX_SHM_NAME_SIZE, "/" DLX_SHM_NAME_PREFIX "%u.%d.%" PRIu64 ".%s",
                   (unsigned)geteuid(), (int)getpid(), start_time(getpid(), &state), hex);
    return 0;
}

/* Parses a decimal number as printf writes it, followed by a dot. */
static bool shm_name_parse_number(const char **at, uint64_t max, uint64_t *ret)
{
    const char *p = *at;
    uint64_t value = 0;
    if (*p == '0' && p[1] != '.')
        return false;
    for (; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(value, 10U, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*p - '0'), &value))
            return false;
    if (p == *at || *p != '.' || value > max)
        return false;
    *at = p + 1;
    *ret = value;
    return true;
}

bool dlx__shm_name_parse(const char *name, struct dlx_shm_name *ret)
{
    uint64_t uid, pid, start;
    if (strncmp(name, DLX_SHM_NAME_PREFIX, strlen(DLX_SHM_NAME_PREFIX)) != 0)
        return false;
    name += strlen(DLX_SHM_NAME_PREFIX);
    if (!shm_name_parse_number(&name, UINT32_MAX, &uid) ||
        !shm_name_parse_number(&name, INT_MAX, &pid) ||
        !shm_name_parse_number(&name, UINT64_MAX, &start) || pid == 0)
        return false;
    if (strlen(name) != (size_t)2 * RANDOM_SIZE ||
        strspn(name, "0123456789abcdef") != (size_t)2 * RANDOM_SIZE)
        return false;
    *ret = (struct dlx_shm_name){.uid = (uid_t)uid, .pid = (pid_t)pid, .start = start};
    return true;
}

bool dlx__shm_name_is_alive(const struct dlx_shm_name *name)
{
    char state = '?';
    if (kill(name->pid, 0) < 0 && errno == ESRCH)
        return false;
    uint64_t start = start_time(name->pid, &state);
    if (start == 0)
        return true;
    /* A zombie is dead for our purposes. */
    return state != 'Z' && state != 'X' && (name->start == 0 || start == name->start);
}
