/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/harness/daemon_log.h"

void dlx_test_daemon_await(const struct dlx_test_daemon *daemon, const char *words)
{
    static char text[8192];
    size_t n = 0;
    uint64_t deadline = dlx__deadline(INT64_C(1000000) * PATIENCE_MS);
    text[0] = '\0';
    while (!strstr(text, words)) {
        struct pollfd p = {.fd = daemon->log_fd, .events = POLLIN};
        int ms = dlx__deadline_ms(deadline, dlx__now_ns());
        ck_assert_msg(ms > 0 && poll(&p, 1, ms) == 1, "the daemon does not say '%s': %s", words,
                      text);
        if (n > sizeof text / 2) { /* the words may have come by half */
            memmove(text, text + n - strlen(words), strlen(words) + 1);
            n = strlen(words);
        }
        ssize_t got = read(p.fd, text + n, 1); /* what follows the words is for the next call */
        ck_assert_msg(got == 1, "the daemon ended before it said '%s': %s", words, text);
        text[++n] = '\0';
    }
}
