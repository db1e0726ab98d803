/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: bytes as a packet of the GPU keeper. An accepted packet has all of its parts, and
 * means the same when it is sent again. The bytes are also what publishers ask for: the table of
 * what was made has each allocation once, in order, and counts them.
 */
#include "common/error.h"
#include "keeper/memory.h"
#include "keeper/wire.h"
#include "tests/fuzz/harness_fuzz.h"
#include <string.h>
#include <sys/socket.h>

#define N_FDS_MOST   40U
#define N_PUBLISHERS 4U

static struct dlx_packet packet, again;

static void check_packet(struct dlx_fuzz *f)
{
    struct dlx_keeper_packet got, second;
    int pair[2];
    const size_t n_fds = dlx_fuzz_choose(f, 3);
    dlx__error_clear();
    packet.n_fds = n_fds;
    packet.size = DLX_MIN(f->left, (size_t)DLX_PACKET_SIZE_MAX);
    memcpy(packet.data, f->at, packet.size);
    if (dlx__keeper_decode(&packet, &got) < 0) {
        REQUIRE(*dlx__error_message());
        return;
    }
    REQUIRE(got.body == packet.data + DLX_KEEPER_HEADER_SIZE);
    REQUIRE(got.body_size == packet.size - DLX_KEEPER_HEADER_SIZE);
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    const int fds[] = {pair[0], pair[0]};
    REQUIRE(dlx__keeper_send(pair[0], &got, fds, n_fds) == 0);
    REQUIRE(dlx__packet_recv_fds(pair[1], &again) == 0);
    REQUIRE(dlx__keeper_decode(&again, &second) == 0);
    REQUIRE(again.size == packet.size && memcmp(again.data, packet.data, packet.size) == 0);
    REQUIRE(again.n_fds == n_fds);
    dlx__packet_deinit(&again);
    close(pair[0]);
    close(pair[1]);
}

static void check_table(const struct dlxk_memory *memory)
{
    uint32_t n_fds = 0;
    dlx_for_each (it, &memory->publishers) {
        const struct dlxk_publisher *publisher =
            dlxd_container_of(it, const struct dlxk_publisher, node);
        uint64_t n_bytes = 0;
        REQUIRE(dlxk_memory_find(memory, publisher->origin, publisher->user) == publisher);
        REQUIRE(dlxk_memory_is_needed(publisher));
        for (uint32_t i = 0; i < publisher->n; i++) {
            const struct dlx_gpu_handle *handle = &publisher->items[i];
            REQUIRE(i == 0 || publisher->items[i - 1].id < handle->id);
            REQUIRE(dlxk_memory_get(publisher, handle->id) == handle);
            n_bytes += handle->size;
        }
        REQUIRE(publisher->n_bytes == n_bytes);
        n_fds += 1 + publisher->n;
    }
    REQUIRE(memory->n_fds == n_fds && n_fds <= N_FDS_MOST);
}

static void make(struct dlx_fuzz *f, struct dlxk_memory *memory, uint64_t origin, uint64_t id)
{
    struct dlx_gpu_handle handle = {0};
    struct dlxk_publisher *publisher = NULL;
    const struct dlxk_publisher *before = dlxk_memory_find(memory, origin, origin % 3);
    bool is_there = before && dlxk_memory_get(before, id);
    int r = dlxk_memory_reserve(memory, origin, origin % 3, id, &publisher);
    REQUIRE(!is_there || r == DLX_E_INVALID);
    if (r < 0) {
        REQUIRE(*dlx__error_message());
        return;
    }
    bool is_made = dlx_fuzz_choose(f, 4) > 0;
    REQUIRE(dlx__gpu_handle_reserve(&handle, 1) == 0);
    handle.id = id;
    handle.size = 1 + dlx_fuzz_choose(f, 1000);
    handle.chunks[0].size = handle.size;
    if (is_made)
        dlxk_memory_put(memory, publisher, &handle);
    else
        dlx__gpu_handle_deinit(&handle);
    if (!dlxk_memory_is_needed(publisher))
        dlxk_memory_remove(memory, publisher);
}

static void change(struct dlx_fuzz *f, struct dlxk_memory *memory)
{
    uint64_t origin = 1 + dlx_fuzz_choose(f, N_PUBLISHERS), id = 1 + dlx_fuzz_choose(f, 64);
    struct dlxk_publisher *publisher = dlxk_memory_find(memory, origin, origin % 3);
    switch (dlx_fuzz_choose(f, 8)) {
    case 0:
        if (publisher)
            dlxk_memory_free_all(memory, publisher);
        break;
    case 1:
    case 2:
        if (publisher)
            dlxk_memory_free(memory, publisher, id);
        break;
    case 3: /* the daemon is told */
        if (publisher)
            publisher->told = publisher->n_bytes;
        break;
    default:
        make(f, memory, origin, id);
        return;
    }
    if (publisher && !dlxk_memory_is_needed(publisher))
        dlxk_memory_remove(memory, publisher);
}

static void check_changes(struct dlx_fuzz *f)
{
    struct dlxk_memory memory;
    dlxk_memory_init(&memory, N_FDS_MOST);
    for (int i = 0; i < 256 && f->left > 0; i++) {
        change(f, &memory);
        check_table(&memory);
    }
    dlxk_memory_deinit(&memory);
    REQUIRE(memory.n_fds == 0 && dlxd_list_empty(&memory.publishers));
}

void dlx_fuzz_one(struct dlx_fuzz *f)
{
    if (dlx_fuzz_choose(f, 2) == 0)
        check_packet(f);
    else
        check_changes(f);
}
