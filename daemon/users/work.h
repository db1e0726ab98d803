/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_WORK_H
#define DLXD_WORK_H

/*
 * How users share the daemon's time. What takes time that depends on what clients send, or on what others registered, is
 * a task: it is done in bounded steps. Each user (user.h) has a queue of tasks. In a turn of the loop, users with tasks
 * work one after the other for a slice of time each, and the tasks of a user one step each, until the turn is over; then
 * the loop looks at its sockets again. So a client waits for a slice of each other user at most, however many
 * connections, requests or objects those have.
 *
 * A task that is to read a request of a user who has made as many in a second as its quota allows (pace.h) waits, and
 * the others of that user go on.
 *
 * A task belongs to an object that holds its user. The daemon's thread only.
 */

#include "daemon/base/list.h"
#include <stdint.h>

struct dlxd_user;
struct dlxd_users;

/* So long a user works before the next one does, and all of them before the loop looks at its sockets: at most a step longer. */
#define DLXD_SLICE_NS UINT64_C(250000)
#define DLXD_TURN_NS  UINT64_C(2000000)

struct dlxd_task {
    struct dlxd_list node; /* in the queue of its user, or in `paced` of its user */
    bool is_paced;
    /* Do a bounded part. True: there is more to do. When it returns false, the task may be gone. */
    bool (*step)(struct dlxd_task *task);
};

void dlxd_task_init(struct dlxd_task *task, bool (*step)(struct dlxd_task *task));
/* It has something to do. Harmless if it is in the queue; if it waits, it waits no longer. */
void dlxd_task_start(struct dlxd_task *task, struct dlxd_user *user);
/* For a step: start it when its user may make another request. */
void dlxd_task_wait(struct dlxd_task *task, struct dlxd_user *user);
void dlxd_task_stop(struct dlxd_task *task);

/* Packets of a socket are read in steps of the task of whom the socket belongs to. */
enum dlxd_input {
    DLXD_INPUT_NONE,
    DLXD_INPUT_READY,  /* there may be a packet */
    DLXD_INPUT_PAUSED, /* likewise, and the loop does not look at the socket, as it told so before */
};

/* The loop says that there is something to read. */
static inline enum dlxd_input dlxd_input_seen(enum dlxd_input before)
{
    return before == DLXD_INPUT_NONE ? DLXD_INPUT_READY : DLXD_INPUT_PAUSED;
}

bool dlxd_work_is_left(const struct dlxd_users *users);
/* When the first of the tasks that wait may go on; UINT64_MAX: none does. */
uint64_t dlxd_work_next_ns(struct dlxd_users *users, uint64_t now_ns);
/* Start those that may go on, as many as their users may make requests, the ones that have waited
 * longest. */
void dlxd_work_wake(struct dlxd_users *users, uint64_t now_ns);
/* Work for so long; UINT64_MAX: until nothing is left but what waits. */
void dlxd_work_run(struct dlxd_users *users, uint64_t ns);

#endif
