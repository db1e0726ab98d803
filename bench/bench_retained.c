/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A set of --size bytes in --tensors tensors on --topic. --role publish publishes it with retain =
 * 1 and ends.
 * --role attach, another process, connects, gets the message, finds one of the tensors by name and
 * reads a byte of it; prints how long that took and how much memory of its own that needed, then
 * holds the message until its standard input ends.
 */

#include "measure_dlx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FLOATS ((DLDataType){.code = kDLFloat, .bits = 32, .lanes = 1})

static const char *tensor_name(uint32_t i, char name[static 48])
{
    (void)snprintf(name, 48, "model.layers.%u.weight", i);
    return name;
}

/* The first and the last byte of a tensor. */
static unsigned char mark(uint32_t i)
{
    return (unsigned char)(i * 7 + 1);
}

static void publish(const char *topic, size_t size, uint32_t n)
{
    const struct dlx_publisher_args args = {.size = sizeof args, .history = 1, .retain = 1};
    struct dlx_publish_report report = {.size = sizeof report};
    const struct dlx_publish_args how = {.size = sizeof how};
    const int64_t shape[1] = {(int64_t)(size / n / sizeof(float))};
    size_t tensor_size = (size_t)shape[0] * sizeof(float);
    struct dlx_tensor_spec *specs = calloc(n, sizeof *specs);
    struct dlx_item *items = calloc(n, sizeof *items);
    char(*names)[48] = calloc(n, sizeof *names);
    DLManagedTensorVersioned **tensors = calloc(n, sizeof(DLManagedTensorVersioned *));
    struct dlx_publisher *p;

    if (!specs || !items || !names || !tensors || !tensor_size)
        bm_fail("out of memory, or a tensor of 0 bytes");
    struct dlx_client *c = bm_connect();
    bm_check(dlx_publisher_new(c, topic, &args, &p), topic);
    for (uint32_t i = 0; i < n; i++)
        specs[i] = (struct dlx_tensor_spec){
            .size = sizeof *specs, .dtype = FLOATS, .ndim = 1, .shape = shape};
    bm_check(dlx_alloc_set(p, specs, n, tensors), "dlx_alloc_set");
    for (uint32_t i = 0; i < n; i++) {
        memset(tensors[i]->dl_tensor.data, mark(i), tensor_size);
        items[i] = (struct dlx_item){tensor_name(i, names[i]), tensors[i]};
    }
    bm_check(dlx_publish_set(p, items, n, NULL, &how, &report), "dlx_publish_set");
    if (report.copied_bytes)
        bm_fail("%llu bytes were copied", (unsigned long long)report.copied_bytes);
    dlx_publisher_unref(p);
    dlx_client_unref(c);
    bm_json_begin();
    bm_json_number("payload_bytes", (double)(tensor_size * n));
    bm_json_end();
    free(specs);
    free(items);
    free(names);
    free(tensors);
}

static void attach(const char *topic, uint32_t n)
{
    struct dlx_client *c;
    struct dlx_message *m;
    char name[48], byte;
    uint32_t i, chosen = n / 2;

    tensor_name(chosen, name);
    uint64_t t0 = bm_now_ns();
    bm_check(dlx_connect(NULL, &c), "dlx_connect");
    uint64_t t1 = bm_now_ns();
    bm_check(dlx_get(c, topic, 0, &m), "dlx_get");
    uint64_t t2 = bm_now_ns();
    bm_check(dlx_message_tensor_find(m, name, &i), name);
    const DLTensor *t = dlx_message_tensor_peek(m, i);
    const volatile unsigned char *data = t->data;
    unsigned char first = data[0];
    uint64_t t3 = bm_now_ns();
    if (first != mark(chosen) || data[(size_t)t->shape[0] * sizeof(float) - 1] != mark(chosen))
        bm_fail("%s has other bytes than were published", name);
    if (dlx_message_n_tensors(m) != n)
        bm_fail("%u tensors instead of %u", dlx_message_n_tensors(m), n);
    bm_json_begin();
    bm_json_number("ns", (double)(t3 - t0));
    bm_json_number("connect_ns", (double)(t1 - t0));
    bm_json_number("get_ns", (double)(t2 - t1));
    bm_json_number("touch_ns", (double)(t3 - t2));
    bm_json_end();
    while (read(STDIN_FILENO, &byte, 1) > 0)
        ;
    dlx_message_unref(m);
    dlx_client_unref(c);
}

int main(int argc, char **argv)
{
    bm_init(argc, argv);
    const char *role = bm_text("role", ""), *topic = bm_text("topic", "bench/retained");
    uint32_t n = (uint32_t)bm_long("tensors", 300);

    bm_pin(strcmp(role, "publish") == 0 ? 0 : 1);
    if (!strcmp(role, "publish"))
        publish(topic, (size_t)bm_long("size", 64 << 20), n);
    else if (!strcmp(role, "attach"))
        attach(topic, n);
    else
        bm_fail("--role is publish or attach");
    return 0;
}
