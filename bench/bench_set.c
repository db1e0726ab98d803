/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A state dict as one message: publish, take, and a managed tensor of each part. The tensors lie in
 * shared memory already (dlx_alloc_set), their payload is not touched. The first set of a fresh
 * publisher is told apart from those that follow: it meets every page for the first time.
 */

#include "measure_dlx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct state_dict {
    uint32_t n;
    struct dlx_tensor_spec *specs;
    DLManagedTensorVersioned **tensors;
    struct dlx_item *items;
    char (*names)[40];
};

static void state_dict_init(struct state_dict *d, uint32_t n)
{
    static int64_t shapes[][2] = {{64, 64}, {128, 3}, {7, 1}};

    d->n = n;
    d->specs = calloc(n, sizeof *d->specs);
    d->tensors = calloc(n, sizeof(DLManagedTensorVersioned *));
    d->items = calloc(n, sizeof *d->items);
    d->names = calloc(n, sizeof *d->names);
    if (!d->specs || !d->tensors || !d->items || !d->names)
        bm_fail("out of memory");
    for (uint32_t i = 0; i < n; i++) {
        d->specs[i] = (struct dlx_tensor_spec){
            .size = sizeof *d->specs,
            .dtype = {.code = kDLFloat, .bits = 16, .lanes = 1},
            .ndim = 2,
            .shape = shapes[i % 3],
        };
        (void)snprintf(d->names[i], sizeof d->names[i], "model.layers.%u.weight", i);
        d->items[i].name = d->names[i];
    }
}

/* The time of a set from publish to the last managed tensor, ns. */
static double one_set(struct state_dict *d, struct dlx_publisher *p, struct dlx_subscription *s)
{
    bm_check(dlx_alloc_set(p, d->specs, d->n, d->tensors), "dlx_alloc_set");
    for (uint32_t i = 0; i < d->n; i++)
        d->items[i].tensor = d->tensors[i];
    uint64_t start = bm_now_ns();
    bm_check(dlx_publish_set(p, d->items, d->n, NULL, NULL, NULL), "dlx_publish_set");
    struct dlx_message *m = bm_take(s);
    for (uint32_t i = 0; i < d->n; i++)
        bm_check(dlx_message_tensor(m, i, &d->tensors[i]), "dlx_message_tensor");
    double ns = (double)(bm_now_ns() - start);
    dlx_message_unref(m);
    for (uint32_t i = 0; i < d->n; i++)
        d->tensors[i]->deleter(d->tensors[i]);
    return ns;
}

int main(int argc, char **argv)
{
    char topic[64];
    struct state_dict d;
    struct dlx_publisher *p;
    struct dlx_subscription *s;

    bm_init(argc, argv);
    size_t n = (size_t)bm_long("n", 50), n_warmup = (size_t)bm_long("warmup", 12);
    state_dict_init(&d, (uint32_t)bm_long("tensors", 20000));
    double *ns = calloc(n, sizeof *ns);
    if (!ns)
        bm_fail("out of memory");
    bm_pin(0);
    struct dlx_client *c = bm_connect();
    bm_check(dlx_publisher_new(c, bm_topic("set", getpid(), topic), NULL, &p), topic);
    bm_check(dlx_subscribe(c, topic, NULL, &s), topic);
    double first = one_set(&d, p, s);
    uint32_t n_arenas = bm_publisher_stats(p).n_arenas;
    for (size_t i = 1; i < n_warmup; i++)
        (void)one_set(&d, p, s);
    for (size_t i = 0; i < n; i++)
        ns[i] = one_set(&d, p, s);
    struct bm_summary summary = bm_summary_of(ns, n);
    bm_json_begin();
    bm_json_number("first_ns", first);
    bm_json_number("arenas_of_first", n_arenas);
    bm_json_summary(&summary);
    bm_json_end();
    dlx_subscription_unref(s);
    dlx_publisher_unref(p);
    dlx_client_unref(c);
    free(ns);
    free(d.specs);
    free(d.tensors);
    free(d.items);
    free(d.names);
    return 0;
}
