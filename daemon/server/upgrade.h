/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_UPGRADE_H
#define DLXD_UPGRADE_H

/*
 * An upgrade: another program takes the place of this one in the same process, by execve(2), with
 * everything that publishers retain (docs/decisions/0030).
 *
 *   IDLE --(begin)--> TRYING --(the new program can take over)--> WAITING --(no job runs)--> exec
 *    ^                  |                                            |
 *    +------------------+--(it cannot, or it fails: logged)----------+
 *
 * The daemon serves its clients while it is TRYING or WAITING.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <uv.h>

struct dlxd_broker;
struct dlxd_handover;
struct dlxd_upgrade_trial;

enum dlxd_upgrade_state { DLXD_UPGRADE_IDLE, DLXD_UPGRADE_TRYING, DLXD_UPGRADE_WAITING };

struct dlxd_upgrade {
    struct dlxd_broker *broker;
    char *const *argv; /* NULL: this daemon cannot be replaced */
    char *program;     /* the path of this program at its start; NULL: unknown */
    dev_t dev;         /* of the file that runs */
    ino_t ino;
    enum dlxd_upgrade_state state;
    struct dlxd_upgrade_trial *trial;
    uint64_t waits_since_ns;
    bool has_complained;
    uv_timer_t timer;
    int (*hand_over_sockets)(void *data, struct dlxd_handover *handover);
    void (*fn)(void *data);
    void *data;
};

/* Does nothing before dlxd_upgrade_enable(). */
void dlxd_upgrade_init(struct dlxd_upgrade *upgrade, uv_loop_t *loop, struct dlxd_broker *broker);
/* Sets the arguments for the new program, which the caller keeps. `hand_over_sockets` adds the
 * listening sockets; `fn` is called when an upgrade has failed. */
void dlxd_upgrade_enable(struct dlxd_upgrade *upgrade, char *const *argv,
                         int (*hand_over_sockets)(void *data, struct dlxd_handover *handover),
                         void (*fn)(void *data), void *data);
/* Calls nothing any more. The timer is closed with the loop. */
void dlxd_upgrade_deinit(struct dlxd_upgrade *upgrade);

/* Is the file at the path of this program another one than the one that runs? */
bool dlxd_upgrade_is_due(const struct dlxd_upgrade *upgrade);
/* Starts an upgrade. Returns 0, also if one is in progress; or, without calling `fn`,
 * DLX_E_NOT_FOUND (the path is unknown), DLX_E_NO_MEMORY, DLX_E_SYSTEM. */
int dlxd_upgrade_begin(struct dlxd_upgrade *upgrade);

/* Signals stay pending while a program takes the place of another one: the old program blocks them,
 * and the new one unblocks them when it has handlers. */
void dlxd_upgrade_block_signals(bool block);

#endif
