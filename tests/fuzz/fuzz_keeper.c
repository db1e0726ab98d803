/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: bytes as a packet of the GPU keeper. An accepted packet has all of its parts, and
 * means the same when it is sent again. The bytes are also parts of descriptions that a publisher
 * puts: a holder keeps whole ones, and counts them.
 */
#include "common/error.h"
#include "keeper/shelf.h"
#include "keeper/wire.h"
#include "tests/fuzz/harness_fuzz.h"
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>

#define N_FDS_MOST 40U

static struct dlx_packet packet, again;

static void check_packet(struct dlx_fuzz *f)
{
    struct dlx_keeper_packet got, second;
    int pair[2];
    dlx__error_clear();
    packet.n_fds = 0;
    packet.size = DLX_MIN(f->left, (size_t)DLX_PACKET_SIZE_MAX);
    memcpy(packet.data, f->at, packet.size);
    if (dlx__keeper_decode(&packet, &got) < 0) {
        REQUIRE(*dlx__error_message());
        return;
    }
    REQUIRE(got.body == packet.data + DLX_KEEPER_HEADER_SIZE);
    REQUIRE(got.body_size == packet.size - DLX_KEEPER_HEADER_SIZE);
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    REQUIRE(dlx__keeper_send(pair[0], &got, NULL, 0) == 0);
    REQUIRE(dlx__packet_recv_fds(pair[1], &again) == 0);
    REQUIRE(dlx__keeper_decode(&again, &second) == 0);
    REQUIRE(again.size == packet.size && memcmp(again.data, packet.data, packet.size) == 0);
    close(pair[0]);
    close(pair[1]);
}

/* A part as a publisher sends it, with some bytes of it changed. */
static size_t make_part(struct dlx_fuzz *f, uint8_t ret[DLX_GPU_BYTES_MAX], size_t *ret_n_fds)
{
    int borrowed[DLX_PACKET_FDS_MAX];
    struct dlx_gpu_chunk chunks[8];
    uint32_t n = 1 + (uint32_t)dlx_fuzz_choose(f, 8);
    for (uint32_t i = 0; i < n; i++)
        chunks[i] = (struct dlx_gpu_chunk){.size = 1 + dlx_fuzz_choose(f, 3), .fd = -1};
    struct dlx_gpu_handle handle = {.kind = 1 + dlx_fuzz_choose(f, 5),
                                    .id = dlx_fuzz_choose(f, 4),
                                    .n_chunks = n,
                                    .chunks = chunks};
    for (uint32_t i = 0; i < n; i++)
        handle.size += chunks[i].size;
    uint32_t first = (uint32_t)dlx_fuzz_choose(f, n);
    uint32_t n_most = 1 + (uint32_t)dlx_fuzz_choose(f, 8);
    size_t size = dlxk_shelf_part(&handle, first, n_most, ret, borrowed, ret_n_fds);
    if (dlx_fuzz_choose(f, 3) == 0)
        ret[dlx_fuzz_choose(f, (unsigned)size)] = (uint8_t)dlx_fuzz_bytes(f, 1);
    return size;
}

static void check_shelf(const struct dlxk_shelf *shelf)
{
    uint32_t n_fds = shelf->incoming.n_chunks;
    for (uint32_t i = 0; i < shelf->n; i++) {
        const struct dlx_gpu_handle *handle = &shelf->items[i];
        REQUIRE(i == 0 || shelf->items[i - 1].id < handle->id);
        REQUIRE(dlx__gpu_handle_is_complete(handle) && handle->n_chunks > 0);
        REQUIRE(dlxk_shelf_find(shelf, handle->id) == handle);
        n_fds += handle->n_chunks;
    }
    REQUIRE(shelf->n_fds == n_fds && n_fds <= N_FDS_MOST);
}

static void check_puts(struct dlx_fuzz *f)
{
    static uint8_t part[DLX_GPU_BYTES_MAX];
    struct dlxk_shelf shelf = {.n_fds_most = N_FDS_MOST};
    for (int i = 0; i < 64 && f->left > 0; i++) {
        int fds[DLX_PACKET_FDS_MAX];
        size_t n_fds;
        if (dlx_fuzz_choose(f, 6) == 0) {
            dlxk_shelf_drop(&shelf, dlx_fuzz_choose(f, 4));
            check_shelf(&shelf);
            continue;
        }
        size_t size = make_part(f, part, &n_fds);
        for (size_t k = 0; k < n_fds; k++)
            fds[k] = open("/dev/null", O_RDONLY | O_CLOEXEC);
        (void)dlxk_shelf_put(&shelf, (uint32_t)dlx_fuzz_choose(f, 3), part, size, fds, n_fds);
        for (size_t k = 0; k < n_fds; k++)
            dlx__close(fds[k]);
        check_shelf(&shelf);
    }
    dlxk_shelf_deinit(&shelf);
}

void dlx_fuzz_one(struct dlx_fuzz *f)
{
    if (dlx_fuzz_choose(f, 2) == 0)
        check_packet(f);
    else
        check_puts(f);
}
