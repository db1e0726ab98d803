/* SPDX-License-Identifier: Apache-2.0 */

/* A worker: the processes of this program share the messages of a topic, each goes to one of them.
 * Start some, and then
 *
 *     dlxctl pub work image.npy --loop 100 --group hello --drain
 *
 * Kill one: another one takes what it had. A worker ends when the publisher has left and all is
 * done. */

#include <dlx/dlx.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

int main(void)
{
    struct dlx_client *c = NULL;
    struct dlx_subscription *s = NULL;
    struct dlx_message *m;
    struct dlx_subscribe_args args = {.size = sizeof args, .group = "hello", .n_publishers = 1};
    int r;

    if ((r = dlx_connect(NULL, &c)) || (r = dlx_subscribe(c, "work", &args, &s)))
        goto end;
    while ((r = dlx_take(s, DLX_FOREVER, &m)) == 0) {
        const DLTensor *t = dlx_message_tensor_peek(m, 0);
        printf("worker %d does message %" PRIu64 ", attempt %u: %d dimensions\n", (int)getpid(),
               dlx_message_seq(m), dlx_message_attempt(m), (int)t->ndim);
        r = dlx_message_done(m); /* no worker gets it again */
        dlx_message_unref(m);    /* what is not done is given back */
        if (r)
            goto end;
    }
    if (r == DLX_E_PUBLISHER_GONE)
        r = 0;
end:
    if (r)
        fprintf(stderr, "hello_worker: %s\n", dlx_errmsg());
    dlx_subscription_unref(s);
    dlx_client_unref(c);
    return r != 0;
}
