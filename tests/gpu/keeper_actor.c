/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A publisher and a subscriber of GPU memory for tests/service/check_systemd*.sh, with whatever
 * libcuda.so.1 the loader finds: the stand-in.
 *
 *   keeper_actor put TOPIC WORD    publish a tensor of `dlx_alloc` on the GPU, full of this word,
 *                                  which is retained, and end
 *   keeper_actor get TOPIC         take it, and print its first and last word
 *
 * The daemon is the one of $DLX_SOCKET. Exit 1: an error, which it prints.
 */
#include <dlfcn.h>
#include <dlx/dlx.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_WORDS 1000
#define WAIT_NS INT64_C(10000000000)

/* What a framework calls. */
static struct {
    int (*cuInit)(unsigned flags);
    int (*cuDevicePrimaryCtxRetain)(void **ret, int device);
    int (*cuCtxSetCurrent)(void *context);
    int (*cuMemsetD32)(unsigned long long at, unsigned word, size_t n);
    int (*cuMemcpyDtoH)(void *to, unsigned long long from, size_t size);
} cu;

static void require(int r)
{
    if (r >= 0)
        return;
    (void)fprintf(stderr, "keeper_actor: %s\n", dlx_errmsg());
    exit(EXIT_FAILURE);
}

static void require_cuda(int result, const char *what)
{
    if (result == 0)
        return;
    (void)fprintf(stderr, "keeper_actor: %s: error %d\n", what, result);
    exit(EXIT_FAILURE);
}

static void resolve(void *library, const char *name, void *ret)
{
    void *p = library ? dlsym(library, name) : NULL;
    if (!p) {
        (void)fprintf(stderr, "keeper_actor: %s\n", dlerror());
        exit(EXIT_FAILURE);
    }
    memcpy(ret, &p, sizeof p);
}

static void start_driver(void)
{
    void *context, *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    resolve(library, "cuInit", &cu.cuInit);
    resolve(library, "cuDevicePrimaryCtxRetain", &cu.cuDevicePrimaryCtxRetain);
    resolve(library, "cuCtxSetCurrent", &cu.cuCtxSetCurrent);
    resolve(library, "cuMemsetD32_v2", &cu.cuMemsetD32);
    resolve(library, "cuMemcpyDtoH_v2", &cu.cuMemcpyDtoH);
    require_cuda(cu.cuInit(0), "cuInit");
    require_cuda(cu.cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    require_cuda(cu.cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

static unsigned long long address(const DLTensor *tensor)
{
    return (uintptr_t)tensor->data + tensor->byte_offset;
}

static void put(struct dlx_client *c, const char *topic, unsigned word)
{
    const struct dlx_publisher_args args = {.size = sizeof args, .retain = 1};
    const int64_t shape[] = {N_WORDS};
    const struct dlx_tensor_spec spec = {.size = sizeof spec,
                                         .dtype = {kDLUInt, 32, 1},
                                         .ndim = 1,
                                         .shape = shape,
                                         .device = {kDLCUDA, 0}};
    struct dlx_publisher *p = NULL;
    DLManagedTensorVersioned *tensor = NULL;
    require(dlx_publisher_new(c, topic, &args, &p));
    require(dlx_alloc(p, &spec, &tensor));
    require_cuda(cu.cuMemsetD32(address(&tensor->dl_tensor), word, N_WORDS), "cuMemsetD32");
    require(dlx_publish(p, tensor, NULL, NULL));
    dlx_publisher_unref(p);
}

static void get(struct dlx_client *c, const char *topic)
{
    const struct dlx_subscribe_args args = {.size = sizeof args, .history = 1};
    DLManagedTensorVersioned *tensor = NULL;
    struct dlx_subscription *s = NULL;
    struct dlx_message *m = NULL;
    uint32_t words[N_WORDS];
    require(dlx_subscribe(c, topic, &args, &s));
    require(dlx_take(s, WAIT_NS, &m));
    require(dlx_message_tensor(m, 0, &tensor));
    require_cuda(cu.cuMemcpyDtoH(words, address(&tensor->dl_tensor), sizeof words), "cuMemcpyDtoH");
    (void)printf("%" PRIu32 " %" PRIu32 "\n", words[0], words[N_WORDS - 1]);
    tensor->deleter(tensor);
    dlx_message_unref(m);
    dlx_subscription_unref(s);
}

int main(int argc, char **argv)
{
    struct dlx_client *c = NULL;
    bool is_put = argc == 4 && strcmp(argv[1], "put") == 0;
    if (!is_put && !(argc == 3 && strcmp(argv[1], "get") == 0)) {
        (void)fprintf(stderr, "usage: keeper_actor put TOPIC WORD | get TOPIC\n");
        return 2;
    }
    start_driver();
    require(dlx_connect(NULL, &c));
    if (is_put)
        put(c, argv[2], (unsigned)strtoul(argv[3], NULL, 10));
    else
        get(c, argv[2]);
    dlx_client_unref(c);
    return EXIT_SUCCESS;
}
