/* SPDX-License-Identifier: Apache-2.0 */
#include <dlx/dlx.hpp>
#include <cstdio>

int main()
{
    dlx_connect_args args{};
    args.socket = "/nonexistent/dlx.sock";
    try {
        dlx::client c(args);
    } catch (const dlx::error &e) {
        std::printf("%s %s\n", dlx_version(), e.name());
        return e.code() != DLX_E_NO_DAEMON;
    }
    return 1;
}
