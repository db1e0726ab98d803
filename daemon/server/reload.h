/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_RELOAD_H
#define DLXD_RELOAD_H

/*
 * The configuration: read at the start, and again when SIGHUP comes. A file may lie on a file
 * system that does not answer, and users and groups may be asked of a name service. So after the
 * start all of it is read and built by a worker, beside the loop, which only puts the result into
 * place.
 *
 *   IDLE <--> READING <--> READING_AGAIN (SIGHUP came meanwhile)
 */

#include "daemon/server/config.h"

struct dlxd_server;

struct dlxd_config_source {
    const char *path;      /* NULL: there is no file */
    uint64_t memory_limit; /* by --memory-limit; 0: not set */
    const uid_t *allowed;  /* by --allow-user */
    size_t n_allowed;
};

enum dlxd_reload_state {
    DLXD_RELOAD_IDLE,
    DLXD_RELOAD_READING,
    DLXD_RELOAD_READING_AGAIN,
};

struct dlxd_reload {
    struct dlxd_config_source source;
    struct dlxd_config config;
    struct dlxd_server *server; /* NULL: it does not run, and what is read is not used */
    enum dlxd_reload_state state;
};

/* Reads `source` into `config`, and waits for it. As dlxd_config_read(). */
int dlxd_reload_read(const struct dlxd_config_source *source, struct dlxd_config *config);
/* Handles SIGHUP: dlxd_server_on_hangup(). Calls dlxd_server_reloaded() when all is done. */
void dlxd_reload_begin(void *reload);
void dlxd_reload_deinit(struct dlxd_reload *reload);

#endif
