/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_UPGRADE_H
#define DLXD_UPGRADE_H

/*
 * Another program takes the place of this one in the same process, by execve(2), with everything
 * that publishers retain (docs/decisions/0030).
 *
 *   IDLE --(begin)--> TRYING --(the new program can take over)--> WAITING --(no job runs)--> execve(2)
 *    ^                  |                                            |
 *    +------------------+--(it cannot, or it fails: the log says why)+
 *
 * While it is TRYING and WAITING the daemon serves its clients.
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
    char *program;     /* the path of this program when it started; NULL: not known */
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

/* Can do nothing before dlxd_upgrade_enable(). */
void dlxd_upgrade_init(struct dlxd_upgrade *upgrade, uv_loop_t *loop, struct dlxd_broker *broker);
/* The arguments for the new program, which stay the caller's. `hand_over_sockets` adds the sockets
 * that are listened on, and `fn` is called when an upgrade has come to nothing. */
void dlxd_upgrade_enable(struct dlxd_upgrade *upgrade, char *const *argv,
                         int (*hand_over_sockets)(void *data, struct dlxd_handover *handover),
                         void (*fn)(void *data), void *data);
/* Nothing is called any more. The timer closes with the loop. */
void dlxd_upgrade_deinit(struct dlxd_upgrade *upgrade);

/* Is the file at the path of this program another one than the one that runs? */
bool dlxd_upgrade_is_due(const struct dlxd_upgrade *upgrade);
/* Begin. Returns 0, also when it is under way already; DLX_E_NOT_FOUND (the path is not known),
 * DLX_E_NO_MEMORY, DLX_E_SYSTEM: `fn` is not called. */
int dlxd_upgrade_begin(struct dlxd_upgrade *upgrade);

/* Signals that wait while a program takes the place of another one: they are blocked when it
 * begins, and it lets them through when it has handlers for them. */
void dlxd_upgrade_block_signals(bool block);

#endif
