/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DLXD_WORK_H
#define DLXD_WORK_H

/*
 * How users share the daemon's time. Work whose duration depends on what clients send or have
 * registered is a task, done in bounded steps. Each user (user.h) has a queue of tasks. In a turn
 * of the loop, users with tasks work one after the other for one time slice each, and the tasks of
 * a user for one step each; then the loop checks its sockets again. A step that has more to do goes
 * on until the slice is over. So a client waits for little more than one slice of each other user,
 * however many connections, requests or objects those have.
 *
 * If a user has made as many requests in a second as its quota allows (pace.h), a task that would
 * read another request waits, and the user's other tasks continue.
 *
 * A task belongs to an object that holds its user. Only the loop's thread runs tasks.
 */

#include "daemon/base/list.h"
#include <stdint.h>

struct dlxd_user;
struct dlxd_users;

/* How long a user works before the next one, and how long a turn of many users lasts: at most one
 * unit of work longer. Users that had no slice in a turn are first in the next one. */
#define DLXD_SLICE_NS UINT64_C(250000)
#define DLXD_TURN_NS  UINT64_C(2000000)

struct dlxd_task {
    struct dlxd_list node; /* in `tasks` or `deferred_tasks` of its user */
    bool is_deferred;
    /* Does a bounded part. Returns true if there is more to do. After false, the task may be
     * freed. */
    bool (*step)(struct dlxd_task *task);
};

void dlxd_task_init(struct dlxd_task *task, bool (*step)(struct dlxd_task *task));
/* Queues the task, which has something to do. Does nothing if it is queued; ends its wait for the
 * pace. */
void dlxd_task_start(struct dlxd_task *task, struct dlxd_user *user);
/* For a step: start the task when its user may make another request. */
void dlxd_task_defer(struct dlxd_task *task, struct dlxd_user *user);
void dlxd_task_stop(struct dlxd_task *task);
/* After each unit of work that takes up to 0.1 ms: is it time for others? True outside of steps, so
 * what begins there does one unit, and its task does the others. */
bool dlxd_slice_is_over(const struct dlxd_users *users);

/* A socket is read in steps of the task of its owner. */
enum dlxd_input {
    DLXD_INPUT_NONE,
    DLXD_INPUT_READY,  /* there may be a packet */
    DLXD_INPUT_PAUSED, /* likewise, and the loop ignores the socket, which it reported twice */
};

/* The loop reports that the socket is readable. */
static inline enum dlxd_input dlxd_input_seen(enum dlxd_input before)
{
    return before == DLXD_INPUT_NONE ? DLXD_INPUT_READY : DLXD_INPUT_PAUSED;
}

bool dlxd_work_is_left(const struct dlxd_users *users);
/* When the first waiting task may continue; UINT64_MAX: no task waits. */
uint64_t dlxd_work_next_ns(struct dlxd_users *users, uint64_t now_ns);
/* Starts the longest-waiting tasks of each user, as many as it may make requests. */
void dlxd_work_wake(struct dlxd_users *users, uint64_t now_ns);
/* Works for a turn of the loop. */
void dlxd_work_run_turn(struct dlxd_users *users);
/* Works for `ns`; UINT64_MAX: until only waiting tasks are left. */
void dlxd_work_run(struct dlxd_users *users, uint64_t ns);

#endif
