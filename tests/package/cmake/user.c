/* SPDX-License-Identifier: Apache-2.0 */
#include <dlx/dlx.h>
#include <stdio.h>

int main(void)
{
    struct dlx_client *c = NULL;
    struct dlx_connect_args args = {.size = sizeof args, .socket = "/nonexistent/dlx.sock"};
    int r = dlx_connect(&args, &c);
    printf("%s %s\n", dlx_version(), dlx_error_name(r));
    return r != DLX_E_NO_DAEMON;
}
