/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/serve_token.h"
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* Of a new token, in hexadecimal; and what a token has at least. */
enum { RANDOM_BYTES = 32, TOKEN_LEAST = 16 };

/* Of a bearer token (RFC 6750). A link can have all of them after '#'. */
static const char of_tokens[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/=";

int serve_token_make(char ret[SERVE_TOKEN_SIZE], struct cli_error *e)
{
    uint8_t bytes[RANDOM_BYTES];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return cli_fail(e, DLX_E_SYSTEM, "getrandom: %s", strerror(errno));
    for (size_t i = 0; i < sizeof bytes; i++)
        (void)snprintf(ret + 2 * i, 3, "%02x", bytes[i]);
    return 0;
}

static int make_token_file(const char *path, char ret[SERVE_TOKEN_SIZE], struct cli_error *e)
{
    int r = serve_token_make(ret, e);
    if (r < 0)
        return r;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return cli_fail(e, DLX_E_SYSTEM, "token file %.300s: %s", path, strerror(errno));
    bool is_written = dprintf(fd, "%s\n", ret) > 0 && fchmod(fd, 0600) == 0;
    int error = errno;
    (void)close(fd);
    if (is_written)
        return 0;
    (void)unlink(path);
    return cli_fail(e, DLX_E_SYSTEM, "writing the token file %.300s: %s", path, strerror(error));
}

static int check_token_file(int fd, const char *path, struct cli_error *e)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return cli_fail(e, DLX_E_SYSTEM, "token file %.300s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return cli_fail(e, DLX_E_INVALID, "token file %.300s is no regular file", path);
    if (st.st_uid != geteuid() && st.st_uid != 0)
        return cli_fail(e, DLX_E_ACCESS,
                        "token file %.300s belongs to uid %u, and this is uid %u: give it to this "
                        "user",
                        path, (unsigned)st.st_uid, (unsigned)geteuid());
    if ((st.st_mode & 077) != 0)
        return cli_fail(e, DLX_E_ACCESS,
                        "token file %.300s has mode %04o, so that other users may know the token: "
                        "remove it for a new one, or `chmod 600` it",
                        path, (unsigned)(st.st_mode & 07777));
    return 0;
}

int serve_token_read(const char *path, char ret[SERVE_TOKEN_SIZE], struct cli_error *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT)
        return make_token_file(path, ret, e);
    if (fd < 0)
        return cli_fail(e, DLX_E_SYSTEM, "token file %.300s: %s", path, strerror(errno));
    int r = check_token_file(fd, path, e);
    ssize_t n = r < 0 ? 0 : read(fd, ret, SERVE_TOKEN_SIZE - 1);
    (void)close(fd);
    if (r < 0)
        return r;
    ret[n > 0 ? n : 0] = '\0';
    ret[strcspn(ret, "\r\n")] = '\0';
    const size_t length = strlen(ret);
    if (length < TOKEN_LEAST || length == SERVE_TOKEN_SIZE - 1 || ret[strspn(ret, of_tokens)])
        return cli_fail(e, DLX_E_INVALID,
                        "token file %.300s: its first line must be a token of %d to %d letters, "
                        "digits and -._~+/=: remove the file for a new one",
                        path, TOKEN_LEAST, SERVE_TOKEN_SIZE - 2);
    return 0;
}

bool serve_token_matches(const char *token, const char *authorization)
{
    static const char scheme[] = "Bearer ";
    const size_t n = strlen(token);
    unsigned differs = 0;
    if (strncasecmp(authorization, scheme, strlen(scheme)) != 0)
        return false;
    authorization += strlen(scheme);
    if (strlen(authorization) != n)
        return false;
    for (size_t i = 0; i < n; i++)
        differs |= (unsigned)(unsigned char)token[i] ^ (unsigned)(unsigned char)authorization[i];
    return differs == 0;
}
