/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/daemon/harness_worker.h"
#include <fcntl.h>

enum { CONTROL_FD, BELL_FD, CLAIMS_FD, PROBE_FD, GROUP_BELL_FD, N_FDS };

void dlx_worker_begin(struct dlx_worker *worker, int control, Dlx__Wire__Subscribe *request)
{
    const Dlx__Wire__Packet *reply =
        dlx_test_call_for(control, BODY(SUBSCRIBE), request, BODY(SUBSCRIBE_REPLY));
    *worker = (struct dlx_worker){.sub = {.id = reply->subscribe_reply->subscription,
                                          .n_offers = reply->subscribe_reply->n_offers,
                                          .fd = dlx_test_take_fd(0)},
                                  .claims = -1,
                                  .probe = -1,
                                  .bell = -1};
}

const Dlx__Wire__LinkOpen *dlx_worker_open(struct dlx_worker *worker)
{
    const Dlx__Wire__LinkOpen *open = dlx_test_expect(worker->sub.fd, BODY(LINK_OPEN))->link_open;
    ck_assert_uint_eq(open->link, worker->link);
    ck_assert_uint_eq(dlx_test_n_fds(), N_FDS);
    ck_assert_uint_eq(open->claims_size, dlx_shm_claims_size(DLX_WORKER_ENTRIES));
    worker->owner = open->owner;
    worker->claims = dlx_test_take_fd(CLAIMS_FD);
    worker->probe = dlx_test_take_fd(PROBE_FD);
    worker->bell = dlx_test_take_fd(GROUP_BELL_FD);
    dlx_test_ack(&worker->sub);
    return open;
}

void dlx_worker_join(struct dlx_worker *worker, int control, Dlx__Wire__Subscribe *request)
{
    dlx_worker_begin(worker, control, request);
    worker->link = dlx_test_accept_offer(&worker->sub);
    (void)dlx_worker_open(worker);
}

void dlx_worker_deinit(struct dlx_worker *worker)
{
    worker->claims = dlx__close(worker->claims);
    worker->probe = dlx__close(worker->probe);
    worker->bell = dlx__close(worker->bell);
    dlx_test_subscription_deinit(&worker->sub);
}

struct dlx_test_publisher dlx_worker_publisher(uint32_t on_full, const char *group)
{
    struct dlx_test_publisher publisher;
    Dlx__Wire__PublisherNew request = dlx_test_publisher_request("t");
    char *groups[] = {WIRE_TEXT(group)};
    request.on_full = on_full;
    request.groups = groups;
    request.n_groups = group ? 1 : 0;
    dlx_test_publisher_new_from(&publisher, dlx_served_client, &request);
    dlx_test_publisher_ready(&publisher);
    return publisher;
}

void dlx_worker_publish(const struct dlx_test_publisher *publisher, uint64_t head, uint64_t oldest)
{
    struct dlx_shm_control *control = publisher->block;
    for (uint64_t n = oldest; n <= head; n++) {
        dlx_store64_relaxed(&control->entries[n % DLX_WORKER_ENTRIES].words[0], 1000 + n);
        dlx_store64_relaxed(&control->entries[n % DLX_WORKER_ENTRIES].gen, n);
    }
    dlx_store64_relaxed(&control->oldest, oldest);
    dlx_store64_relaxed(&control->head, head);
}

bool dlx_worker_is_locked(int probe, uint32_t owner)
{
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)owner, .l_len = 1};
    ck_assert_int_eq(fcntl(probe, F_OFD_GETLK, &lock), 0);
    return lock.l_type != F_UNLCK;
}

void dlx_worker_set_word(const struct dlx_worker *worker, size_t at, uint64_t value)
{
    ck_assert_int_eq(pwrite(worker->claims, &value, sizeof value, (off_t)at), sizeof value);
}

void dlx_worker_set_cell(const struct dlx_worker *worker, uint64_t n, enum dlx_shm_cell_state state,
                         uint32_t owner, uint32_t attempt)
{
    uint64_t cell = dlx_shm_cell_pack((struct dlx_shm_cell){
        .state = state, .attempt = attempt, .owner = owner, .lap = n / DLX_WORKER_ENTRIES + 1});
    dlx_worker_set_word(
        worker, offsetof(struct dlx_shm_claims, cells) + 8 * (n % DLX_WORKER_ENTRIES), cell);
}

const Dlx__Wire__GroupEntry *dlx_worker_listed(void)
{
    const Dlx__Wire__GroupList *list =
        dlx_test_call_for(dlx_served_client, LIST_GROUPS(.topic = WIRE_TEXT("t")), BODY(GROUP_LIST))
            ->group_list;
    ck_assert_uint_eq(list->n_entries, 1); /* a step may end before the list */
    return list->entries[0];
}
