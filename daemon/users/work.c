/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/users/work.h"
#include "common/util.h"
#include "daemon/users/user.h"

void dlxd_task_init(struct dlxd_task *task, bool (*step)(struct dlxd_task *task))
{
    dlxd_list_init(&task->node);
    task->is_deferred = false;
    task->step = step;
}

/* Appends the user to the working users if it has tasks. */
static void work_enlist(struct dlxd_user *user)
{
    if (!dlxd_list_empty(&user->tasks) && !dlxd_list_linked(&user->working))
        dlxd_list_push_back(&user->users->working, &user->working);
}

void dlxd_task_start(struct dlxd_task *task, struct dlxd_user *user)
{
    if (task->is_deferred)
        dlxd_task_stop(task);
    if (dlxd_list_linked(&task->node))
        return;
    dlxd_list_push_back(&user->tasks, &task->node);
    work_enlist(user);
}

void dlxd_task_defer(struct dlxd_task *task, struct dlxd_user *user)
{
    task->is_deferred = true;
    dlxd_list_push_back(&user->deferred_tasks, &task->node);
    if (!dlxd_list_linked(&user->in_deferred))
        dlxd_list_push_back(&user->users->deferred_users, &user->in_deferred);
}

void dlxd_task_stop(struct dlxd_task *task)
{
    task->is_deferred = false;
    dlxd_list_remove(&task->node);
}

/* ---- tasks that wait ------------------------------------------------------------------------- */

uint64_t dlxd_work_next_ns(struct dlxd_users *users, uint64_t now)
{
    uint64_t next = UINT64_MAX;
    dlx_for_each (it, &users->deferred_users) {
        struct dlxd_user *user = dlxd_container_of(it, struct dlxd_user, in_deferred);
        if (dlxd_list_empty(&user->deferred_tasks)) /* they were stopped */
            dlxd_list_remove(&user->in_deferred);
        else
            next = DLX_MIN(next, dlxd_user_next_request_ns(user, now));
    }
    return next;
}

static void wake(struct dlxd_user *user, uint64_t now)
{
    uint64_t max = dlxd_user_limit(user, DLXD_REQUESTS), used = dlxd_pace_used(&user->pace, now);
    for (; used < max && !dlxd_list_empty(&user->deferred_tasks); used++)
        dlxd_task_start(dlxd_container_of(user->deferred_tasks.next, struct dlxd_task, node), user);
}

void dlxd_work_wake(struct dlxd_users *users, uint64_t now)
{
    dlx_for_each (it, &users->deferred_users)
        wake(dlxd_container_of(it, struct dlxd_user, in_deferred), now);
}

/* ---- turns ----------------------------------------------------------------------------------- */

/* Runs one step of each task in turn. */
static void run_user(struct dlxd_user *user)
{
    do {
        struct dlxd_task *task = dlxd_container_of(user->tasks.next, struct dlxd_task, node);
        dlxd_list_remove(&task->node);
        if (task->step(task))
            dlxd_task_start(task, user);
    } while (!dlxd_list_empty(&user->tasks) && !dlxd_slice_is_over(user->users));
}

bool dlxd_slice_is_over(const struct dlxd_users *users)
{
    return dlx__now_ns() >= users->slice_end_ns;
}

bool dlxd_work_is_left(const struct dlxd_users *users)
{
    return !dlxd_list_empty(&users->working);
}

/* The user that has waited longest works for a slice. */
static void run_first(struct dlxd_users *users, uint64_t now, uint64_t end)
{
    struct dlxd_user *user =
        dlxd_user_ref(dlxd_container_of(users->working.next, struct dlxd_user, working));
    dlxd_list_remove(&user->working);
    user->turn = users->turn;
    users->slice_end_ns = DLX_MIN(end, now + DLXD_SLICE_NS);
    if (!dlxd_list_empty(&user->tasks)) /* they may have been stopped */
        run_user(user);
    users->slice_end_ns = 0;
    work_enlist(user);
    dlxd_user_unref(user);
}

static bool had_its_slice(const struct dlxd_users *users)
{
    return dlxd_container_of(users->working.next, struct dlxd_user, working)->turn == users->turn;
}

void dlxd_work_run_turn(struct dlxd_users *users)
{
    uint64_t now = dlx__now_ns(), end = now + DLXD_TURN_NS;
    users->turn++;
    while (!dlxd_list_empty(&users->working) && now < end && !had_its_slice(users)) {
        run_first(users, now, end);
        now = dlx__now_ns();
    }
}

void dlxd_work_run(struct dlxd_users *users, uint64_t ns)
{
    uint64_t now = dlx__now_ns(), end = ns < UINT64_MAX - now ? now + ns : UINT64_MAX;
    while (!dlxd_list_empty(&users->working) && now < end) {
        run_first(users, now, end);
        now = dlx__now_ns();
    }
}
