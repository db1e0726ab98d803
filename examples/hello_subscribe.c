/* SPDX-License-Identifier: Apache-2.0 */

/* Receive one tensor from hello_publish and print it. */

#include <dlx/dlx.h>
#include <inttypes.h>
#include <stdio.h>

int main(void)
{
    struct dlx_client *c = NULL;
    struct dlx_subscription *s = NULL;
    struct dlx_message *m = NULL;
    DLManagedTensorVersioned *t;
    int r;

    if ((r = dlx_connect(NULL, &c)) || (r = dlx_subscribe(c, "hello", NULL, &s)) ||
        (r = dlx_take(s, DLX_FOREVER, &m)))
        goto end;
    if (dlx_message_tensor_peek(m, 0)->device.device_type != kDLCPU) {
        fprintf(stderr, "hello_subscribe: the tensor is on a GPU, and this program reads memory of "
                        "the CPU\n");
        dlx_message_unref(m);
        dlx_subscription_unref(s);
        dlx_client_unref(c);
        return 1;
    }
    if ((r = dlx_message_tensor(m, 0, &t)))
        goto end;
    m = dlx_message_unref(m); /* the tensor stays valid until its deleter is called */
    const DLTensor *d = &t->dl_tensor;
    if (d->ndim == 2 && d->dtype.code == kDLFloat && d->dtype.bits == 32 && d->dtype.lanes == 1) {
        printf("%" PRId64 " x %" PRId64 ":", d->shape[0], d->shape[1]);
        for (int64_t i = 0; i < d->shape[0] * d->shape[1]; i++)
            printf(" %.1f", (double)((const float *)d->data)[i]);
        putchar('\n');
    }
    t->deleter(t);
end:
    if (r)
        fprintf(stderr, "hello_subscribe: %s\n", dlx_errmsg());
    dlx_message_unref(m);
    dlx_subscription_unref(s);
    dlx_client_unref(c);
    return r != 0;
}
