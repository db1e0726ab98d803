/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLI_SERVE_LISTEN_H
#define CLI_SERVE_LISTEN_H

/** Where `dlxctl serve` listens: an address of loopback, or a socket in the file system. */

#include "cli/error.h"
#include <stdbool.h>

struct serve_listen {
    int fd;
    bool is_unix;
    char address[128]; /**< as it is shown: "127.0.0.1:9464", "unix:/run/x" */
    char path[108];    /**< of a socket that this process made; removed at the end */
};

/** `text`: "127.0.0.1:9464", "[::1]:9464", "localhost:9464" or "unix:PATH"; port 0 is a free one.
 *  Returns 0; DLX_E_INVALID (no address of loopback), DLX_E_IN_USE, DLX_E_SYSTEM. */
int serve_listen_open(struct serve_listen *l, const char *text, struct cli_error *e);
void serve_listen_close(struct serve_listen *l);

#endif
