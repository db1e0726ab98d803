/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/cli.h"
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <unistd.h>

/* A standard descriptor that is closed would be the number of the next file or socket, which then gets what is printed. What takes
 * its place says EBADF to who uses it. */
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
        return CLI_FAILURE; /* where could it be said? */
    /* a file that gets too long (ulimit -f) is an error like a full disk */
    (void)signal(SIGXFSZ, SIG_IGN);
    return cli_run(argc, argv);
}
