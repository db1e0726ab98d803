/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A publisher and a subscriber of GPU memory for tests/service/check_systemd.sh; a memfd stands for
 * the memory.
 *
 *   keeper_actor put TOPIC CHUNKS    hand a new allocation to the keeper, publish a message that is
 *                                    retained, and end
 *   keeper_actor get TOPIC           take the message, and get the allocation from the keeper
 *
 * Both print the allocation: its number of chunks and the inode of the memfd. The daemon is the one
 * of $DLX_SOCKET. Exit 1: an error, which it prints.
 */
#include "client/control/call.h"
#include "gpu/lib/keep.h"
#include "gpu/lib/receive.h"
#include "client/publish/publisher.h"
#include "client/subscribe/subscription.h"
#include "common/error.h"
#include "gpu/handle.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define ALLOCATION 7
#define CHUNK_SIZE (UINT64_C(2) << 20)

static void require(int r)
{
    if (r >= 0)
        return;
    (void)fprintf(stderr, "keeper_actor: %s\n", dlx__error_message());
    exit(EXIT_FAILURE);
}

static void print(const struct dlx_gpu_handle *handle)
{
    struct stat st;
    if (fstat(handle->chunks[0].fd, &st) < 0) {
        perror("keeper_actor: fstat");
        exit(EXIT_FAILURE);
    }
    (void)printf("%u chunks of inode %ju\n", handle->n_chunks, (uintmax_t)st.st_ino);
}

static void make(struct dlx_gpu_handle *ret, uint32_t n_chunks)
{
    int fd = memfd_create("keeper_actor", MFD_CLOEXEC);
    require(dlx__gpu_handle_reserve(ret, n_chunks));
    ret->kind = DLX_GPU_CUDA_VMM;
    ret->id = ALLOCATION;
    ret->size = CHUNK_SIZE * n_chunks;
    ret->n_received = n_chunks;
    for (uint32_t i = 0; i < n_chunks; i++) {
        ret->chunks[i].size = CHUNK_SIZE;
        ret->chunks[i].fd = i == 0 ? fd : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    }
}

static void put(struct dlx_client *c, const char *topic, uint32_t n_chunks)
{
    const struct dlx_publisher_args args = {.size = sizeof args, .retain = 1};
    const int64_t shape[] = {10};
    const struct dlx_tensor_spec spec = {
        .size = sizeof spec, .dtype = {kDLInt, 64, 1}, .ndim = 1, .shape = shape};
    struct dlx_gpu_handle handle = {.id = 0};
    struct dlx_gpu_keep *keep = NULL;
    struct dlx_publisher *p = NULL;
    DLManagedTensorVersioned *tensor = NULL;
    make(&handle, n_chunks);
    require(dlx_publisher_new(c, topic, &args, &p));
    require(dlx__gpu_keep_put(p->client, p->id, &keep, &handle));
    require(dlx_alloc(p, &spec, &tensor));
    require(dlx_publish(p, tensor, NULL, NULL));
    print(&handle);
    keep = dlx__gpu_keep_free(keep);
    dlx_publisher_unref(p);
    dlx__gpu_handle_deinit(&handle);
}

/* The link to the only publisher that there is. */
static struct dlx_subscriber_link *only_link(const struct dlx_subscription *s)
{
    uint32_t i = 0;
    while (i + 1 < s->n_links && s->links[i]->publisher == 0)
        i++;
    return s->links[i];
}

static void get(struct dlx_client *c, const char *topic)
{
    const struct dlx_subscribe_args args = {.size = sizeof args, .history = 1};
    struct dlx_gpu_handle handle = {.id = 0};
    struct dlx_subscription *s = NULL;
    struct dlx_message *m = NULL;
    require(dlx_subscribe(c, topic, &args, &s));
    require(dlx_take(s, INT64_C(10000000000), &m));
    require(dlx__message_gpu_fetch(c, only_link(s), ALLOCATION, &handle));
    print(&handle);
    dlx__gpu_handle_deinit(&handle);
    dlx_message_unref(m);
    dlx_subscription_unref(s);
}

int main(int argc, char **argv)
{
    struct dlx_client *c = NULL;
    if (argc == 4 && strcmp(argv[1], "put") == 0) {
        require(dlx_connect(NULL, &c));
        put(c, argv[2], (uint32_t)strtoul(argv[3], NULL, 10));
    } else if (argc == 3 && strcmp(argv[1], "get") == 0) {
        require(dlx_connect(NULL, &c));
        get(c, argv[2]);
    } else {
        (void)fprintf(stderr, "usage: keeper_actor put TOPIC CHUNKS | get TOPIC\n");
        return 2;
    }
    dlx_client_unref(c);
    return EXIT_SUCCESS;
}
