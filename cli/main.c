/* SPDX-License-Identifier: Apache-2.0 */

/* The program: safe standard descriptors, then cli_run(). */

#include "cli/cli.h"
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <unistd.h>

/* If a standard descriptor is closed, the next file or socket gets its number, and with it what is
 * printed. So a descriptor takes its place that fails with EBADF when used. */
static bool fill_standard_fds(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 &&
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
            return false;
    return true;
}

int main(int argc, char **argv)
{
    if (!fill_standard_fds())
        return CLI_FAILURE; /* there is nowhere to report it */
    /* a file that gets too long (ulimit -f) is an error like a full disk */
    (void)signal(SIGXFSZ, SIG_IGN);
    return cli_run(argc, argv);
}
