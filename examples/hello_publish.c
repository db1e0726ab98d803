/* SPDX-License-Identifier: Apache-2.0 */

/* Publish one tensor: hello_subscribe, started before, receives it without a copy. */

#include <dlx/dlx.h>
#include <stdio.h>

int main(void)
{
    struct dlx_client *c = NULL;
    struct dlx_publisher *p = NULL;
    DLManagedTensorVersioned *t;
    const int64_t shape[] = {2, 3};
    struct dlx_tensor_spec spec = {
        .size = sizeof spec, .dtype = {kDLFloat, 32, 1}, .ndim = 2, .shape = shape};
    int r;

    if ((r = dlx_connect(NULL, &c)) || (r = dlx_publisher_new(c, "hello", NULL, &p)) ||
        (r = dlx_publisher_wait(p, 1, DLX_FOREVER)) || (r = dlx_alloc(p, &spec, &t)))
        goto end;
    float *x = t->dl_tensor.data; /* already in shared memory */
    for (int i = 0; i < 6; i++)
        x[i] = (float)i / 2;
    r = dlx_publish(p, t, NULL, NULL); /* passes ownership on success */
    if (r)
        t->deleter(t);
end:
    if (r)
        fprintf(stderr, "hello_publish: %s\n", dlx_errmsg());
    dlx_publisher_unref(p);
    dlx_client_unref(c);
    return r != 0;
}
